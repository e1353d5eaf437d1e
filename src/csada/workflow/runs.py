"""What was run, on what: JSON that is written whole or not at all, and says nothing of a machine but its kind."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import csada
from csada.errors import InputError
from csada.files import write_text

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")


def environment() -> dict[str, Any]:
    """Versions, the device's kind and the commit; no paths and no names of machines."""
    cuda = torch.cuda.is_available()
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {
        "csada": csada.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": versions,
        "device": torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()}, {os.cpu_count()} cores)",
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the source tree csada runs from; None where it was installed."""
    root = Path(csada.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        out = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() or None


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    return write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"cannot read the record {path}: {error}") from None
