"""Small data sets made by hand, for the tests of every loader."""

import io
import os
import struct
import tracemalloc
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

import csada.data
from csada.errors import InputError

REAL, REAL_CACHE = os.environ.get("CSADA_DATA"), os.environ.get("CSADA_CACHE")


def counts(part):
    return torch.bincount(part.y).tolist()


def sizes(splits):
    return [len(part) for part in splits.parts.values()]


def rows(part):
    return {tuple(row.flatten().tolist()) for row in part.x}


def within(n, total, share):
    return abs(n - total * share) <= 4 * (total * share * (1 - share)) ** 0.5


def refused(message, *data, **options):
    """No such data is loaded, and the error says why."""
    with pytest.raises(InputError, match=message):
        csada.data.load(*data, **options)


@contextmanager
def in_memory_of(most):
    """What happens inside takes at most so many bytes at once."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


class Caught(Exception):
    """What a model was given."""


def caught(x):
    raise Caught(x)


def jpeg(seed, size=(32, 32)):
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(out, "JPEG")
    return out.getvalue()


def write_folder(root, per_class, size=(48, 40)):
    """{"train/cat": 5} -> train/cat/0.jpg ... 4.jpg; cats are reddish, so that what is read can be told apart."""
    for seed, (folder, n) in enumerate(per_class.items()):
        (root / folder).mkdir(parents=True)
        for i in range(n):
            (root / folder / f"{i}.jpg").write_bytes(jpeg(1000 * seed + i, size))


def announced(width, height):
    """A PNG file of nothing but its header."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def as_icon(png):
    """An icon of 16 pixels, by what it says of itself, around any other image."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(png), 22) + png


TOO_LARGE = {
    "long": announced(100_000_000, 1),
    "high": announced(1, 100_000_000),
    "large": announced(134_217, 134_217),
    "icon": as_icon(announced(60_000, 60_000)),
}
