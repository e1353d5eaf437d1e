"""Example pictures side by side, each with its name beneath: the paper's figure of four bottles."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from csada.errors import InputError


def examples_figure(images: Sequence[NDArray[np.uint8]], captions: Sequence[str], columns: int = 4) -> Figure:
    """Images are [3, H, W] bytes, as the data sets hold them; rows of `columns`, the last one as long as it needs."""
    if not images or len(images) != len(captions):
        raise InputError(
            f"{len(images)} images and {len(captions)} captions; give at least one, and a caption an image"
        )
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(2.2 * columns, 2.5 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    letters = [*ascii_lowercase, *range(len(ascii_lowercase) + 1, len(images) + 1)]
    for axis, image, caption, letter in zip(axes, images, captions, letters, strict=False):
        axis.imshow(image.transpose(1, 2, 0))
        axis.text(0.5, -0.04, f"({letter}) {caption}", transform=axis.transAxes, ha="center", va="top")
    return figure
