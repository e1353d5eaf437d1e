"""A name, images in a folder or in tar shards, or a table -> Splits(train, validation, test), ready to draw batches from."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from csada.costs import did_you_mean
from csada.data.augment import Augmentation as Augmentation
from csada.data.augment import Normalization as Normalization
from csada.data.fetch import Progress
from csada.data.scores import is_scores
from csada.data.splits import PARTS
from csada.data.splits import Part as Part
from csada.data.splits import Splits as Splits
from csada.data.splits import seen as seen
from csada.errors import InputError
from csada.files import StrPath
from csada.pixels import SUFFIXES
from csada.tars import is_remote, is_shards

# Each module has load(data_dir, scale, seed, ...) -> Splits, and is imported when it is asked for.
SOURCES = {name: f"csada.data.{name}" for name in ("cifar10", "digits", "mnist", "pills", "pmi", "toy")}
IMAGES = "csada.data.images"
BUILTIN = "builtin:"  # before a name of SOURCES: that one, whatever folders there are


def load(
    name_or_path: StrPath,
    data_dir: StrPath | None = None,
    scale: float = 1.0,
    seed: int = 0,
    on_progress: Progress | None = None,
    **options: Any,
) -> Splits:
    """One of SOURCES by name, or a folder or tar shards of images by class, a table of features or of scores by path.

    Where a folder of images has the name of a source, ./pills is the folder and builtin:pills the source.
    `scale` below 1 takes a stratified fraction of every part; `seed` decides the split. `on_progress(done, total)` is
    told about images that are decoded or drawn. Other options belong to the source: `csada.data.mnist.load` and so on.
    """
    name = os.fspath(name_or_path)
    module, where = find(name, data_dir)
    source = import_module(module).load
    _check(options, name, data_dir)
    if "on_progress" in inspect.signature(source).parameters:
        options["on_progress"] = on_progress
    splits: Splits = source(where, scale, seed, **options)
    return splits


def options_of(name_or_path: StrPath, data_dir: StrPath | None = None) -> list[str]:
    """The options that this source takes beside those of `load`."""
    known = inspect.signature(import_module(find(os.fspath(name_or_path), data_dir)[0]).load).parameters
    return [option for option in known if option not in ("data_dir", "path", "scale", "seed", "on_progress")]


def _check(options: Mapping[str, Any], name: str, data_dir: StrPath | None) -> None:
    own = options_of(name, data_dir)
    for option in options:
        if option not in own:
            hint = did_you_mean(option, own) if own else ", which has none"
            raise InputError(f"unknown option {option!r} for {name}{hint}")


def find(name: str, data_dir: StrPath | None = None) -> tuple[str, StrPath | None]:
    """The module that reads it, and what that module is handed: the folder or file, or the place of a named set."""
    if is_remote(name):
        return IMAGES, name
    where = Path(data_dir or "").expanduser() / Path(name).expanduser()
    if name in SOURCES and name != "pmi" and _has_images(where):  # a folder called pmi holds the set itself
        raise InputError(
            f"{name!r} is a data set of csada and a folder of images; "
            f"write ./{name} for the folder, {BUILTIN}{name} for the data set"
        )
    if (source := name.removeprefix(BUILTIN)) in SOURCES:
        return SOURCES[source], data_dir
    if where.is_dir() or is_shards(str(where)):
        return IMAGES, where
    if where.is_file():
        return "csada.data.scores" if is_scores(where) else "csada.data.table", where
    hint = did_you_mean(source, SOURCES)
    raise InputError(f"{name!r} is neither a data set, nor a folder or tar files of images, nor a CSV file{hint}")


def _has_images(folder: Path) -> bool:
    """By class, or by part and class."""
    found = (path for pattern in ("*/*", "*/*/*") for path in folder.glob(pattern))
    return any(path.suffix.lower() in SUFFIXES for path in found)


def counts(
    name_or_path: StrPath,
    data_dir: StrPath | None = None,
    on_warnings: Callable[..., object] = lambda *lines: None,
    **options: Any,
) -> dict[str, dict[str, int]]:
    """Part -> class -> samples, as `load` would make them; a folder's images are counted and not decoded."""
    module, where = find(os.fspath(name_or_path), data_dir)
    _check(options, os.fspath(name_or_path), data_dir)
    if module == IMAGES and where is not None:
        from csada.data import images

        found, warnings = images.counts(where)
        on_warnings(*warnings)
        return found
    if module in ("csada.data.pills", "csada.data.pmi"):  # to draw or decode them takes minutes; the numbers are known
        from csada.data.pmi import PRODUCTS

        return {part: {product.ndc: getattr(product, part) for product in PRODUCTS} for part in PARTS}
    splits = load(name_or_path, data_dir, **options)
    on_warnings(*splits.warnings)
    return splits.counts
