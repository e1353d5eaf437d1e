"""Any folder of images sorted by class: train, valid and test folders of class folders, or class folders to be split.

An image's own content decides its part, so adding, removing or renaming others never moves it from one to another.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from csada.data.cache import file_ids
from csada.data.fetch import Progress
from csada.data.splits import PARTS, Splits, by_content, repeated, some_of
from csada.errors import InputError, RunError, explained
from csada.files import StrPath, printable, settled, uninterrupted
from csada.folders import OWN, beside, locked
from csada.pixels import SUFFIXES
from csada.tars import VALIDATION

Parts = dict[str, list[str]]  # part -> paths "[part/]class/file", relative to the folder


@dataclass(frozen=True)
class Listing:
    """Which image is in which part, and what is odd about that."""

    parts: Parts
    ids: dict[str, int]  # path -> hash of the content
    warnings: tuple[str, ...]


def save(splits: Splits, path: StrPath, on_progress: Progress | None = None) -> Path:
    """The images as PNG files, train, valid and test folders of class folders: what `load` reads. Whole, or not at all."""
    target = Path(path)
    if splits.train.x.ndim != 4 or splits.train.x.dtype != torch.uint8:
        raise InputError(f"{splits.name} holds no images of bytes; only those can be written as files")
    if bad := [name for name in splits.classes if not name or name.startswith(".") or {"/", os.sep, "\0"} & set(name)]:
        raise InputError(f"the class {bad[0]!r} cannot name a folder; rename it")
    if target.exists():
        raise InputError(f"{target} is there already; remove it, or choose another folder")
    half = beside(target)
    parts = {"train": splits.train, "valid": splits.validation, "test": splits.test}
    total, done = sum(map(len, parts.values())), 0
    with explained(f"cannot write {target}", "nothing is left of it", RunError), locked(half) as mine:
        if not mine:
            raise InputError(f"{target} is in use by another run of csada; wait for it, or choose another folder")
        try:
            for name, part in parts.items():
                shutil.rmtree(half / name, ignore_errors=True)  # by a run that was killed
                for label in splits.classes:
                    (half / name / label).mkdir(parents=True)
                for i, y in enumerate(part.y.tolist()):
                    pixels = part.x[i].permute(1, 2, 0).squeeze(2).numpy()
                    Image.fromarray(pixels).save(half / name / splits.classes[y] / f"{i:06}.png")
                    done += 1
                    if on_progress and done % 100 == 0:
                        on_progress(done, total)
            settled(half, target)
        finally:
            with uninterrupted():
                shutil.rmtree(half, ignore_errors=True)
                shutil.rmtree(target / OWN, ignore_errors=True)
    return target


def listed(root: Path, validation: float = 0.1, seed: int = 0) -> Listing:
    """The parts that `load` makes; no image is decoded."""
    folders = _folders(root)
    given = {"train", "test"} & set(folders)
    parts = _given_parts(root, folders) if given else {"": images_by_class(root, "")}
    paths = [path for part in parts.values() for path in part]
    found = arranged(root, parts, file_ids(root, paths), validation, seed)
    if given and (others := sorted(set(folders) - {"train", "test", *VALIDATION})):
        left = f"{root}: left out {some_of(others)}, which is neither train, test nor validation"
        found = replace(found, warnings=(*found.warnings, left))
    return found


def arranged(root: StrPath, parts: Parts, ids: NDArray[np.uint64], validation: float, seed: int) -> Listing:
    """Images of the parts that are given, or of one without a name, which is split; ids in the same order."""
    given = "" not in parts
    paths = [path for part in parts.values() for path in part]
    id_of = dict(zip(paths, ids.tolist(), strict=True))
    warnings = []
    if same := repeated(ids, paths.__getitem__, [class_of(path) for path in paths]):
        warnings.append(f"{root}: the same image in two classes: {same}; keep the right one")
    if same := repeated(ids, paths.__getitem__, [part for part, members in parts.items() for _ in members]):
        warnings.append(f"{root}: the same image in two parts: {same}; keep each in one part")

    def split(paths: list[str], shares: dict[str, float]) -> Parts:
        indices = by_content(np.array([id_of[path] for path in paths], np.uint64), list(shares.values()), seed)
        return {part: [paths[i] for i in index] for part, index in zip(shares, indices, strict=True)}

    if not given:
        parts = split(paths, dict(zip(PARTS, (60, 20, 20), strict=True)))
    elif "validation" not in parts:
        if not 0 < validation < 1:  # a count would move images when others are added
            raise InputError(f"validation={validation}; give a fraction between 0 and 1")
        parts = parts | split(parts["train"], {"train": 1 - validation, "validation": validation})
    return Listing(parts, id_of, tuple(warnings))


def _given_parts(root: Path, folders: list[str]) -> Parts:
    """What is in the folders train and test, and in one for validation if there is one."""
    for needed in ("train", "test"):
        if needed not in folders:
            raise InputError(
                f"{root} has no folder {needed} beside {some_of(folders)}; add it, or keep class folders alone"
            )
    given = [name for name in folders if name in VALIDATION]
    if len(given) > 1:
        raise InputError(f"{root} has several validation folders: {', '.join(given)}; keep one")
    names = {"train": "train", **({"validation": given[0]} if given else {}), "test": "test"}
    return {part: images_by_class(root, name) for part, name in names.items()}


def images_by_class(root: Path, part: str) -> list[str]:
    """Relative paths of the images in the class folders of a part, sorted."""
    found: list[str] = []
    for label in _folders(root / part):
        names = [entry.name for entry in _entries(root / part / label) if Path(entry.name).suffix.lower() in SUFFIXES]
        if not names:
            raise InputError(f"the class folder {root / part / label} holds no images; fill it or remove it")
        found += [f"{part}/{label}/{name}".lstrip("/") for name in names]
    if not found:
        loose = [entry.name for entry in _entries(root / part) if entry.suffix.lower() in SUFFIXES]
        held = f"{len(loose):,} images but no class folders" if loose else "no images"
        example = root / part / "cat" / (loose[0] if loose else "0001.jpg")
        raise InputError(f"{root / part} holds {held}; put them into one folder per class, as in {example}")
    return found


def class_of(path: str) -> str:
    return path.split("/")[-2]


def _folders(folder: Path) -> list[str]:
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    if bad := [name for name in names if printable(name) != name]:
        raise InputError(f"the folder {folder / bad[0]} has a name that is no plain text in UTF-8; rename it")
    return names


def _entries(folder: Path) -> list[Path]:
    """What the folder holds, sorted, but for hidden files."""
    with explained(f"{folder} cannot be read", "make it a readable folder"):
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
