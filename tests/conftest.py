import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests run side by side, one process per core

GUARD = str(Path(__file__).with_name("guard"))


def pytest_configure(config):
    """No process of the tests, nor one that they start, reaches another machine."""
    if GUARD not in os.environ.get("PYTHONPATH", ""):  # else of pytest-xdist, which has all this from its parent
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (GUARD, os.environ.get("PYTHONPATH"))))
        os.environ["CSADA_TRIED"] = config.tried = tempfile.mkstemp()[1]
        sys.path.append(GUARD)
        runpy.run_path(f"{GUARD}/sitecustomize.py")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if tried := getattr(session.config, "tried", None):
        session.config.said = Path(tried).read_text()
        os.unlink(tried)
        if session.config.said:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if said := getattr(config, "said", ""):
        terminalreporter.section("tests tried to reach other machines")
        terminalreporter.write(said)


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """No data and no cache but what the test itself writes."""
    monkeypatch.delenv("CSADA_DATA", raising=False)
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
