"""From an image file to pixels: one function for training and for use, so that a model sees what it was trained on.

Needs Pillow and NumPy alone: a machine that only predicts has no PyTorch.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from csada.bounds import check
from csada.errors import InputError
from csada.files import StrPath

ALONE = 1 << 24  # pixels; larger images are decoded one at a time
LARGE = Lock()
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # those whose header tells the size that is decoded
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MODES = {1: "L", 3: "RGB"}
STEPS = (  # what `square` does, for those who do it themselves
    "16 bits scaled to 8, transparent parts over white",
    "turned upright as its EXIF orientation says",
    "cut to the largest square in its centre",
    "resized with Pillow's bilinear filter, which averages where it shrinks",
)


@contextmanager
def _pillow() -> Iterator[None]:
    """Whatever Pillow finds wrong is an InputError."""
    try:
        yield
    except UnidentifiedImageError:  # its own words name an object in memory
        raise InputError("not an image that Pillow knows") from None
    except MemoryError:
        raise MemoryError("takes more memory to decode than there is") from None
    # Of a broken image its decoders raise almost anything: SyntaxError, KeyError, struct.error, ZeroDivisionError, and errors
    # of its own that share no other base. No list would be shorter than all of them, or complete in its next version.
    except Exception as error:
        if isinstance(error, InputError) or getattr(error, "errno", None):  # of the file, not of what is in it
            raise
        raise InputError(str(error) or type(error).__name__) from None


def opened(source: StrPath | IO[bytes]) -> Image.Image:
    """The image, of which only the header is read; one that is too large to decode is refused."""
    with _pillow():  # it refuses twice our bound, unless that was raised
        image = Image.open(source, formats=FORMATS)
    width, height = image.size
    try:
        check("side", max(width, height), f"{width:,} x {height:,} pixels; the longer side counts")
        check("pixels", width * height, f"{width:,} x {height:,} pixels")
    except InputError:
        image.close()
        raise
    return image


def square(encoded: bytes, size: int, channels: int = 3) -> NDArray[np.uint8]:
    """[channels, size, size]: the centre of the image, upright and resized; grey where there is one channel.

    What is transparent becomes white. 16 bits are scaled to 8. Images are decoded on all cores, and the large ones, of which
    there are some copies in between, one after the other.
    """
    with opened(io.BytesIO(encoded)) as image:
        turn = LARGE if image.width * image.height > ALONE else nullcontext()
        with turn, _pillow():
            return _square(image, size, channels)


def _square(image: Image.Image, size: int, channels: int) -> NDArray[np.uint8]:
    image.load()  # what is wrong with its pixels is said here
    with suppress(InputError), _pillow():  # a camera's notes that cannot be read do not make its picture worse
        ImageOps.exif_transpose(image, in_place=True)
    pixels = _opaque(_eight_bits(image)).convert(MODES[channels])
    side = min(pixels.size)
    left, top = (pixels.width - side) // 2, (pixels.height - side) // 2
    pixels = pixels.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(pixels).reshape(size, size, channels).transpose(2, 0, 1))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Pillow would clip: nearly all of a 16-bit picture would be white."""
    if image.mode[0] not in "IF":
        return image
    wide = np.asarray(image)
    if image.mode == "F" or wide.min() < 0 or wide.max() > 65535:
        raise InputError("its pixels are numbers of 32 bits, whose scale is unknown; save it with 8 or 16 bits")
    return Image.fromarray(np.round(wide / 257).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    image = image if image.mode == "RGBA" else image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
