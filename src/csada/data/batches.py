"""Batches from anything that a user calls data: Splits, a Part, (x, y) tensors, a Dataset or a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from csada.bounds import most
from csada.data.splits import Batch, Part, Splits
from csada.data.streamed import stream
from csada.errors import InputError

Data = Any  # Splits | Part | (x, y) | Dataset | DataLoader


@dataclass(frozen=True)
class PartBatches:
    """Batches gathered from tensors: shuffled and augmented when a generator is given, else in order and as is.

    The part is on the device; where it is streamed, its labels and costs alone.
    """

    part: Part
    batch_size: int
    device: torch.device
    dtype: torch.dtype | None = None
    streamed: bool = False

    def __len__(self) -> int:
        return -(-len(self.part) // self.batch_size)

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        return self.drawn(self.order(generator), generator)

    def order(self, generator: torch.Generator | None) -> Sequence[Tensor]:
        """Which samples make up each batch."""
        n = len(self.part)
        if generator is None:
            order = torch.arange(n, device=self.device)
        else:
            order = torch.randperm(n, device=self.device, generator=generator)
        return torch.split(order, self.batch_size)

    def drawn(self, indices: Sequence[Tensor], generator: torch.Generator | None) -> Iterator[Batch]:
        """A batch of the samples at each index; augmented when a generator is given."""
        if self.streamed:
            sizes = [len(index) for index in indices]
            samples = stream(self.part.x, torch.split(torch.cat(list(indices)).cpu(), sizes), self.device)
        else:
            samples = (self.part.x.index_select(0, index) for index in indices)
        for index, x in zip(indices, samples, strict=True):
            batch = self.part.prepared(x, index, generator if len(index) else None)
            yield brought(batch, self.device, self.dtype)


@dataclass(frozen=True)
class LoaderBatches:
    """Batches from the user's own DataLoader, moved to the device."""

    loader: DataLoader[Any]
    device: torch.device
    dtype: torch.dtype | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        for given in self.loader:
            kind, listed = type(given).__name__, isinstance(given, tuple | list)
            if not (listed and len(given) == 2 and all(isinstance(value, Tensor) for value in given)):
                what = f"a {kind} of {len(given)}" if listed else f"a {kind}"
                raise InputError(f"the data loader gives {what}; give one of (x, y), tensors of samples and of labels")
            yield brought(Batch(*given), self.device, self.dtype)


def brought(batch: Batch, device: torch.device, dtype: torch.dtype | None) -> Batch:
    """As a model takes it: on its device, in its precision, labels int64; no gradient flows to the caller's tensors."""
    x, y, costs = batch
    x = x.detach().to(device, dtype if x.is_floating_point() else None, non_blocking=True)
    return Batch(x, y.to(device, None if y.is_floating_point() else torch.long, non_blocking=True), costs)


Batches = PartBatches | LoaderBatches


class Share(NamedTuple):
    """What one process has of a batch that several work on: its own samples, and the labels of all."""

    batch: Batch
    labels: Tensor  # [N] of the whole batch
    first: int = 0  # where its samples stand in the whole


def shares(
    source: Batches, generator: torch.Generator, own: torch.Generator, rank: int = 0, world: int = 1
) -> Iterator[Share]:
    """The batches of an epoch, of which process `rank` of `world` gets its consecutive share; an empty one at times.

    All processes draw the same order from the same generator; what augments a share is drawn from the process's `own`.
    """
    if world == 1:
        yield from (Share(batch, batch.y) for batch in source.epoch(generator))
        return
    assert isinstance(source, PartBatches)  # `fit` refuses to share out a loader
    indices = source.order(generator)
    cuts = [(len(index) * rank // world, len(index) * (rank + 1) // world) for index in indices]
    mine = source.drawn([index[a:b] for index, (a, b) in zip(indices, cuts, strict=True)], own)
    for index, (first, _), batch in zip(indices, cuts, mine, strict=True):
        yield Share(batch, source.part.y[index].to(torch.long), first)


def as_part(data: Data, part: str = "train") -> Data:
    """Splits and (x, y) as a Part; anything else as it is."""
    if isinstance(data, Splits):
        return getattr(data, part)
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(v, "__array__") for v in data):
        x, y = as_tensor(data[0], "samples"), as_tensor(data[1], "labels")
        if not x.is_floating_point():
            raise InputError(f"samples are {x.dtype}; give floating point, normalised as in the model's training")
        return Part(x, y if y.is_floating_point() else y.long())
    return data


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor, an array, or a table or column of pandas, which may be read-only."""
    values = values if isinstance(values, Tensor | np.ndarray) else np.require(values, requirements="W")
    if isinstance(values, np.ndarray) and values.dtype.kind not in "biuf":
        raise InputError(f"{what} are {values.dtype}; give numbers")
    return torch.as_tensor(values)


def batches(
    data: Data,
    batch_size: int,
    device: torch.device | str = "cpu",
    *,
    part: str = "train",
    shuffle: bool = False,
    dtype: torch.dtype | None = None,
) -> Batches:
    """One way to draw batches from any kind of data; `part` names the part used when data is a Splits.

    dtype: the model's, to which floating-point samples are converted.

    `shuffle` matters for a Dataset alone, which goes through a DataLoader: that draws the order, not our generator.
    """
    device = torch.device(device)
    data = as_part(data, part)
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=batch_size, shuffle=shuffle)
    if isinstance(data, Part):
        if len(data) == 0:
            raise InputError("the data is empty; give at least one sample")
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        streamed = data.x.device.type == "cpu" != device.type and data.x.nbytes > most("device")
        return PartBatches(data.to(device, samples=not streamed), batch_size, device, dtype, streamed)
    if isinstance(data, DataLoader):
        if len(data) == 0:
            raise InputError("the data loader is empty; give at least one batch")
        return LoaderBatches(data, device, dtype)
    raise InputError(f"cannot read data of type {type(data).__name__}; give Splits, (x, y), a Dataset or a DataLoader")
