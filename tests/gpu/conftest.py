"""What runs on a GPU alone. With CSADA_GPU_RECORD=FILE the outcome is written there: `make test-gpu` does so."""

import os
import platform
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import torch

from csada.reading import write_json

HERE = Path(__file__).parent
PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "scikit-learn",
    "torchmetrics",
    "lightning",
    "pytorch-lightning",
    "onnx",
    "timm",
    "torchvision",
    "pytest",
)


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def full_precision():
    """Differences are then those of the order of sums, not of shortened numbers."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def pytest_terminal_summary(terminalreporter):
    path = os.environ.get("CSADA_GPU_RECORD")
    if not path or not torch.cuda.is_available():
        return
    reports = {kind: terminalreporter.stats.get(kind, []) for kind in ("passed", "failed", "error", "skipped")}
    record = {kind: len(found) for kind, found in reports.items()}
    record["files"] = dict(sorted(Counter(Path(r.nodeid.split("::")[0]).name for r in reports["passed"]).items()))
    record["not passed"] = sorted({r.nodeid for kind in ("failed", "error", "skipped") for r in reports[kind]})
    record |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "gpu": torch.cuda.get_device_name()}
    record["gpus"] = torch.cuda.device_count()
    record["versions"] = {"python": platform.python_version(), "cuda": torch.version.cuda} | versions()
    record["versions"]["cudnn"] = str(torch.backends.cudnn.version())
    write_json(Path(path), record)


def versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
