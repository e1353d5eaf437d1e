"""What a model takes, said without PyTorch: a machine that only predicts from an exported file has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from csada.errors import InputError

Dtype = Literal["uint8", "float32"]


@dataclass(frozen=True)
class Sample:
    """A sample as it is stored, in the shape that the network takes."""

    shape: tuple[int, ...]
    dtype: Dtype = "float32"
    columns: tuple[str, ...] | None = None  # of a table, in this order

    def __post_init__(self) -> None:
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            raise InputError(f"shape is {list(self.shape)}; features, or channels, height and width are needed")
        if self.columns is not None and len(self.columns) != self.shape[0]:
            raise InputError(f"{len(self.columns)} columns for {self.shape[0]} features")

    @property
    def is_row(self) -> bool:
        return len(self.shape) == 1

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape))} {self.dtype}"
