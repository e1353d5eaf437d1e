"""CIFAR-10 from its Python batches, in a folder or still in the archive, without trusting them.

The batches are pickles, and a pickle can run code. The unpickler here admits the handful of names that an array of
bytes needs and nothing else. An archive of the same pictures as JPEG files is read too, under a name that says so.
"""

from __future__ import annotations

import io
import lzma
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from csada.data.augment import Augmentation, Normalization
from csada.data.cache import Encoded, decode
from csada.data.fetch import Progress, missing, places
from csada.data.splits import Part, Splits, hold_out, scaled
from csada.errors import InputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NORMALIZATION = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), scale=255)
AUGMENTATION = Augmentation(padding=4, flip=True)
FOLDER, ARCHIVE, JPEG_ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10-jpeg.tar.xz"
TRAIN, TEST = tuple(f"data_batch_{n}" for n in range(1, 6)), ("test_batch",)

Labelled = tuple[Tensor, Tensor]


def load(
    data_dir: str | os.PathLike[str] | None = None,
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


def _find(data_dir: str | os.PathLike[str] | None) -> Path:
    for folder in (place / inner for place in places(data_dir) for inner in ("", "cifar10")):
        if (folder / TEST[0]).is_file():
            return folder
        for path in (folder / FOLDER, folder / ARCHIVE, folder / JPEG_ARCHIVE):
            if path.exists():
                return path
    raise missing("cifar10", f"the folder {FOLDER} or the file {ARCHIVE}", data_dir)


def _read_batches(path: Path) -> tuple[Labelled, Labelled]:
    read = _files_of(path) if path.is_dir() else _members_of(path)
    train, test = ([_batch(read(name), path / name) for name in names] for names in (TRAIN, TEST))
    return _joined(train), _joined(test)


def _joined(batches: list[Labelled]) -> Labelled:
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def _files_of(folder: Path) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise InputError(f"{folder / name} cannot be read: {error.strerror}; download CIFAR-10 again") from None

    return read


def _members_of(archive: Path) -> Callable[[str], bytes]:
    """The batches of the archive, in memory: nothing is extracted."""
    batches: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in TRAIN + TEST and (file := tar.extractfile(member)) is not None:
                    batches[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{archive} is damaged ({error}); download it again") from None

    def read(name: str) -> bytes:
        if name not in batches:
            raise InputError(f"{archive} has no {name}; download it again")
        return batches[name]

    return read


def _batch(raw: bytes, path: Path) -> Labelled:
    """(images [N, 3, 32, 32] uint8, labels [N])."""
    try:
        content = ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        data, labels = content[b"data"], content[b"labels"]
    except InputError as error:
        raise InputError(f"{path} {error}") from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise InputError(f"{path} is damaged ({type(error).__name__}: {error}); download CIFAR-10 again") from None
    sound = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == 3 * 32 * 32
    if not (sound and isinstance(labels, list) and all(type(y) is int and 0 <= y < 10 for y in labels)):
        raise InputError(f"{path} does not hold rows of 3,072 bytes and labels from 0 to 9; download CIFAR-10 again")
    if len(data) != len(labels):
        raise InputError(f"{path} has {len(labels):,} labels for {len(data):,} images; download CIFAR-10 again")
    return torch.from_numpy(data.reshape(-1, 3, 32, 32)), torch.tensor(labels, dtype=torch.int64)


def _latin1(text: str, encoding: str) -> bytes:
    """How a pickle of protocol 2 writes bytes; other encodings have no business in these files."""
    if encoding != "latin1":
        raise InputError(f"asks for the encoding {encoding!r}; it is not CIFAR-10 and was not read")
    return text.encode("latin1")


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, numbers, strings and containers; refuses to look up anything else, so nothing can be run."""

    ADMITTED = {  # noqa: RUF012 - the base class has no annotations to say ClassVar beside
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise InputError(f"asks for {module}.{name}, which is no part of CIFAR-10; it was not read")
        return self.ADMITTED[module, name]


def _read_jpegs(archive: Path, on_progress: Progress | None) -> tuple[Labelled, Labelled]:
    """train/<class>/NNNN.jpg and test/<class>/NNNN.jpg, by way of the cache of decoded images."""
    stat = archive.stat()
    identity = [str(archive.resolve()), stat.st_size, stat.st_mtime_ns]
    decoded = decode(identity, lambda: _jpegs_of(archive), 32, on_progress)
    if decoded.skipped:
        raise InputError(f"{archive}: {decoded.skipped[0]}; download it again")
    y = torch.tensor([CLASSES.index(name.split("/")[1]) for name in decoded.names])
    tests = sum(name.startswith("test/") for name in decoded.names)  # sorted by name, they come before train/
    return (decoded.images[tests:], y[tests:]), (decoded.images[:tests], y[:tests])


def _jpegs_of(archive: Path) -> list[Encoded]:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and (file := tar.extractfile(member)) is not None:
                    files[member.name.removeprefix("./")] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{archive} is damaged ({error}); get it again") from None
    for name in files:
        part, *rest = name.split("/")
        if part not in ("train", "test") or len(rest) != 2 or rest[0] not in CLASSES:
            raise InputError(f"{archive} holds {name}; expected train/<class>/<file>.jpg and test/<class>/<file>.jpg")
    return [(name, partial(files.__getitem__, name)) for name in sorted(files)]
