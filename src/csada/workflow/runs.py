"""What a run is known by, and what it was run on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import csada
from csada.data.splits import Splits
from csada.evidence import Environment, EpochLine
from csada.reading import build, plain

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")


def environment() -> Environment:
    """Versions, the device's kind and the commit; no paths and no names of machines."""
    cuda = torch.cuda.is_available()
    return Environment(
        csada.__version__,
        _commit(),
        platform.python_version(),
        {name: metadata.version(name) for name in PACKAGES},
        torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()}, {os.cpu_count()} cores)",
        torch.get_num_threads(),
    )


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


def identity(config: Any) -> str:
    """The same settings give the same name, on any machine."""
    canonical = json.dumps(plain(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def run_id(splits: Splits, **settings: Any) -> str:
    """One for every run: the same command finds its checkpoint again, another starts anew."""
    return identity({"data": splits.fingerprint, "normalization": splits.train.normalization, **settings})


def lines(history: Iterable[Mapping[str, Any]]) -> tuple[EpochLine, ...]:
    """A history as `fit` gives it, typed; what else an on_epoch added is left out."""
    known = [f.name for f in fields(EpochLine)]
    kept = ({key: line[key] for key in known if key in line} for line in history)
    return tuple(build(EpochLine, line, "history") for line in kept)
