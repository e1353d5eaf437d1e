"""Files that are there whole or not at all, however a process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name beside `path` to write under: it takes its real name if all goes well, and is removed if not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str, errors: str = "strict") -> Path:
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", errors=errors)
    return Path(path)
