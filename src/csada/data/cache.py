"""Images are decoded once, in parallel, into a file of uint8 pixels that is mapped into memory ever after.

The file's name is a hash of what was decoded and how, so a change makes another file and nothing is ever stale. Every
builder writes under a name of its own and renames at the end: two builders at once do the work twice and agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from torch import Tensor

from csada.bounds import most
from csada.data.fetch import Progress, user_cache
from csada.data.splits import as_ids, hashed
from csada.errors import InputError, RunError
from csada.files import read_bytes, regular, sweep, whole
from csada.pixels import square

VERSION = 4  # raised when the pixels or the layout of the files change
CHUNK = 256  # images decoded between two writes

T = TypeVar("T")
Encoded = tuple[str, Callable[[], bytes]]  # an image's name, and how its bytes are read


@dataclass(frozen=True)
class Decoded:
    """Pixels of the images that could be decoded, in the order given, and the names of those that could not."""

    images: Tensor  # [N, 3, size, size] uint8, mapped from the file
    names: tuple[str, ...]  # [N]
    skipped: tuple[str, ...]  # "name: why"
    moments: NDArray[np.int64]  # [N, 2, 3]: each image's sums of x and of x^2 by channel

    def channel_statistics(self, rows: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(mean, standard deviation) by channel of these images, in [0, 1], without reading a pixel."""
        pixels = len(rows) * self.images.shape[-1] ** 2
        mean, square = self.moments[rows].sum(0) / pixels
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        # a constant channel keeps its scale: dividing by zero would make it NaN
        return tuple((mean / 255).tolist()), tuple((np.where(deviation > 0, deviation, 255) / 255).tolist())


def decode_files(root: Path, paths: Sequence[str], size: int, on_progress: Progress | None = None) -> Decoded:
    """Image files under `root`, named by relative paths, known by these, their sizes and their times of change."""
    identity = _identity(root, paths)
    return decode(
        identity, lambda: [(path, partial(read_bytes, root / path, most("image"))) for path in paths], size, on_progress
    )


def file_ids(root: Path, paths: Sequence[str]) -> NDArray[np.uint64]:
    """[N]: a hash of the content of each file, computed once; the files are known as in `decode_files`."""
    file = entry(["content", _identity(root, paths)]).with_suffix(".ids")
    if (known := _sealed(file)) is not None and len(known) == 8 * len(paths):
        return as_ids(known)

    def content(path: str) -> bytes:
        return hashed([_readable(path, partial(read_bytes, root / path, most("image")))])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # files are read and hashed outside the interpreter's lock
        ids = as_ids(b"".join(pool.map(content, paths)))
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
        _seal(file, ids.tobytes())
    return ids


def _seal(path: Path, content: bytes) -> None:
    """A file that begins with the hash of the rest."""
    with whole(path) as partial:
        partial.write_bytes(hashlib.sha256(content).digest() + content)


def _sealed(path: Path) -> bytes | None:
    """None where there is none, or a damaged one."""
    try:
        found = read_bytes(path, most("weights"))
    except OSError:
        return None
    return found[32:] if hashlib.sha256(found[32:]).digest() == found[:32] else None


def _identity(root: Path, paths: Sequence[str]) -> list[Any]:
    return [str(root.resolve()), *([path, *_readable(path, partial(stamp, root / path))] for path in paths)]


