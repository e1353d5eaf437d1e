"""Images are decoded once, in parallel, into a file of uint8 pixels that is mapped into memory ever after.

The file's name is a hash of what was decoded and how, so a change makes another file and nothing is ever stale. Every
builder writes under a name of its own and renames at the end: two builders at once do the work twice and agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
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

from csada.data.fetch import Progress, user_cache
from csada.data.splits import as_ids, hashed
from csada.errors import InputError, RunError
from csada.files import read_bytes, whole
from csada.pixels import square

VERSION = 3  # raised when the pixels or the layout of the files change
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
    return decode(identity, lambda: [(path, partial(read_bytes, root / path)) for path in paths], size, on_progress)


def file_ids(root: Path, paths: Sequence[str]) -> NDArray[np.uint64]:
    """[N]: a hash of the content of each file, computed once; the files are known as in `decode_files`."""
    file = entry(["content", _identity(root, paths)]).with_suffix(".ids")
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile):
        if len(ids := np.load(file)) == len(paths):
            return np.asarray(ids)

    def content(path: str) -> bytes:
        return hashed([_readable(path, partial(read_bytes, root / path))])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # files are read and hashed outside the interpreter's lock
        ids = as_ids(b"".join(pool.map(content, paths)))
    with contextlib.suppress(OSError), _renamed(file) as out:  # a cache that cannot be written costs time alone
        np.save(out, ids)
    return ids


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
    found = _read(place)
    if found is None:
        _build(place, images(), size, on_progress)
        found = _read(place)
    if found is None:
        raise RunError(f"the cache written to {place.parent} cannot be read back; set CSADA_CACHE to another folder")
    return found


def _read(place: Path) -> Decoded | None:
    """None when there is no such entry, or not a whole one."""
    try:
        images = np.load(place.with_suffix(".npy"), mmap_mode="c")
        with place.with_suffix(".npz").open("rb") as file, np.load(file) as index:
            names, skipped = (tuple(index[part].tolist()) for part in ("names", "skipped"))
            return Decoded(torch.from_numpy(images), names, skipped, index["moments"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
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
        with _renamed(place.with_suffix(".npz")) as index:  # first: an entry is whole once the pixels have their name
            table = np.array(moments, np.int64).reshape(-1, 2, 3)
            np.savez(index, names=np.array(names, str), skipped=np.array(skipped, str), moments=table)


@contextlib.contextmanager
def pixel_file(path: Path, count: int, size: int) -> Iterator[IO[bytes]]:
    """An .npy file to which [count, 3, size, size] bytes are written, whole or not at all.

    Written, not mapped: on a full disk a write fails, but a store to a mapped page kills the process.
    """
    try:
        with _renamed(path) as out:
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


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when all went well, and when it is on the disk."""
    with whole(path) as partial, partial.open("wb") as out:
        yield out
        out.flush()
        os.fsync(out.fileno())
