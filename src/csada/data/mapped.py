"""Pixels in a file that is mapped into memory. What is pickled of them is the file's name: whoever reads it maps the file."""

from __future__ import annotations

import contextlib
import io
import math
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from csada.data.store import lock
from csada.errors import RunError
from csada.files import regular


@dataclass(frozen=True)
class Mapped:
    """What is seen of a file of pixels, of [count, 3, size, size]."""

    path: Path
    count: int
    size: int
    view: tuple[Any, ...] = ()  # shape, strides and offset

    def opened(self) -> Tensor:
        whole = mapped(self.path, self.count, self.size)
        if whole is None:
            raise RunError(
                f"{self.path} is not there, or not the same: every process and node must see the decoded images; set "
                "CSADA_CACHE to a folder that all share"
            )
        return whole.as_strided(*self.view)


MAPS: dict[int, Mapped] = {}  # of this process, by the address of their pixels


def mapped(path: Path, count: int, size: int) -> Tensor | None:
    """[count, 3, size, size]: what `cache.pixel_file` wrote, mapped from the disk; None where it is not whole.

    Whoever maps it holds a lock on it, so that it is not removed to make room for others.
    """
    shape, header = (count, 3, size, size), io.BytesIO()
    write_header(header, shape)
    start = header.tell()
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(regular(path).open("rb"))
            lock(file, shared=True, wait=True)
            if file.read(start) != header.getvalue() or path.stat().st_size != start + math.prod(shape):
                return None
            with contextlib.suppress(OSError):  # another user's: it may look older than it is
                os.utime(path)
            if not count:
                return torch.empty(shape, dtype=torch.uint8)
            pixels = np.memmap(path, np.uint8, "c", start, shape)
            MAPS[pixels.ctypes.data] = Mapped(path.absolute(), count, size)
            stack.callback(MAPS.pop, pixels.ctypes.data)
            weakref.finalize(pixels, stack.pop_all().close)
            return torch.from_numpy(pixels)
    except OSError:
        return None


def write_header(out: IO[bytes], shape: tuple[int, ...]) -> None:
    """The .npy header; NumPy leaves room in it for the first axis to change its number of digits."""
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})


def packed(value: Any) -> Any:
    """What is pickled of a tensor: where its pixels are mapped from, unless they were changed; else no more than it shows."""
    if not isinstance(value, Tensor):
        return value
    storage = value.untyped_storage()
    place = MAPS.get(storage.data_ptr())
    if place is not None and not value.is_inference() and value._version == 0:
        return Mapped(place.path, place.count, place.size, (value.size(), value.stride(), value.storage_offset()))
    return value.detach().clone() if value.nbytes < storage.nbytes() else value
