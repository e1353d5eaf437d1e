"""Any folder of images sorted by class: train, valid and test folders of class folders, or class folders to be split.

An image's own content decides its part, so adding, removing or renaming others never moves it from one to another.
Up to IN_MEMORY bytes of pixels are copied from the cache of decoded images, which is the same for every seed. Of more, the
cache holds one part after the other, so that each is a block of it and stays mapped from the disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from csada.bounds import check
from csada.data.augment import Augmentation, Normalization
from csada.data.cache import Decoded, decode_files, file_ids
from csada.data.fetch import Progress
from csada.data.splits import (
    PARTS,
    Part,
    Splits,
    by_content,
    check_scale,
    proportional,
    repeated,
    some_of,
    unrepresented,
)
from csada.errors import InputError, RunError
from csada.files import StrPath, printable, regular, settled, uninterrupted
from csada.folders import OWN, beside, locked
from csada.pixels import SUFFIXES, opened

VALIDATION = ("valid", "validation", "val", "dev")

IN_MEMORY = 1 << 29
Parts = dict[str, list[str]]  # part -> paths "[part/]class/file", relative to the folder


@dataclass(frozen=True)
class Listing:
    """Which image is in which part, and what is odd about that."""

    parts: Parts
    ids: dict[str, int]  # path -> hash of the content
    warnings: tuple[str, ...]


def load(
    path: StrPath,
    scale: float = 1.0,
    seed: int = 0,
    size: int = 224,
    validation: float = 0.1,
    flip: bool = False,
    skip_bad: bool = False,
    on_progress: Progress | None = None,
) -> Splits:
    """Images are cut to their central square and resized to `size` pixels, once, and normalised by the training part.

    `validation` (a fraction) is cut from train when there are train and test folders only. Without either, the images
    are split 60/20/20, a class of n images to within a few times sqrt(n). `flip` mirrors training images: not for
    pictures in which left and right differ. `skip_bad` leaves out files that cannot be decoded and lists them in
    `Splits.skipped`.
    """
    root = Path(path)
    check_scale(scale)
    listing = listed(root, validation, seed)
    return assembled(root, listing, partial(decode_files, root), scale, seed, size, flip, skip_bad, on_progress)


def assembled(
    root: Path,
    listing: Listing,
    decode: Callable[[Sequence[str], int, Progress | None], Decoded],
    scale: float,
    seed: int,
    size: int,
    flip: bool,
    skip_bad: bool,
    on_progress: Progress | None,
    skipped: tuple[str, ...] = (),
) -> Splits:
    """The images of a listing, decoded; in two orders, as the head of this file says."""
    check_scale(scale)
    if size < 1:
        raise InputError(f"size must be at least 1 pixel, got {size}")
    parts = listing.parts
    classes = _checked_classes(root, parts)
    if scale < 1:  # before decoding: a tenth of the images takes a tenth of the time
        parts = {
            part: [paths[i] for i in proportional(_labels(paths, classes), round(scale * len(paths)), seed)]
            for part, paths in parts.items()
        }
    everything = [path for part in PARTS for path in parts[part]]
    if len(everything) * 3 * size**2 <= IN_MEMORY:
        place = {path: i for i, path in enumerate(listing.ids)}
        everything.sort(key=place.__getitem__)
    decoded = decode(everything, size, on_progress)
    if decoded.skipped:
        if not skip_bad:
            some = "; ".join(decoded.skipped[:10]) + ("; ..." if len(decoded.skipped) > 10 else "")
            raise InputError(
                f"{len(decoded.skipped)} of {len(everything):,} images in {root} cannot be decoded ({some}); "
                "replace them, or leave them out with --skip-bad (in Python: skip_bad=True)"
            )
        good = set(decoded.names)
        parts = {part: [path for path in paths if path in good] for part, paths in parts.items()}
        classes = _checked_classes(root, parts)
    row_of = {name: row for row, name in enumerate(decoded.names)}
    rows = {part: np.array([row_of[path] for path in paths]) for part, paths in parts.items()}
    normalization = Normalization(*decoded.channel_statistics(rows["train"]), scale=255)
    augmentation = Augmentation(padding=size // 16, flip=flip)
    train, validated, test = (
        Part(
            _take(decoded.images, rows[part]),
            torch.from_numpy(_labels(parts[part], classes)),
            normalization,
            augmentation if part == "train" else Augmentation(),
            content=np.array([listing.ids[path] for path in parts[part]], np.uint64),
            names=tuple(parts[part]),
        )
        for part in PARTS
    )
    warnings = (*listing.warnings, *_lacking(root, parts, classes))
    name = printable(root.resolve().name)
    return Splits(train, validated, test, classes, name, skipped=(*skipped, *decoded.skipped), warnings=warnings)


def counted(root: Path, parts: Parts) -> dict[str, dict[str, int]]:
    """Part -> class -> samples."""
    none = dict.fromkeys(_checked_classes(root, parts), 0)
    return {part: none | Counter(map(_class_of, paths)) for part, paths in parts.items()}


def shorter_side(path: StrPath, sample: int = 25) -> int:
    """The median over some of the images, in pixels; only their headers are read."""
    paths = _images_by_class(Path(path), "train" if (Path(path) / "train").is_dir() else "")
    sides = []
    for name in paths[:: -(-len(paths) // sample)]:
        # broken ones are found by `load`
        with contextlib.suppress(InputError, OSError), opened(regular(Path(path) / name)) as image:
            sides.append(min(image.size))
    return int(np.median(sides or [224]))


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
    try:
        with locked(half) as mine:
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
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror}; nothing is left of it") from None
    return target


def _take(images: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    first, last = int(rows[0]), int(rows[-1])
    if np.array_equal(rows, np.arange(first, last + 1)):
        return images[first : last + 1]  # a view: the pixels stay on the disk until they are used
    return images.index_select(0, torch.from_numpy(rows))


def listed(root: Path, validation: float = 0.1, seed: int = 0) -> Listing:
    """The parts that `load` makes; no image is decoded."""
    folders = _folders(root)
    given = {"train", "test"} & set(folders)
    parts = _given_parts(root, folders) if given else {"": _images_by_class(root, "")}
    paths = [path for part in parts.values() for path in part]
    found = arranged(root, parts, file_ids(root, paths), validation, seed)
    if given and (others := sorted(set(folders) - {"train", "test", *VALIDATION})):
        left = f"{root}: left out {some_of(others)}, which is neither train, test nor validation"
        found = replace(found, warnings=(*found.warnings, left))
    return found


def arranged(root: Path, parts: Parts, ids: NDArray[np.uint64], validation: float, seed: int) -> Listing:
    """Images of the parts that are given, or of one without a name, which is split; ids in the same order."""
    given = "" not in parts
    paths = [path for part in parts.values() for path in part]
    id_of = dict(zip(paths, ids.tolist(), strict=True))
    warnings = []
    if same := repeated(ids, paths.__getitem__, [_class_of(path) for path in paths]):
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
    return {part: _images_by_class(root, name) for part, name in names.items()}


def _images_by_class(root: Path, part: str) -> list[str]:
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


def _lacking(root: Path, parts: Parts, classes: tuple[str, ...]) -> Iterator[str]:
    labels = {part: _labels(paths, classes) for part, paths in parts.items()}
    for part, names in unrepresented(labels, classes).items():
        yield f"{root}: {part} has no image of {names}; add some{_or_split(root)}"


def _or_split(root: Path) -> str:
    return "" if (root / "train").is_dir() else ", or sort the images into train, valid and test folders yourself"


def _checked_classes(root: Path, parts: Parts) -> tuple[str, ...]:
    """The classes of train, after making sure that no other part has more and that no part is empty."""
    classes = sorted({_class_of(path) for path in parts["train"]})
    check("classes", len(classes), f"{root} has {len(classes):,} classes")
    if len(every := {_class_of(path) for paths in parts.values() for path in paths}) < 2:
        raise InputError(f"{root} has the single class {min(every)}; a classifier needs two or more")
    for part, paths in parts.items():
        if not paths:
            raise InputError(f"{root} has too few images: none are left for {part}; add some to every class")
        if unknown := sorted({_class_of(path) for path in paths} - set(classes)):
            raise InputError(
                f"{root}: {part} has images of {some_of(unknown)} but train has none; add some{_or_split(root)}"
            )
    return tuple(classes)


def _labels(paths: list[str], classes: tuple[str, ...]) -> NDArray[np.int64]:
    number = {name: n for n, name in enumerate(classes)}
    return np.array([number[_class_of(path)] for path in paths], np.int64)


def _class_of(path: str) -> str:
    return path.split("/")[-2]


def _folders(folder: Path) -> list[str]:
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    if bad := [name for name in names if printable(name) != name]:
        raise InputError(f"the folder {folder / bad[0]} has a name that is no plain text in UTF-8; rename it")
    return names


def _entries(folder: Path) -> list[Path]:
    """What the folder holds, sorted, but for hidden files."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; make it a readable folder") from None
