"""A name, a folder of images or a table of features -> Splits(train, validation, test), ready to draw batches from."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from csada.costs import did_you_mean
from csada.data.augment import Augmentation, Normalization
from csada.data.fetch import Progress
from csada.data.splits import Batch, Part, Splits, stratified
from csada.errors import InputError

__all__ = ["SOURCES", "Augmentation", "Batch", "Normalization", "Part", "Splits", "load", "stratified"]

# Each module has load(data_dir, scale, seed, ...) -> Splits, and is imported when it is asked for.
SOURCES = {
    "cifar10": "csada.data.cifar10",
    "digits": "csada.data.digits",
    "mnist": "csada.data.mnist",
    "pills": "csada.data.pills",
    "pmi": "csada.data.pmi",
    "toy": "csada.data.toy",
}


def load(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    scale: float = 1.0,
    seed: int = 0,
    on_progress: Progress | None = None,
    **options: Any,
) -> Splits:
    """One of SOURCES by name, or a folder of images by class, or a CSV of features by path.

    `scale` below 1 takes a stratified fraction of every part; `seed` decides the split. `on_progress(done, total)` is
    told about images that are decoded or drawn. Other options belong to the source: `csada.data.mnist.load` and so on.
    """
    name = os.fspath(name_or_path)
    if name in SOURCES:
        module, where = SOURCES[name], data_dir
    else:
        where = Path(data_dir or "").expanduser() / Path(name).expanduser()
        if where.is_dir():
            module = "csada.data.folder"
        elif where.is_file():
            module = "csada.data.table"
        else:
            hint = did_you_mean(name, SOURCES)
            raise InputError(f"{name!r} is neither a data set, nor a folder of images, nor a CSV file{hint}")
    source = import_module(module).load
    known = inspect.signature(source).parameters
    for option in options:
        if option not in known:
            own = [o for o in known if o not in ("data_dir", "path", "scale", "seed", "on_progress")]
            raise InputError(
                f"unknown option {option!r} for {name}{did_you_mean(option, own) if own else ', which has none'}"
            )
    if "on_progress" in known:
        options["on_progress"] = on_progress
    splits: Splits = source(where, scale, seed, **options)
    return splits
