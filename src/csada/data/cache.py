"""Images are decoded once, in parallel, into a file of uint8 pixels that is mapped into memory ever after.

The file's name is a hash of what was decoded and how, so a change makes another file and nothing is ever stale. It is built
in pieces under another name, and renamed at the end. A piece is on the disk before the list of pieces names it, so a builder
that is killed loses the piece under way, and the next one goes on from there. A second builder at the same time writes a file
of its own: the two do the work twice and agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from csada.bounds import most
from csada.data.fetch import Progress
from csada.data.mapped import mapped, write_header
from csada.data.splits import as_ids, hashed
from csada.data.store import HALF, INDEX, PIECES, PIXELS, entry, full, lock, room
from csada.errors import InputError, RunError, explained
from csada.files import read_bytes, regular, sweep, synced, whole
from csada.pixels import square

VERSION = 4  # raised when the pixels or the layout of the files change
PIECE = 1 << 25  # bytes of pixels between two points from which a build can go on

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
    if (known := sealed(file)) is not None and len(known) == 8 * len(paths):
        return as_ids(known)

    def content(path: str) -> bytes:
        return hashed([_readable(path, partial(read_bytes, root / path, most("image")))])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # files are read and hashed outside the interpreter's lock
        ids = as_ids(b"".join(pool.map(content, paths)))
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
        seal(file, ids.tobytes())
    return ids


def seal(path: Path, content: bytes) -> None:
    """A file that begins with the hash of its kind and of the rest."""
    with whole(path) as partial:
        partial.write_bytes(_seal_of(path, content) + content)


def _seal_of(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.suffix.encode() + content).digest()


def sealed(path: Path) -> bytes | None:
    """None where there is none, or a damaged one, or one of another kind."""
    try:
        found = read_bytes(path, most("weights"))
    except OSError:
        return None
    return found[32:] if _seal_of(path, found[32:]) == found[:32] else None


def _identity(root: Path, paths: Sequence[str]) -> list[Any]:
    return [str(root.resolve()), *([path, *_readable(path, partial(stamp, root / path))] for path in paths)]


def stamp(path: Path) -> tuple[int, int]:
    """What changes when a file changes: its size and its time."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _readable(name: str, read: Callable[[], T]) -> T:
    """What is read; a file that is there but cannot be read is to be put right, not remembered as a broken image."""
    with explained(f"{name} cannot be read", "make it a readable file or take it away"):
        return read()


def decode(
    identity: Sequence[Any], images: Callable[[], Sequence[Encoded]], size: int, on_progress: Progress | None = None
) -> Decoded:
    """The images as squares of `size` pixels: from the cache when `identity` was seen before, else from `images()`."""
    place = entry([["centre crop", "bilinear", size, VERSION], identity])
    found = _read(place, size)
    if found is None:
        with contextlib.suppress(OSError):  # there is none yet
            sweep(place.parent)
        listed = images()
        with room(place, len(listed) * 3 * size**2):
            if (found := _read(place, size)) is None:  # else another builder, for which we waited, had the same in mind
                _build(place, listed, size, on_progress)
                found = _read(place, size)
    if found is None:
        raise RunError(f"the cache written to {place.parent} cannot be read back; set CSADA_CACHE to another folder")
    return found


def _read(place: Path, size: int) -> Decoded | None:
    """None when there is no such entry, or not a whole one."""
    if (index := sealed(place.with_suffix(INDEX))) is None:
        return None
    with np.load(io.BytesIO(index)) as found:
        names, skipped = (tuple(found[part].tolist()) for part in ("names", "skipped"))
        moments = found["moments"]
    images = mapped(place.with_suffix(PIXELS), len(names), size)
    return None if images is None else Decoded(images, names, skipped, moments)


@dataclass(frozen=True)
class _Piece:
    """Images one after the other: what of them is in the index."""

    seen: int  # images, decoded or skipped
    names: list[str]
    skipped: list[str]
    moments: list[list[list[int]]]

    def line(self) -> bytes:
        content = json.dumps([self.seen, self.names, self.skipped, self.moments]).encode()
        return hashlib.sha256(content).hexdigest().encode() + content + b"\n"

    @classmethod
    def of(cls, line: bytes) -> _Piece | None:
        digest, content = line[:64], line[64:].removesuffix(b"\n")
        return cls(*json.loads(content)) if hashlib.sha256(content).hexdigest().encode() == digest else None


