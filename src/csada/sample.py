"""What a model takes, said without PyTorch: a machine that only predicts from an exported file has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from csada.bounds import check
from csada.errors import InputError

Dtype = Literal["uint8", "float32"]


@dataclass(frozen=True)
class Sample:
    """A sample as it is stored, in the shape that the network takes."""

    shape: tuple[int, ...]
    dtype: Dtype = "float32"
    columns: tuple[str, ...] | None = None  # of a table, in this order: numbers, then categorical ones
    categories: tuple[tuple[str, ...], ...] = ()  # of the categorical columns: each category is a feature

    def __post_init__(self) -> None:
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            raise InputError(f"shape is {list(self.shape)}; features, or channels, height and width are needed")
        if not self.is_row:
            check("pixels", self.shape[1] * self.shape[2], f"samples of {self}")
        if self.columns is not None and len(self.columns) != self.numbers + len(self.categories):
            raise InputError(f"{len(self.columns)} columns for {self.shape[0]} features")
        if self.categories and (self.columns is None or not all(self.categories)):
            raise InputError(
                f"categories of {len(self.categories)} columns; each needs a name and one category or more"
            )

    @property
    def is_row(self) -> bool:
        return len(self.shape) == 1

    @property
    def numbers(self) -> int:
        """How many features are numbers of a table; the others are categories."""
        return self.shape[0] - sum(map(len, self.categories))

    @property
    def categorical(self) -> tuple[str, ...]:
        """The columns of words."""
        return (self.columns or ())[self.numbers :]

    @property
    def features(self) -> tuple[tuple[str, str], ...]:
        """What each feature of a table is: a column, and the category where it is categorical."""
        names = ((name, "") for name in (self.columns or ())[: self.numbers])
        pairs = zip(self.categorical, self.categories, strict=True)
        return *names, *((name, category) for name, known in pairs for category in known)

    def __str__(self) -> str:
        if self.columns is not None:
            words = [
                f"{name} ({len(known)} categories)"
                for name, known in zip(self.categorical, self.categories, strict=True)
            ]
            return f"{len(self.columns)} columns: {', '.join((*self.columns[: self.numbers], *words))}"
        return f"{' x '.join(map(str, self.shape))} {self.dtype}"
