import os
import runpy
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests run side by side, one process per core

# by how long they take; all others are short
LONG = ("engine", "compare", "shipping", "story", "tune", "sweep", "store", "parallel", "processes", "deaths", "fuzz")

GUARD = str(Path(__file__).with_name("guard"))


def pytest_configure(config):
    """No process of the tests, nor one that they start, reaches another machine."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # of a shell's background job; tests send it to what they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if GUARD not in os.environ.get("PYTHONPATH", ""):  # else of pytest-xdist, which has all this from its parent
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (GUARD, os.environ.get("PYTHONPATH"))))
        os.environ["CSADA_TRIED"] = config.tried = tempfile.mkstemp()[1]
        sys.path.append(GUARD)
        runpy.run_path(f"{GUARD}/sitecustomize.py")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault(
            "RAY_AUTH_MODE", "disabled"
        )  # else Ray makes a token at home, and a process keeps its first one


def pytest_collection_modifyitems(items):
    """The long files first, so that no process is alone with one in the end."""
    order = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file at a time to each process, in that order: what its tests share is made once."""
    if config.getvalue("dist") != "load":  # asked for
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


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
