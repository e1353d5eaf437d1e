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
from typing import IO, Any

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
    folder, key = _entry(["content", _identity(root, paths)])
    file = folder / f"{key}.ids"
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile):
        if len(ids := np.load(file)) == len(paths):
            return np.asarray(ids)

    def content(path: str) -> bytes:
        try:
            return hashed([read_bytes(root / path)])
        except OSError as error:
            raise _unreadable(path, error) from None

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # files are read and hashed outside the interpreter's lock
        ids = as_ids(b"".join(pool.map(content, paths)))
    with contextlib.suppress(OSError), _renamed(file) as out:  # a cache that cannot be written costs time alone
        np.save(out, ids)
    return ids


def _identity(root: Path, paths: Sequence[str]) -> list[Any]:
    identity: list[Any] = [str(root.resolve())]
    for path in paths:
        try:
            stat = (root / path).stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        identity.append([path, stat.st_size, stat.st_mtime_ns])
    return identity


def _entry(identity: Sequence[Any]) -> tuple[Path, str]:
    """The folder of the cache, and the name under which it keeps what is known by `identity`."""
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return Path(os.environ.get("CSADA_CACHE") or user_cache() / "decoded"), key


def decode(
    identity: Sequence[Any], images: Callable[[], Sequence[Encoded]], size: int, on_progress: Progress | None = None
) -> Decoded:
    """The images as squares of `size` pixels: from the cache when `identity` was seen before, else from `images()`."""
    settings = ["centre crop", "bilinear", size, VERSION]
    folder, key = _entry([settings, identity])
    found = _read(folder, key)
    if found is None:
        _build(folder, key, images(), size, on_progress)
        found = _read(folder, key)
    if found is None:
        raise RunError(f"the cache written to {folder} cannot be read back; set CSADA_CACHE to another folder")
    return found


def _read(folder: Path, key: str) -> Decoded | None:
    """None when there is no such entry, or not a whole one."""
    try:
        images = np.load(folder / f"{key}.npy", mmap_mode="c")
        with (folder / f"{key}.npz").open("rb") as file, np.load(file) as index:
            names, skipped = (tuple(index[part].tolist()) for part in ("names", "skipped"))
            return Decoded(torch.from_numpy(images), names, skipped, index["moments"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _build(folder: Path, key: str, images: Sequence[Encoded], size: int, on_progress: Progress | None) -> None:
    names: list[str] = []
    skipped: list[str] = []
    moments: list[NDArray[np.int64]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Threads: Pillow decodes outside the interpreter's lock, and nothing has to be copied between processes.
        with _renamed(folder / f"{key}.npy") as out, ThreadPoolExecutor(os.cpu_count()) as pool:
            # Written, not mapped: on a full disk a write fails, but a store to a mapped page kills the process.
            _write_header(out, (len(images), 3, size, size))
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
            with _renamed(folder / f"{key}.npz") as index:  # first: an entry is whole once the pixels have their name
                table = np.array(moments, np.int64).reshape(-1, 2, 3)
                np.savez(index, names=np.array(names, str), skipped=np.array(skipped, str), moments=table)
    except OSError as error:
        raise RunError(
            f"the decoded images cannot be written to {folder}: {error.strerror or error}; they need "
            f"{len(images) * 3 * size**2 / 1e6:,.0f} MB there: free them, or set CSADA_CACHE to another folder"
        ) from None


def _decode_one(image: Encoded, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | str:
    """Pixels and their moments, or why there are none."""
    name, read = image
    try:
        encoded = read()
    except OSError as error:
        raise _unreadable(name, error) from None  # not a broken image: to be put right, not remembered as broken
    try:
        pixels = square(encoded, size)
    except UnidentifiedImageError:  # its own words name an object in memory
        return "not an image that Pillow knows"
    except Exception as error:  # a broken file makes Pillow raise almost anything
        return str(error) or type(error).__name__
    wide = pixels.reshape(3, -1).astype(np.int64)
    return pixels, np.stack([wide.sum(1), (wide**2).sum(1)])


def _unreadable(name: str, error: OSError) -> InputError:
    return InputError(f"{name} cannot be read: {error.strerror}; make it a readable file or take it away")


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
