"""Files that are there whole or not at all, however a process ends; and files that end."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")  # a name of `whole`, left by a process that was killed

StrPath = str | os.PathLike[str]


@contextmanager
def whole(path: StrPath) -> Iterator[Path]:
    """A temporary name beside `path` to write under: it takes its real name if all goes well, and is removed if not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


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


def read_bytes(path: StrPath, largest: int = 1 << 30) -> bytes:
    return regular(path, largest).read_bytes()
