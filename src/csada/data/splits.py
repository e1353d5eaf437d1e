"""A data set as csada holds it: three parts of samples and labels, kept as stored until a batch is drawn."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from csada.data.augment import Augmentation, Normalization
from csada.data.mapped import Mapped, packed
from csada.errors import InputError
from csada.sample import Dtype, Sample

PARTS = ("train", "validation", "test")


class Batch(NamedTuple):
    """What a model and a method take: inputs, labels and, where costs differ from sample to sample, their cost rows."""

    x: Tensor
    y: Tensor
    costs: Tensor | None = None  # [N, K]: what predicting each class would cost for this very sample


@dataclass(frozen=True)
class Part:
    """Samples and labels. uint8 images stay uint8, in memory, on the device or mapped from a file, until used."""

    x: Tensor  # [N, ...]; images are [N, C, H, W]
    y: Tensor  # [N] int64
    normalization: Normalization = field(default_factory=Normalization)
    augmentation: Augmentation = field(default_factory=Augmentation)
    costs: Tensor | None = None  # [N, K], only where costs differ from sample to sample
    content: NDArray[np.uint64] | None = None  # [N] ids of the files or rows that x was made from
    names: tuple[str, ...] | None = None  # [N] of the files; of a table the numbers of its rows, from 1

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"{len(self.x)} samples but {len(self.y)} labels; give one label per sample")
        for name, rows in (("costs", self.costs), ("content", self.content), ("names", self.names)):
            if rows is not None and len(rows) != len(self.y):
                raise InputError(f"{len(rows)} rows of {name} but {len(self.y)} samples; give one row per sample")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        dtype = str(self.x.dtype).removeprefix("torch.")
        shape = tuple(self.x.shape[1:])
        return f"Part({len(self):,} samples of {shape} {dtype}, {self.normalization}, {self.augmentation})"

    def __getstate__(self) -> dict[str, Any]:
        """For a task: samples that are mapped from a file stay there, and of a view goes what it shows."""
        return {name: packed(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(
            {name: value.opened() if isinstance(value, Mapped) else value for name, value in state.items()}
        )

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """[N]: tells samples by their content, as stored: neither order, label nor normalisation matters."""
        return content_ids(self.x) if self.content is None else self.content

    def batch(
        self, index: Tensor, device: torch.device | str = "cpu", generator: torch.Generator | None = None
    ) -> Batch:
        """The samples at `index` as a model takes them; augmented when a generator is given."""
        x = self.x.index_select(0, index.to(self.x.device))  # ten times as fast as x[index] on a CPU
        return self.prepared(x.to(device, non_blocking=True), index, generator)

    def prepared(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Batch:
        """The batch of the samples at `index`, given as stored and on the device that is to do the work."""
        y = self.y[index.to(self.y.device)].to(x.device, non_blocking=True)
        costs = None if self.costs is None else self.costs[index.to(self.costs.device)].to(x.device, non_blocking=True)
        if generator is not None:
            x = self.augmentation(x, generator)
        return Batch(self.normalization(x), y, costs)

    def to(self, device: torch.device | str, *, samples: bool = True) -> Part:
        """All of it, or with samples=False all but x."""
        costs = None if self.costs is None else self.costs.to(device)
        return replace(self, x=self.x.to(device) if samples else self.x, y=self.y.to(device), costs=costs)

    def take(self, index: Tensor | NDArray[np.int64]) -> Part:
        index = torch.as_tensor(index, device=self.x.device)
        costs = None if self.costs is None else self.costs[index]
        content = None if self.content is None else self.content[index.cpu().numpy()]
        names = None if self.names is None else tuple(self.names[i] for i in index.tolist())
        return replace(
            self, x=self.x.index_select(0, index), y=self.y[index], costs=costs, content=content, names=names
        )


class Ids(NamedTuple):
    """The content of every sample of every part, 8 bytes each."""

    train: NDArray[np.uint64]
    validation: NDArray[np.uint64]
    test: NDArray[np.uint64]


@dataclass(frozen=True)
class Splits:
    """train is learnt from, validation is chosen on, test is looked at once."""

    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    name: str = "data"
    skipped: tuple[str, ...] = ()  # files left out because they could not be read, when the user asked for that
    columns: tuple[str, ...] = ()  # the features of a table, in their order: numbers, then categorical ones
    categories: tuple[tuple[str, ...], ...] = ()  # of the categorical columns: each category is a feature
    warnings: tuple[str, ...] = ()  # what is odd about the data, one line each

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, as a model sees it."""
        return tuple(self.train.x.shape[1:])

    @property
    def parts(self) -> dict[str, Part]:
        return {name: getattr(self, name) for name in PARTS}

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Part -> class -> samples."""
        counted = {name: part.y.bincount(minlength=len(self.classes)).tolist() for name, part in self.parts.items()}
        return {name: dict(zip(self.classes, each, strict=True)) for name, each in counted.items()}

    @cached_property
    def ids(self) -> Ids:
        return Ids(self.train.ids, self.validation.ids, self.test.ids)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: the same samples in the same parts, in any order."""
        return hashed([b"".join(hashed([np.sort(ids).astype("<u8")]) for ids in self.ids)]).hex()

    def __repr__(self) -> str:
        rows = [f"{name}: {len(part):,}" for name, part in self.parts.items()]
        return f"Splits({self.name!r}, {len(self.classes)} classes, {', '.join(rows)}; {self.train!r})"


