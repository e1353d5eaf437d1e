"""CIFAR-10 from its Python batches, in a folder or still in the archive, without trusting them.

The batches are pickles, and a pickle can run code. They are read as data: bytes and numbers are taken from where they
should be, and the array is made here. An archive of the same pictures as JPEG files is read too, under a name that says so.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from csada.bounds import check, most
from csada.data.augment import Augmentation, Normalization
from csada.data.cache import Encoded, decode, stamp
from csada.data.fetch import Progress, missing, places
from csada.data.pickled import Built, Call, Name, read
from csada.data.splits import Part, Splits, hold_out, scaled
from csada.errors import InputError, explained
from csada.files import StrPath, read_bytes, regular

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NORMALIZATION = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), scale=255)
AUGMENTATION = Augmentation(padding=4, flip=True)
FOLDER, ARCHIVE, JPEG_ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10-jpeg.tar.xz"
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")  # until and since NumPy 2
NAMES = (*RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")
DAMAGED = (  # what reading a damaged archive or pickle raises
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError),
    *(tarfile.TarError, lzma.LZMAError, zlib.error),
)
TRAIN, TEST = tuple(f"data_batch_{n}" for n in range(1, 6)), ("test_batch",)

Labelled = tuple[Tensor, Tensor]


def load(
    data_dir: StrPath | None = None,
    scale: float = 1.0,
    seed: int = 0,
    validation: float = 5000,
    on_progress: Progress | None = None,
) -> Splits:
    """`validation`, a count (int) or a fraction (float), is cut from the 50,000 training images."""
    path = _find(data_dir)
    if path.name == JPEG_ARCHIVE:
        name = "CIFAR-10 (JPEG)"
        train, test = _read_jpegs(path, on_progress)
    else:
        name = "CIFAR-10"
        train, test = _read_batches(path)
    whole = Part(*train, NORMALIZATION, AUGMENTATION)
    kept, held_out = (whole.take(index) for index in hold_out(whole.y.numpy(), validation, seed))
    return scaled(Splits(kept, held_out, Part(*test, NORMALIZATION), CLASSES, name), scale, seed)


def _find(data_dir: StrPath | None) -> Path:
    for folder in (place / inner for place in places(data_dir) for inner in ("", "cifar10")):
        if (folder / TEST[0]).is_file():
            return folder
        for path in (folder / FOLDER, folder / ARCHIVE, folder / JPEG_ARCHIVE):
            if path.is_file() or path.is_dir():
                return path
    raise missing("cifar10", f"the folder {FOLDER} or the file {ARCHIVE}", data_dir)


def _read_batches(path: Path) -> tuple[Labelled, Labelled]:
    """From the files of a folder, or from those of an archive in memory: nothing is extracted."""
    unpacked = () if path.is_dir() else _unpacked(path)
    packed = {file: content for name, content in unpacked if (file := Path(name).name) in TRAIN + TEST}

    def content(name: str) -> bytes:
        if path.is_file() and name not in packed:
            raise InputError(f"{path} has no {name}; download it again")
        with explained(f"{path / name} cannot be read", "download CIFAR-10 again"):
            return packed[name] if path.is_file() else read_bytes(path / name, most("archive"))

    def joined(names: tuple[str, ...]) -> Labelled:
        images, labels = zip(*(_batch(content(name), path / name) for name in names), strict=True)
        return torch.cat(images), torch.cat(labels)

    return joined(TRAIN), joined(TEST)


class _Bounded:
    """A file that ends with an error after so many bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.found = file, 0

    def read(self, count: int) -> bytes:
        found = self.file.read(count)
        self.found += len(found)
        check("archive", self.found, "unpacks to more bytes than CIFAR-10", more=True)
        return found


def _unpacked(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of its files, in order."""
    try:
        with regular(archive).open("rb") as packed:
            magic = packed.read(2)
        unpack: Any = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open}.get(magic, open)
        with unpack(archive, "rb") as file, tarfile.open(fileobj=_Bounded(file), mode="r|") as tar:  # type: ignore[call-overload]
            for count, member in enumerate(tar, start=1):
                check("members", count, "holds more files than CIFAR-10", more=True)
                if member.isdir():
                    continue
                content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if content is None:
                    raise InputError(f"holds {member.name[:80]!r}, which is no plain file; download it again")
                yield member.name, content.read()
    except InputError as error:
        raise InputError(f"{archive} {error}") from None
    except DAMAGED as error:
        raise InputError(f"{archive} is damaged ({str(error)[:200]}); download it again") from None


def _batch(raw: bytes, path: Path) -> Labelled:
    """(images [N, 3, 32, 32] uint8, labels [N])."""
    try:
        content = read(raw, NAMES)
        data, labels = _rows(content[b"data"]), content[b"labels"]
    except InputError as error:
        raise InputError(f"{path} {error}") from None
    except DAMAGED as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise InputError(f"{path} is damaged ({why}); download CIFAR-10 again") from None
    if data is None or type(labels) is not list or not all(type(y) is int and 0 <= y < 10 for y in labels):
        raise InputError(f"{path} does not hold rows of 3,072 bytes and labels from 0 to 9; download CIFAR-10 again")
    if len(data) != len(labels):
        raise InputError(f"{path} has {len(labels):,} labels for {len(data):,} images; download CIFAR-10 again")
    return torch.from_numpy(data), torch.tensor(labels, dtype=torch.int64)


def _rows(array: object) -> NDArray[np.uint8] | None:
    """[N, 3, 32, 32], if this is how NumPy describes N rows of 3,072 bytes, one after the other."""
    match array:
        case Built(
            Call(Name(function), (Name("numpy ndarray"), (0,), b"b" | "b")),
            (
                1,
                (int(count), 3072),
                Built(Call(Name("numpy dtype"), (b"u1" | "u1", 0, 1)), (3, b"|" | "|", None, None, None, -1, -1, 0)),
                0,
                bytes(pixels),
            ),
        ) if function in RECONSTRUCT and len(pixels) == 3072 * count:
            return np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32).copy()  # a copy: bytes cannot be written to
    return None


def _read_jpegs(archive: Path, on_progress: Progress | None) -> tuple[Labelled, Labelled]:
    """train/<class>/NNNN.jpg and test/<class>/NNNN.jpg, by way of the cache of decoded images."""
    decoded = decode([str(archive.resolve()), *stamp(archive)], lambda: _jpegs_of(archive), 32, on_progress)
    if decoded.skipped:
        raise InputError(f"{archive}: {decoded.skipped[0]}; download it again")
    y = torch.tensor([CLASSES.index(name.split("/")[1]) for name in decoded.names])
    tests = sum(name.startswith("test/") for name in decoded.names)  # sorted by name, they come before train/
    return (decoded.images[tests:], y[tests:]), (decoded.images[:tests], y[:tests])


def _jpegs_of(archive: Path) -> list[Encoded]:
    files = {name.removeprefix("./"): content for name, content in _unpacked(archive)}
    for name in files:
        part, *rest = name.split("/")
        if part not in ("train", "test") or len(rest) != 2 or rest[0] not in CLASSES:
            raise InputError(f"{archive} holds {name!r}; expected train/<class>/<file>.jpg and test/<class>/<file>.jpg")
    return [(name, partial(files.__getitem__, name)) for name in sorted(files)]
