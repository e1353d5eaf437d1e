"""Files that are there whole or not at all, however a process ends; and files that end."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4

TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  # a name of `whole`, left by a process that was killed
UNSEEN = dict.fromkeys(
    [*range(9), *range(11, 32), *range(127, 160)], "\ufffd"
)  # control characters, but tab and newline

StrPath = str | os.PathLike[str]


def printable(text: str) -> str:
    """Without what could steer a terminal, and without bytes that are no UTF-8: a file's name may hold both."""
    return text.translate(UNSEEN).encode("utf-8", "replace").decode()


@contextmanager
def whole(path: StrPath) -> Iterator[Path]:
    """A temporary name beside `path` to write under: it takes its real name if all goes well, and is removed if not.

    It is on the disk before it gets its name: a power cut leaves the old file or the new one.
    """
    path = Path(path)
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
    with partial.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # while somebody writes to it, nobody sweeps it away
        try:
            yield partial
            synced(partial)
            os.replace(partial, path)
            with suppress(OSError):  # not every file system can for a folder
                synced(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files, of all or of one name, of processes that were killed."""
    for entry in os.listdir(folder):
        if (found := TEMPORARY.fullmatch(entry)) and name in (None, found[1]):
            with suppress(OSError), regular(folder / entry).open("rb") as file:  # another one writes to it, or swept it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / entry).unlink(missing_ok=True)


def synced(path: Path) -> None:
    """Wait until it is on the disk: a file's content, or a folder's names."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_text(path: StrPath, text: str, errors: str = "strict") -> Path:
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", errors=errors)
    return Path(path)


def regular(path: StrPath, largest: float = math.inf) -> Path:
    """The path of a plain file. OSError for a pipe or a device, which may never end, and for more than `largest` bytes."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if found.st_size > largest:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes")
    return Path(path)


def probe(folder: Path) -> Path:
    """The folder, made where it is missing; OSError now, where it cannot be written to, and not after the work."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder):
        return folder


def read_start(path: StrPath, count: int = 4096) -> bytes:
    with regular(path).open("rb") as file:
        return file.read(count)


def read_bytes(path: StrPath, largest: int = 1 << 30) -> bytes:
    try:
        return regular(path, largest).read_bytes()
    except MemoryError:
        raise OSError(errno.ENOMEM, "it does not fit into memory") from None
