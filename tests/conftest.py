import pytest
import torch

torch.set_num_threads(1)  # tests run side by side, one process per core


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """No data and no cache but what the test itself writes."""
    monkeypatch.delenv("CSADA_DATA", raising=False)
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