@dataclass(frozen=True)
class Input(Sample):
    """What a classifier takes: a sample as it is stored, and how it is normalised."""

    normalization: Normalization = field(default_factory=Normalization)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (n := len(self.normalization.mean)) not in (1, self.shape[0]):
            raise InputError(f"{n} means and standard deviations for {self.shape[0]} channels or features")

    @classmethod
    def of(cls, splits: Splits) -> Input:
        dtype: Dtype = "uint8" if splits.train.x.dtype == torch.uint8 else "float32"
        return cls(splits.shape, dtype, splits.columns or None, splits.categories, splits.train.normalization)


def content_ids(x: Tensor) -> NDArray[np.uint64]:
    """[N]: a hash of the bytes of each sample."""
    rows = x.detach().cpu().reshape(len(x), math.prod(x.shape[1:])).contiguous().view(torch.uint8).numpy()
    return as_ids(hashed(rows))


def as_ids(hashes: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(hashes, "<u8").astype(np.uint64)


def hashed(contents: Iterable[Any], key: bytes = b"") -> bytes:
    """8 bytes of each."""
    return b"".join(hashlib.blake2b(content, digest_size=8, key=key).digest() for content in contents)


def seen(ids: NDArray[np.uint64], trained_on: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """[N]: which of these samples were trained on."""
    return np.isin(ids, trained_on)


def by_content(ids: NDArray[np.uint64], parts: Sequence[float], seed: int) -> list[NDArray[np.int64]]:
    """Indices split into len(parts) groups in about those proportions, each sample by its id and the seed alone.

    So whatever else comes, goes or is renamed, a sample stays in its group. A group of n samples expected has n to
    within a few times the square root of n.
    """
    drawn = as_ids(hashed(ids.astype("<u8"), str(seed).encode())) / 2.0**64
    edges = np.cumsum(parts) / np.sum(parts)
    group = np.searchsorted(edges[:-1], drawn, side="right")
    return [np.flatnonzero(group == k) for k in range(len(parts))]


def repeated(ids: NDArray[np.uint64], name: Callable[[int], str], groups: Sequence[Any]) -> str:
    """The names of samples with the same content in different groups; nothing where there are none."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    later = np.flatnonzero(first[inverse] < np.arange(len(ids))).tolist()
    pairs = [(i, j) for j in later if groups[i := int(first[inverse[j]])] != groups[j]]
    return some_of([f"{name(i)} and {name(j)}" for i, j in pairs])


def unrepresented(parts: Mapping[str, NDArray[np.int64]], classes: Sequence[str]) -> dict[str, str]:
    """The parts that lack classes, and these classes' names; `parts` holds labels."""
    found = {part: set(labels.tolist()) for part, labels in parts.items()}
    absent = {part: [name for k, name in enumerate(classes) if k not in labels] for part, labels in found.items()}
    return {part: some_of(names) for part, names in absent.items() if names}


def some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")


def stratified(labels: Sequence[int] | NDArray[np.int64], parts: Sequence[float], seed: int) -> list[NDArray[np.int64]]:
    """Indices split into len(parts) groups in those proportions, class by class; the same seed, the same split.

    Every class is shuffled and cut at the rounded cumulative proportions, so each group has its share of each class to
    within one sample.
    """
    labels = np.asarray(labels)
    generator = np.random.default_rng(seed)
    edges = np.cumsum(parts) / np.sum(parts)
    groups: list[list[NDArray[np.int64]]] = [[] for _ in parts]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.round(edges[:-1] * len(members)).astype(int)
        for group, chunk in zip(groups, np.split(members, cuts), strict=True):
            group.append(chunk)
    return [np.sort(np.concatenate(group)) if group else np.empty(0, np.int64) for group in groups]


def proportional(labels: Sequence[int] | NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """`count` indices drawn class by class in proportion, at least one of each class; the same seed, the same indices.

    What remains after rounding down goes to the classes with the largest remainders, so that the total is exact.
    """
    labels = np.asarray(labels)
    _, sizes = np.unique(labels, return_counts=True)
    exact = sizes * (count / max(len(labels), 1))
    quotas = np.maximum(np.floor(exact).astype(int), 1)
    largest = np.argsort(quotas - exact, kind="stable")
    quotas[largest[: max(count - quotas.sum(), 0)]] += 1
    generator = np.random.default_rng(seed)
    drawn = [
        generator.permutation(np.flatnonzero(labels == label))[:quota]
        for label, quota in zip(np.unique(labels), quotas, strict=True)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, np.int64)


def hold_out(
    labels: Sequence[int] | NDArray[np.int64], validation: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training, validation) indices, stratified; `validation` is a count when it is an int, else a fraction."""
    n = len(labels)
    count = validation if isinstance(validation, int) else round(validation * n)
    if not 0 < count < n:
        raise InputError(
            f"validation={validation} of {n:,} training samples; give a fraction below 1 or a smaller count"
        )
    kept = proportional(labels, n - count, seed)
    return kept, np.setdiff1d(np.arange(n), kept, assume_unique=True)


def scaled(splits: Splits, scale: float, seed: int) -> Splits:
    """A stratified fraction of every part, for a quick try; 1 leaves everything as it is."""
    check_scale(scale)
    if scale == 1:
        return splits
    smaller = {
        name: part.take(proportional(part.y.numpy(), round(scale * len(part)), seed))
        for name, part in splits.parts.items()
    }
    return replace(splits, **smaller)  # type: ignore[arg-type]


def check_scale(scale: float) -> None:
    if not 0 < scale <= 1:
        raise InputError(f"scale must be above 0 and at most 1, got {scale}")
