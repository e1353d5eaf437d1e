"""The folder in which decoded images are kept: entries by a hash of what they hold, bounded in size if the user asks.

An entry is the files of one name. CSADA_CACHE_GB bounds all of them together: before a new one is written, those that were
used longest ago go. One that a process has mapped stays: whoever reads an entry holds a lock on it. An entry that a killed
process left half built counts like any other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from csada.data.fetch import user_cache
from csada.errors import InputError, RunError

FOLDER, LIMIT = "CSADA_CACHE", "CSADA_CACHE_GB"
KINDS = ("decoded", "pills", "features")  # folders of the user's cache
LOCK = ".building"
PIXELS, INDEX, HALF, PIECES = ".npy", ".npz", ".half", ".pieces"
OWN = re.compile(rf"((?:pills-)?[0-9a-f]{{32}})(?:{PIXELS}|{INDEX}|{HALF}|{PIECES}|\.ids|\.features)")


def entry(identity: Sequence[Any], kind: str = "decoded") -> Path:
    """Where the cache keeps what is known by `identity`; the name lacks its ending."""
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return (_root() if os.environ.get(FOLDER) else _root() / kind) / key


def _root() -> Path:
    return Path(os.environ.get(FOLDER) or user_cache())


def limit() -> float:
    """The bytes that all entries may take together."""
    text = os.environ.get(LIMIT) or "inf"
    try:
        found = float(text) * 1e9
    except ValueError:
        found = math.nan
    if not found > 0:
        raise InputError(
            f"{LIMIT} (--cache-gb) is {text[:40]!r}; give the gigabytes that the cache may take, such as 50"
        )
    return found


def lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> bool:
    """Whether the file is ours until it is closed; never where the file system has no such locks."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


@dataclass
class Entry:
    files: list[Path] = field(default_factory=list)
    size: int = 0
    used: float = 0.0

    def remove(self) -> bool:
        """False where it is in use, and all of it is still there."""
        held: list[IO[bytes]] = []
        try:
            for path in self.files:
                with suppress(FileNotFoundError):  # somebody else removed it
                    held.append(path.open("rb"))
                    if not lock(held[-1]):
                        return False
            for path in sorted(self.files, key=lambda each: each.suffix != INDEX):  # without its index it is no entry
                path.unlink(missing_ok=True)
        except OSError:
            return False
        finally:
            for file in held:
                file.close()
        return True


def entries() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for folder in (_root(),) if os.environ.get(FOLDER) else (_root() / kind for kind in KINDS):
        with suppress(OSError):
            for path in folder.iterdir():
                with suppress(OSError):
                    stat = path.stat()
                    if named := OWN.fullmatch(path.name):
                        each = found.setdefault(f"{path.parent}/{named[1]}", Entry())
                        each.files.append(path)
                        each.size += stat.st_size
                        each.used = max(each.used, stat.st_mtime)
    return found


@contextmanager
def room(place: Path, needed: int) -> Iterator[None]:
    """For an entry of so many bytes, until it is written: others go where it would exceed the limit; else RunError.

    One builder at a time in a bounded cache: two would both be given the room that one of them fills.
    """
    most = limit()
    with ExitStack() as stack:
        if most < math.inf:
            with suppress(OSError):  # whoever writes the entry says what is wrong
                _root().mkdir(parents=True, exist_ok=True)
                lock(stack.enter_context((_root() / LOCK).open("ab")), wait=True)
        others = entries()
        own = others.pop(str(place), Entry()).size
        total = sum(each.size for each in others.values())
        for each in sorted(others.values(), key=lambda each: each.used):
            if total + needed <= most:
                break
            if each.remove():
                total -= each.size
        if total + needed > most:
            used = f", and {total / 1e9:.3g} GB in it are in use" if total and needed <= most else ""
            raise RunError(
                f"the decoded images take {needed / 1e9:.3g} GB, more than the cache may hold ({LIMIT} or --cache-gb "
                f"{most / 1e9:g}){used}; allow more, or resize the images to fewer pixels"
            )
        free = shutil.disk_usage(next(each for each in place.parents if each.is_dir())).free
        if needed - own > free:
            raise full(place.parent, f"{free / 1e6:,.0f} MB are free", needed - own)
        yield


def full(folder: Path, why: str, needed: int, kept: str = "") -> RunError:
    return RunError(
        f"the images cannot be written to {folder}: {why}; they need {needed / 1e6:,.0f} MB there: free them, or set "
        f"{FOLDER} to another folder{kept}"
    )