def stamp(path: Path) -> tuple[int, int]:
    """What changes when a file changes: its size and its time."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _readable(name: str, read: Callable[[], T]) -> T:
    """What is read; a file that is there but cannot be read is to be put right, not remembered as a broken image."""
    try:
        return read()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; make it a readable file or take it away") from None


def entry(identity: Sequence[Any], kind: str = "decoded") -> Path:
    """Where the cache keeps what is known by `identity`; the name lacks its ending."""
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return Path(os.environ.get("CSADA_CACHE") or user_cache() / kind) / key


def decode(
    identity: Sequence[Any], images: Callable[[], Sequence[Encoded]], size: int, on_progress: Progress | None = None
) -> Decoded:
    """The images as squares of `size` pixels: from the cache when `identity` was seen before, else from `images()`."""
    place = entry([["centre crop", "bilinear", size, VERSION], identity])
    found = _read(place, size)
    if found is None:
        with contextlib.suppress(OSError):  # there is none yet
            sweep(place.parent)
        _build(place, images(), size, on_progress)
        found = _read(place, size)
    if found is None:
        raise RunError(f"the cache written to {place.parent} cannot be read back; set CSADA_CACHE to another folder")
    return found


def _read(place: Path, size: int) -> Decoded | None:
    """None when there is no such entry, or not a whole one."""
    if (index := _sealed(place.with_suffix(".npz"))) is None:
        return None
    with np.load(io.BytesIO(index)) as found:
        names, skipped = (tuple(found[part].tolist()) for part in ("names", "skipped"))
        moments = found["moments"]
    images = mapped(place.with_suffix(".npy"), len(names), size)
    return None if images is None else Decoded(images, names, skipped, moments)


def mapped(path: Path, count: int, size: int) -> Tensor | None:
    """[count, 3, size, size]: what `pixel_file` wrote, mapped from the disk; None where it is not whole."""
    shape, header = (count, 3, size, size), io.BytesIO()
    _write_header(header, shape)
    start = header.tell()
    try:
        with regular(path).open("rb") as file:
            if file.read(start) != header.getvalue() or path.stat().st_size != start + math.prod(shape):
                return None
        if not count:
            return torch.empty(shape, dtype=torch.uint8)
        return torch.from_numpy(np.memmap(path, np.uint8, "c", start, shape))
    except OSError:
        return None


def _build(place: Path, images: Sequence[Encoded], size: int, on_progress: Progress | None) -> None:
    names: list[str] = []
    skipped: list[str] = []
    moments: list[NDArray[np.int64]] = []
    # Threads: Pillow decodes outside the interpreter's lock, and nothing has to be copied between processes.
    with (
        pixel_file(place.with_suffix(".npy"), len(images), size) as out,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for start in range(0, len(images), CHUNK):
            chunk = images[start : start + CHUNK]
            results = pool.map(lambda image: _decode_one(image, size), chunk)
            for (name, _), result in zip(chunk, results, strict=True):
                if isinstance(result, str):
                    skipped.append(f"{name}: {result}")
                else:
                    names.append(name)
                    out.write(result[0].data)
                    moments.append(result[1])
            if on_progress is not None:
                on_progress(start + len(chunk), len(images))
        out.seek(0)
        _write_header(out, (len(names), 3, size, size))  # as many as could be decoded
        table, index = np.array(moments, np.int64).reshape(-1, 2, 3), io.BytesIO()
        np.savez(index, names=np.array(names, str), skipped=np.array(skipped, str), moments=table)
        _seal(place.with_suffix(".npz"), index.getvalue())  # first: an entry is whole once the pixels have their name


@contextlib.contextmanager
def pixel_file(path: Path, count: int, size: int) -> Iterator[IO[bytes]]:
    """An .npy file to which [count, 3, size, size] bytes are written, whole or not at all.

    Written, not mapped: on a full disk a write fails, but a store to a mapped page kills the process.
    """
    try:
        with whole(path) as partial, partial.open("wb") as out:
            _write_header(out, (count, 3, size, size))
            yield out
    except OSError as error:
        raise RunError(
            f"the images cannot be written to {path.parent}: {error.strerror or error}; they need "
            f"{count * 3 * size**2 / 1e6:,.0f} MB there: free them, or set CSADA_CACHE to another folder"
        ) from None


def _decode_one(image: Encoded, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | str:
    """Pixels and their moments, or why there are none."""
    encoded = _readable(*image)
    try:
        pixels = square(encoded, size)
    except UnidentifiedImageError:  # its own words name an object in memory
        return "not an image that Pillow knows"
    except Exception as error:  # a broken file makes Pillow raise almost anything
        return str(error) or type(error).__name__
    wide = pixels.reshape(3, -1).astype(np.int64)
    return pixels, np.stack([wide.sum(1), (wide**2).sum(1)])


def _write_header(out: IO[bytes], shape: tuple[int, ...]) -> None:
    """The .npy header; NumPy leaves room in it for the first axis to change its number of digits."""
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
