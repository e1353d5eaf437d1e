"""MNIST from its four IDX files, gzipped or not: a magic number, the sizes of the axes, then one byte per value."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from csada.bounds import check
from csada.data.augment import Augmentation, Normalization
from csada.data.fetch import missing, places
from csada.data.splits import Part, Splits, hold_out, scaled
from csada.errors import InputError
from csada.files import StrPath, regular

NORMALIZATION = Normalization(mean=(0.1307,), std=(0.3081,), scale=255)
AUGMENTATION = Augmentation(padding=2)
FOLDERS = ("", "mnist", "MNIST/raw")
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def load(data_dir: StrPath | None = None, scale: float = 1.0, seed: int = 0, validation: float = 5000) -> Splits:
    """`validation`, a count (int) or a fraction (float), is cut from the 60,000 training images."""
    folder = _find(data_dir)
    whole, test = (_part(folder, prefix) for prefix in ("train", "t10k"))
    train, held_out = (whole.take(index) for index in hold_out(whole.y.numpy(), validation, seed))
    return scaled(Splits(train, held_out, test, tuple("0123456789"), "MNIST"), scale, seed)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes that the file holds."""
    header = 4 + 4 * dimensions
    try:
        with regular(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            start = file.read(header)
            if len(start) < header or start[:4] != bytes((0, 0, 8, dimensions)):
                raise InputError(
                    f"{path} begins with {start[:4].hex(' ')}, not 00 00 08 {dimensions:02x}: it is not an IDX file with "
                    f"{dimensions} {'axis' if dimensions == 1 else 'axes'}; check that the file has the right name"
                )
            shape = np.frombuffer(start, ">u4", offset=4).tolist()
            expected, count = " x ".join(map(str, shape)), math.prod(shape)
            check("archive", count, f"{path} announces {expected} values; MNIST has 47 million")
            values = file.read(count)
            more = file.read(1)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); download it again") from None
    if more or len(values) < count:
        held = "more" if more else f"{len(values):,}"
        raise InputError(f"{path} announces {expected} values but holds {held}; download it again")
    return np.frombuffer(values, np.uint8).reshape(shape).copy()  # a copy: torch warns about what cannot be written to


def _find(data_dir: StrPath | None) -> Path:
    for folder in (place / inner for place in places(data_dir) for inner in FOLDERS):
        if all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in FILES):
            return folder
    raise missing("mnist", f"the files {', '.join(FILES)} (with or without .gz)", data_dir)


def _part(folder: Path, prefix: str) -> Part:
    images_path, labels_path = (
        plain if (plain := folder / f"{prefix}-{kind}-ubyte").is_file() else plain.with_name(f"{plain.name}.gz")
        for kind in ("images-idx3", "labels-idx1")
    )
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise InputError(f"{labels_path} has {len(labels):,} labels for the {len(images):,} images of {images_path}")
    if labels.max(initial=0) > 9:
        raise InputError(f"{labels_path} has the label {labels.max()}; MNIST has the digits 0 to 9")
    augmentation = AUGMENTATION if prefix == "train" else Augmentation()
    return Part(torch.from_numpy(images)[:, None], torch.from_numpy(labels).long(), NORMALIZATION, augmentation)
