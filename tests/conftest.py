import sys

import pytest
import torch

torch.set_num_threads(1)  # tests run side by side, one process per core


def stay_here(event, given):
    """No test needs a network: a connection to another machine is an error."""
    if event == "socket.connect" and isinstance(address := given[1], tuple) and address[0] not in HERE:
        raise RuntimeError(f"a connection to {address}")


HERE = ("127.0.0.1", "::1", "localhost", "0.0.0.0")
sys.addaudithook(stay_here)


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """No data and no cache but what the test itself writes."""
    monkeypatch.delenv("CSADA_DATA", raising=False)
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