def _build(place: Path, images: Sequence[Encoded], size: int, on_progress: Progress | None) -> None:
    half, needed, alone = place.with_suffix(HALF), len(images) * 3 * size**2, False
    pieces: list[_Piece] = []
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            out: IO[bytes] = stack.enter_context(os.fdopen(os.open(half, os.O_RDWR | os.O_CREAT, 0o666), "r+b"))
            # else another builder is at it, or has just given the file its name
            alone = lock(out) and half.exists() and os.path.samestat(os.fstat(out.fileno()), half.stat())
            if alone:
                pieces = _done(place, out, images, size)
            else:
                half = stack.enter_context(whole(place.with_suffix(PIXELS)))
                out = stack.enter_context(half.open("wb"))
                write_header(out, (0, 3, size, size))
            for piece in _decoded(images, sum(each.seen for each in pieces), size, out, on_progress):
                pieces.append(piece)
                if alone:
                    os.fsync(out.fileno())
                    with place.with_suffix(PIECES).open("ab") as log:
                        log.write(piece.line())
            _finish(place, out, pieces, size)
            if alone:
                os.replace(half, place.with_suffix(PIXELS))
                place.with_suffix(PIECES).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    synced(place.parent)
    except OSError as error:
        done = sum(each.seen for each in pieces)
        kept = f"; {done:,} of {len(images):,} are done and kept: the same command goes on from there" if done else ""
        raise full(place.parent, error.strerror or str(error), needed, kept) from None
    finally:
        if alone and not pieces:  # nothing to go on from
            for suffix in (HALF, PIECES):
                place.with_suffix(suffix).unlink(missing_ok=True)


def _done(place: Path, out: IO[bytes], images: Sequence[Encoded], size: int) -> list[_Piece]:
    """The pieces that a killed builder left; what it wrote beyond them is cut off."""
    start, pieces = io.BytesIO(), []
    write_header(start, (0, 3, size, size))
    length = out.seek(0, os.SEEK_END)
    with contextlib.suppress(FileNotFoundError), regular(place.with_suffix(PIECES)).open("rb") as log:
        end = start.tell()
        for line in log:
            piece = _Piece.of(line)
            if piece is None or (end := end + len(piece.names) * 3 * size**2) > length:
                break
            pieces.append(piece)
    with whole(place.with_suffix(PIECES)) as log:
        log.write_bytes(b"".join(piece.line() for piece in pieces))
    out.truncate(0 if not pieces else start.tell() + sum(len(piece.names) for piece in pieces) * 3 * size**2)
    out.seek(0, os.SEEK_END)
    if not pieces:
        out.write(start.getvalue())
    return pieces


def _decoded(
    images: Sequence[Encoded], first: int, size: int, out: IO[bytes], on_progress: Progress | None
) -> Iterator[_Piece]:
    """Decodes all from the `first` on and writes the pixels."""
    step = max(PIECE // (3 * size**2), 1)
    # Threads: Pillow decodes outside the interpreter's lock, and nothing has to be copied between processes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(first, len(images), step):
            chunk = images[start : start + step]
            piece = _Piece(len(chunk), [], [], [])
            results = pool.map(lambda image: _decode_one(image, size), chunk)
            for (name, _), result in zip(chunk, results, strict=True):
                if isinstance(result, str):
                    piece.skipped.append(f"{name}: {result}")
                else:
                    piece.names.append(name)
                    out.write(result[0].data)
                    piece.moments.append(result[1].tolist())
            out.flush()
            yield piece
            if on_progress is not None:
                on_progress(start + len(chunk), len(images))


def _finish(place: Path, out: IO[bytes], pieces: Sequence[_Piece], size: int) -> None:
    """The header says how many could be decoded. The index comes first: an entry is whole once the pixels have their name."""
    names = [name for piece in pieces for name in piece.names]
    skipped = [name for piece in pieces for name in piece.skipped]
    header = io.BytesIO()
    write_header(header, (len(names), 3, size, size))
    out.seek(0)
    out.write(header.getvalue())
    out.flush()
    os.fsync(out.fileno())
    table = np.array([row for piece in pieces for row in piece.moments], np.int64).reshape(-1, 2, 3)
    index = io.BytesIO()
    np.savez(index, names=np.array(names, str), skipped=np.array(skipped, str), moments=table)
    seal(place.with_suffix(INDEX), index.getvalue())


@contextlib.contextmanager
def pixel_file(path: Path, count: int, size: int) -> Iterator[IO[bytes]]:
    """An .npy file to which [count, 3, size, size] bytes are written, whole or not at all.

    Written, not mapped: on a full disk a write fails, but a store to a mapped page kills the process.
    """
    try:
        with whole(path) as partial, partial.open("wb") as out:
            write_header(out, (count, 3, size, size))
            yield out
    except OSError as error:
        raise full(path.parent, error.strerror or str(error), count * 3 * size**2) from None


def _decode_one(image: Encoded, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | str:
    """Pixels and their moments, or why there are none."""
    encoded = _readable(*image)
    try:
        pixels = square(encoded, size)
    except InputError as error:
        return str(error)
    except MemoryError as error:  # of the moment: not to be remembered as a broken image
        raise RunError(f"{image[0]} {error}; free some, or take the image away") from None
    wide = pixels.reshape(3, -1).astype(np.int64)
    return pixels, np.stack([wide.sum(1), (wide**2).sum(1)])
