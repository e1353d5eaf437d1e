"""Images by class, in a folder or in tar shards, as a data set: decoded once, into the cache.

Up to IN_MEMORY bytes of pixels are copied from the cache of decoded images, which is the same for every seed. Of more, the
cache holds one part after the other, so that each is a block of it and stays mapped from the disk.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from csada import tars
from csada.bounds import check
from csada.data import folder, shards
from csada.data.augment import Augmentation, Normalization
from csada.data.cache import decode_files
from csada.data.fetch import Progress
from csada.data.folder import Parts, class_of
from csada.data.splits import PARTS, Part, Splits, check_scale, proportional, some_of, unrepresented
from csada.errors import InputError
from csada.files import StrPath, printable, regular
from csada.pixels import opened

IN_MEMORY = 1 << 29


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
    `Splits.skipped`; of a shard that is cut off it uses what is there.
    """
    check_scale(scale)
    if size < 1:
        raise InputError(f"size must be at least 1 pixel, got {size}")
    if tars.is_shards(str(path)):
        found = shards.gathered(str(path), skip_bad)
        listing, decode, cut = found.listing(validation, seed), found.decode, found.cut
    else:
        listing, decode, cut = folder.listed(Path(path), validation, seed), partial(decode_files, Path(path)), ()
    parts = listing.parts
    classes = _checked_classes(path, parts)
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
                f"{len(decoded.skipped)} of {len(everything):,} images in {path} cannot be decoded ({some}); "
                "replace them, or leave them out with --skip-bad (in Python: skip_bad=True)"
            )
        good = set(decoded.names)
        parts = {part: [path for path in paths if path in good] for part, paths in parts.items()}
        classes = _checked_classes(path, parts)
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
    absent = unrepresented({part: _labels(paths, classes) for part, paths in parts.items()}, classes)
    lacks = [f"{path}: {part} has no image of {names}; add some{_or_split(path)}" for part, names in absent.items()]
    name = printable(Path(path).resolve().name)
    return Splits(
        train, validated, test, classes, name, skipped=(*cut, *decoded.skipped), warnings=(*listing.warnings, *lacks)
    )


def counts(path: StrPath) -> tuple[dict[str, dict[str, int]], tuple[str, ...]]:
    """Part -> class -> samples, as `load` would make them; and its warnings. No image is decoded."""
    listing = shards.gathered(str(path)).listing() if tars.is_shards(str(path)) else folder.listed(Path(path))
    none = dict.fromkeys(_checked_classes(path, listing.parts), 0)
    return {part: none | Counter(map(class_of, paths)) for part, paths in listing.parts.items()}, listing.warnings


def shorter_side(path: StrPath, sample: int = 25) -> int:
    """The median over some of the images, in pixels; of files only the headers are read."""
    source: Callable[[str], Any]
    if tars.is_shards(str(path)):
        where, read = shards.gathered(str(path), skip_bad=True).where, tars.reader(ahead=0)
        names, source = list(where), lambda name: io.BytesIO(read(*where[name]))
    else:
        root = Path(path)
        names = folder.images_by_class(root, "train" if (root / "train").is_dir() else "")
        source = lambda name: regular(root / name)  # noqa: E731
    sides = []
    for name in names[:: -(-len(names) // sample)]:
        with suppress(InputError, OSError), opened(source(name)) as image:  # broken ones are found by `load`
            sides.append(min(image.size))
    return int(np.median(sides or [224]))


def _take(images: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    first, last = int(rows[0]), int(rows[-1])
    if np.array_equal(rows, np.arange(first, last + 1)):
        return images[first : last + 1]  # a view: the pixels stay on the disk until they are used
    return images.index_select(0, torch.from_numpy(rows))


def _or_split(path: StrPath) -> str:
    return "" if (Path(path) / "train").is_dir() else ", or sort the images into train, valid and test folders yourself"


def _checked_classes(path: StrPath, parts: Parts) -> tuple[str, ...]:
    """The classes of train, after making sure that no other part has more and that no part is empty."""
    classes = sorted({class_of(name) for name in parts["train"]})
    check("classes", len(classes), f"{path} has {len(classes):,} classes")
    if len(every := {class_of(name) for paths in parts.values() for name in paths}) < 2:
        raise InputError(f"{path} has the single class {min(every)}; a classifier needs two or more")
    for part, paths in parts.items():
        if not paths:
            raise InputError(f"{path} has too few images: none are left for {part}; add some to every class")
        if unknown := sorted({class_of(name) for name in paths} - set(classes)):
            raise InputError(
                f"{path}: {part} has images of {some_of(unknown)} but train has none; add some{_or_split(path)}"
            )
    return tuple(classes)


def _labels(paths: list[str], classes: tuple[str, ...]) -> NDArray[np.int64]:
    number = {name: n for n, name in enumerate(classes)}
    return np.array([number[class_of(path)] for path in paths], np.int64)
