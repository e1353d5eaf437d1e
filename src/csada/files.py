"""Files that are there whole or not at all, however a process ends; and files that end."""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar
from uuid import uuid4

from csada.errors import InputError

TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")  # a name of `whole`, left by a process that was killed
MANY = 100  # files that wait for the disk one by one, milliseconds each; of more, the whole disk is waited for
TURNING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # what follows is shown in another order than it has
UNSEEN = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029, *TURNING], "\ufffd")  # but tabs

KINDS = {  # of files that commands write: a name, and what one of csada's begins with
    "page": ("page.html", re.compile(rb'<meta name="generator" content="csada">')),
    "table of decisions": (
        "decisions.csv",
        re.compile(
            rb"^(row|file),class,probability,expected_cost,refer|^id,predicted,expected_cost,referred"
            rb'|^{"(row|file)": ("([^"\\]|\\.)*"|\d+), "(class|error)": '
        ),
    ),
    "table of scores": ("scores.csv", re.compile(rb"^id,label,part,z:")),
    "table of frequencies": ("priors.csv", re.compile(rb"^class,frequency,period\n")),
    "JUnit file": ("check.xml", re.compile(rb'<testsuite name="csada check"')),
    "figure": ("figure.png", re.compile(rb"csada data show")),
    "record": ("record.json", re.compile(rb'^{\s+"datasets"')),
    "model": ("model.onnx", re.compile(rb"(?!)")),  # its description may be anywhere in it
}

StrPath = str | os.PathLike[str]
MaybePath = TypeVar("MaybePath", bound=Path | None)


def printable(text: str) -> str:
    """In one line, without what could steer a terminal, and without bytes that are no UTF-8: a file's name may hold both."""
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
    try:
        with partial.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # while somebody writes to it, nobody sweeps it away
            yield partial
            settled(partial, path)
    finally:
        with uninterrupted():
            partial.unlink(missing_ok=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for its end: what tidies up does so completely."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


def settled(partial: Path, path: Path, rename: Callable[[Path, Path], object] | None = None) -> None:
    """It gets its name: a file, or all that is in a folder, is on the disk before, and the name afterwards."""
    inside = [Path(root, name) for root, _, names in os.walk(partial) for name in (*names, ".")]
    for file in inside[:MANY] or [partial]:
        if not file.is_symlink():
            synced(file)
    if len(inside) > MANY:
        os.sync()
    (rename or os.replace)(partial, path)
    with suppress(OSError):  # not every file system can for a folder
        synced(path.parent)


def write_text(path: StrPath, text: str, errors: str = "strict") -> Path:
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", errors=errors)
    return Path(path)


def replaceable(path: MaybePath, kind: str, *, force: bool = False) -> MaybePath:
    """A file to write: not a folder, nor a file that is there and that csada did not write, unless by force.

    A project file of a stranger may name any. kind: of KINDS, by which a file is known as csada's; an empty one is nobody's.
    """
    if path is None:
        return path
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file to write, such as {path / KINDS[kind][0]}")
    if path.exists() and not force:
        start = read_start(path)
        with regular(path).open("rb") as file:
            ours = not start or KINDS[kind][1].search(start) or (kind == "model" and _holds(file.fileno(), b"csada"))
        if not ours:
            raise InputError(
                f"{path} is there already and not a {kind} of csada; --force overwrites it, or name another"
            )
    return path


def _holds(file: int, words: bytes) -> bool:
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as content:
        return content.find(words) >= 0


def regular(path: StrPath, largest: float = math.inf) -> Path:
    """The path of a plain file. OSError for a pipe or a device, which may never end, and for more than `largest` bytes."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if found.st_size > largest:
        raise OSError(errno.EFBIG, f"more than {largest:,} bytes", str(path))
    return Path(path)


def probe(folder: Path) -> None:
    """OSError now, where it cannot be made or written to, and not after the work."""
    with TemporaryFile(dir=next(each for each in (folder, *folder.parents) if os.path.lexists(each))):
        pass


def read_start(path: StrPath, count: int = 4096) -> bytes:
    with regular(path).open("rb") as file:
        return file.read(count)


def read_bytes(path: StrPath, largest: int = 1 << 30) -> bytes:
    try:
        return regular(path, largest).read_bytes()
    except MemoryError:
        raise OSError(errno.ENOMEM, "it does not fit into memory", str(path)) from None
