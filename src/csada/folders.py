"""The folder that a command writes: one run at a time works on it, and it goes from one complete state to the next.

While a run is under way the folder keeps what it had; the run's lock and its checkpoints are in its subfolder `.csada`. What
is new is written to `.NAME.csada` next to the folder NAME, and the two change places in one step. So whoever reads the folder,
or kills the run, finds the old files or the new ones, never some of each. Only these two are ever deleted, by their exact
names, and the files of OUTDATED and the weights that its model.json lists, which belong to the model that is replaced: all
other files stay.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from csada.errors import InputError, RunError, explained
from csada.files import settled, uninterrupted

CONFIG = "model.json"  # by which a folder of ours is known
OWN = ".csada"
LOCK = f"{OWN}/lock"
CHANGES = "CHANGES.md"
OUTDATED = ("README.md", "report.html", "model.onnx", CHANGES)
EXCHANGE, HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether the folder is ours now. Whoever holds a lock that is gone from its place holds nothing.

    A stranger's folder may hold anything in its place: a link is not followed, and a pipe not waited for.
    """
    own, lock = folder / OWN, folder / LOCK
    if own.is_symlink() or lock.is_symlink() or (lock.exists() and not lock.is_file()):
        raise InputError(f"{lock} is a link, a pipe or something else that csada did not put there; remove it")
    own.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            mine = os.path.samestat(os.fstat(file.fileno()), lock.stat())
        except (BlockingIOError, FileNotFoundError):
            mine = False
        yield mine


@contextmanager
def occupied(out: Path) -> Iterator[None]:
    """`out`, made where it is missing, for this run alone; a second one is refused."""
    with ExitStack() as held:
        with explained(f"cannot write to {out}", "give another --out"):
            mine = held.enter_context(locked(out))
        if not mine:
            raise InputError(f"{out} is in use by another run of csada; wait for it, or give another --out")
        yield


@contextmanager
def reserved(out: Path) -> Iterator[Path]:
    """The same for a folder that is replaced as a whole; what was made and stays empty is removed."""
    out = usable(out)
    new = not out.exists()
    with occupied(out):
        lock = (out / LOCK).stat()
        shutil.rmtree(beside(out), ignore_errors=True)  # by a run that was killed
        try:
            yield out
        finally:
            with uninterrupted(), suppress(OSError):  # it is gone, or the folders hold something
                if os.path.samestat(lock, (out / LOCK).stat()):  # else the folder was replaced: another's lock
                    (out / LOCK).unlink()
                    (out / OWN).rmdir()
                    if new:
                        out.rmdir()


@contextmanager
def replaced(out: Path, outdated: Sequence[str] = ()) -> Iterator[Path]:
    """An empty folder to write to, which is `out` in the end; other files in it stay, except those `outdated`."""
    out = usable(out)
    new = beside(out) / uuid4().hex
    kept = "what was there is kept; the same command resumes from its checkpoint"
    try:
        with explained(f"cannot write {out}", kept, RunError):
            new.mkdir(parents=True)
            yield new
            there = out.exists()
            for entry in out.iterdir() if there else ():
                if entry.name in (OWN, *OUTDATED, *outdated) or (new / entry.name).exists():
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.copytree(entry, new / entry.name, symlinks=True)
                else:
                    shutil.copy2(entry, new / entry.name, follow_symlinks=False)
            settled(new, out, exchange if there else None)
    finally:
        with uninterrupted():
            shutil.rmtree(new, ignore_errors=True)
            with suppress(OSError):  # another run writes there too
                beside(out).rmdir()


def beside(out: Path) -> Path:
    """The folder for what is not yet `out`, or no longer."""
    return out.with_name(f".{out.name}{OWN}")


def usable(out: Path) -> Path:
    """The folder's own place, after making sure that it contains no foreign files and can be replaced."""
    out = out.resolve()
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a folder with --out")
    fixed = out in (here := Path.cwd(), *here.parents) or os.path.ismount(out)
    if fixed or (out.exists() and not os.access(out.parent, os.W_OK)):
        raise InputError(f"{out} cannot be replaced as a whole; give a folder in it, such as --out {out / 'model'}")
    strange = [entry.name for entry in out.iterdir() if entry.name != OWN] if out.exists() else []
    if strange and CONFIG not in strange:
        some = ", ".join(sorted(strange)[:3]) + (", ..." if len(strange) > 3 else "")
        raise InputError(f"{out} holds files that are not csada's ({some}); give a new or an empty folder with --out")
    return out


def exchange(a: Path, b: Path) -> None:
    """Two folders change places: in one step on Linux; elsewhere `b` is missing for a moment, with its files beside it."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None or rename(HERE, os.fsencode(a), HERE, os.fsencode(b), EXCHANGE) != 0:
        aside = b.with_name(f".{b.name}.{uuid4().hex}.old")
        b.rename(aside)
        a.rename(b)
        aside.rename(a)
