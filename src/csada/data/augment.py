"""Normalisation and augmentation as batched tensor operations, on the batch's device.

Randomness comes from the generator that is handed in, so an epoch is the same whoever computes it, and however many do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from csada.errors import InputError


@dataclass(frozen=True)
class Normalization:
    """x -> (x / scale - mean) / std, by channel (images) or by feature (rows of a table).

    fill: what stands for a missing value (NaN), by feature; without it none may be missing.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0
    fill: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InputError(f"{len(self.mean)} means and {len(self.std)} standard deviations; as many are needed")
        if not all(value > 0 for value in (*self.std, self.scale)):
            raise InputError(f"std is {list(self.std)} and scale is {self.scale}; numbers above zero are needed")
        if self.fill and len(self.fill) != len(self.mean):
            raise InputError(f"{len(self.fill)} values to fill in for {len(self.mean)} means; as many are needed")

    def __call__(self, x: Tensor) -> Tensor:
        own = None
        if not x.is_floating_point():
            x = own = x.float()
        factor, offset, fill = _affine(self, x.dtype, x.device, x.ndim)
        if self.fill:
            x = torch.where(x.isnan(), fill, x)
        return torch.addcmul(offset, x, factor, out=own)  # a second batch of floats would cost more than the arithmetic

    def undo(self, x: Tensor) -> Tensor:
        """Back to the stored values (pixels), for pictures."""
        factor, offset, _ = _affine(self, x.dtype, x.device, x.ndim)
        return (x - offset) / factor


@lru_cache(maxsize=64)
def _affine(n: Normalization, dtype: torch.dtype, device: torch.device, ndim: int) -> tuple[Tensor, Tensor, Tensor]:
    """(factor, offset, fill), made once a device: a host-to-device copy a batch would cost more than the arithmetic."""
    shape = (-1,) + (1,) * max(ndim - 2, 0)
    with torch.inference_mode(False):  # kept tensors must also serve where gradients are taken
        mean, std, fill = (torch.tensor(v, dtype=torch.float64).reshape(shape) for v in (n.mean, n.std, n.fill))
        return (1 / (n.scale * std)).to(device, dtype), (-mean / std).to(device, dtype), fill.to(device, dtype)


@dataclass(frozen=True)
class Augmentation:
    """Random changes to a batch of images [N, C, H, W] that keep its labels; the default changes nothing.

    padding: shift by up to so many pixels, zeros coming in; flip: mirror half of the images; zoom: cut out a square of
    a random fraction of the side and resize it back; right_angles: turn by 0, 90, 180 or 270 degrees.
    """

    padding: int = 0
    flip: bool = False
    zoom: tuple[float, float] | None = None
    right_angles: bool = False

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.padding or self.flip:
            x = shift_and_flip(x, self.padding, self.flip, generator)
        if self.zoom is not None:
            x = random_zoom(x, self.zoom, generator)
        if self.right_angles:
            x = random_right_angle(x, generator)
        return x


View = Literal["identity", "mirror", "turn90", "turn180", "turn270"]
VIEWS: dict[View, Callable[[Tensor], Tensor]] = {  # of a batch of images [N, C, H, W]
    "identity": lambda x: x,
    "mirror": lambda x: x.flip(3),
    "turn90": lambda x: x.transpose(2, 3).flip(2),
    "turn180": lambda x: x.flip((2, 3)),
    "turn270": lambda x: x.transpose(2, 3).flip(3),
}


def allowed_views(augmentation: Augmentation, shape: Sequence[int]) -> tuple[View, ...]:
    """The views of a sample of that shape that keep its label: those that training showed."""
    image, square = len(shape) == 3, len(shape) == 3 and shape[1] == shape[2]
    shown = {"identity": True, "mirror": image and augmentation.flip}
    return tuple(view for view in VIEWS if shown.get(view, square and augmentation.right_angles))


def shift_and_flip(x: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Every image shifted by its own offsets, and mirrored or not: on a CPU by copying, else in one gather."""
    n, _, height, width = x.shape
    device = x.device
    offset = torch.randint(0, 2 * padding + 1, (2, n, 1), device=device, generator=generator)
    mirrored = torch.rand(n, 1, device=device, generator=generator) < 0.5 if flip else None
    if device.type == "cpu" and x.dtype == torch.uint8:
        return _copied(x, padding, offset, mirrored)
    if padding:
        x = F.pad(x, (padding,) * 4)
    rows = offset[0] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(n, width)
    if mirrored is not None:
        columns = torch.where(mirrored, width - 1 - columns, columns)
    columns = columns + offset[1]
    return _gather_pixels(x, rows[:, :, None], columns[:, None, :])


def _copied(x: Tensor, padding: int, offset: Tensor, mirrored: Tensor | None) -> Tensor:
    """Image by image: an index per pixel, as a gather needs it, is eight times as large as the pixel."""

    def cuts(size: int) -> list[tuple[slice, slice]]:
        """What is written, and what is read, by offset."""
        forward = [slice(max(shift, 0), max(size + min(shift, 0), 0)) for shift in range(-padding, padding + 1)]
        return list(zip(reversed(forward), forward, strict=True))

    rows, columns = cuts(x.shape[2]), cuts(x.shape[3])
    if mirrored is None:
        mirrored = torch.zeros_like(offset[0], dtype=torch.bool)
    offset[1] = torch.where(mirrored, 2 * padding - offset[1], offset[1])  # of what was mirrored before
    out, sources = torch.zeros(x.shape, dtype=x.dtype), (x.numpy(), x.flip(3).numpy())
    result = out.numpy()
    for i, ([source], [top], [left]) in enumerate(zip(mirrored.int().tolist(), *offset.tolist(), strict=True)):
        (to, of), (across, along) = rows[top], columns[left]
        result[i, :, to, across] = sources[source][i, :, of, along]
    return out


def random_zoom(x: Tensor, zoom: tuple[float, float], generator: torch.Generator) -> Tensor:
    """A random square of zoom[0] to zoom[1] of the side, resized back (bilinear); [0, 255] stays so."""
    n, device = len(x), x.device
    side = torch.empty(n, device=device).uniform_(*zoom, generator=generator)
    centre = (torch.rand(2, n, device=device, generator=generator) * 2 - 1) * (1 - side)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0] = theta[:, 1, 1] = side
    theta[:, :, 2] = centre.T
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x.float(), grid, align_corners=False, padding_mode="reflection")


def random_right_angle(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of a square batch turned by its own multiple of 90 degrees, in one gather."""
    n, side, device = len(x), x.shape[-1], x.device
    turns = torch.randint(0, 4, (n,), device=device, generator=generator)
    row, column = torch.meshgrid(*(torch.arange(side, device=device),) * 2, indexing="ij")
    # a turn on, a row is read from the next one
    sources = torch.stack([row, column, side - 1 - row, side - 1 - column])
    return _gather_pixels(x, sources[turns], sources[(turns + 1) % 4])


def _gather_pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """out[n, c, i, j] = x[n, c, rows[n, i, j], columns[n, i, j]]; a flat gather is thrice as fast as three indices."""
    source = rows * x.shape[-1] + columns
    n, height, width = source.shape
    source = source.reshape(n, 1, height * width).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, source).reshape(n, -1, height, width)
