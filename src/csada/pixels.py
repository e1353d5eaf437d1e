"""From an image file to pixels: one function for training and for use, so that a model sees what it was trained on.

Needs Pillow and NumPy alone: a machine that only predicts has no PyTorch.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MODES = {1: "L", 3: "RGB"}


def square(encoded: bytes, size: int, channels: int = 3) -> NDArray[np.uint8]:
    """[channels, size, size]: the centre of the image, upright and resized; grey where there is one channel."""
    with Image.open(io.BytesIO(encoded)) as image:
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # a camera that was held sideways says so here
            ImageOps.exif_transpose(image, in_place=True)
        pixels = image.convert(MODES[channels])
    side = min(pixels.size)
    left, top = (pixels.width - side) // 2, (pixels.height - side) // 2
    pixels = pixels.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(pixels).reshape(size, size, channels).transpose(2, 0, 1))
