"""What a classifier takes: a sample as it is stored, and how it is normalised."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from csada.data.augment import Normalization
from csada.data.splits import Splits
from csada.errors import InputError
from csada.sample import Dtype, Sample


@dataclass(frozen=True)
class Input(Sample):
    """A sample as it is stored, and how it is normalised."""

    normalization: Normalization = field(default_factory=Normalization)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (n := len(self.normalization.mean)) not in (1, self.shape[0]):
            raise InputError(f"{n} means and standard deviations for {self.shape[0]} channels or features")

    @classmethod
    def of(cls, splits: Splits) -> Input:
        dtype: Dtype = "uint8" if splits.train.x.dtype == torch.uint8 else "float32"
        return cls(splits.shape, dtype, splits.columns or None, splits.categories, splits.train.normalization)
