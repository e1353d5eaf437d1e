"""The answers file of `csada review`: what an expert said, so that the page can be opened again and experts merged.

Its first line holds a checksum of all that follows: an edited or cut file is noticed, and so is one of another model.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csada.bounds import check
from csada.costs import CostMatrix, did_you_mean
from csada.decisions.elicit import Compared, fit_scale, from_groups, rounded
from csada.errors import InputError
from csada.reading import build, parse_json, read_text

FORMAT = 1

Names = tuple[str, str]  # truth, predicted


@dataclass(frozen=True)
class AskedPair:
    truth: str
    predicted: str
    cost: float | None = None  # typed or dragged; None: it follows from comparisons
    why: str = ""

    def __post_init__(self) -> None:
        if self.cost is not None and self.cost < 0:
            raise InputError(f"cost is {self.cost:g}; zero or more is needed")


@dataclass(frozen=True)
class Comparison:
    """One mistake `first` is as bad as `ratio` mistakes `second`."""

    first: Names
    second: Names
    ratio: float

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise InputError(f"ratio is {self.ratio:g}; more than zero is needed")


@dataclass(frozen=True)
class Group:
    name: str
    classes: tuple[str, ...]


@dataclass(frozen=True)
class LabelFlag:
    """suggested: the label itself where the expert looked and found it right."""

    sample: str
    label: str
    suggested: str


@dataclass(frozen=True)
class Answers:
    format: int
    model: str  # the classifier's fingerprint
    data: str
    classes: tuple[str, ...]
    who: str
    when: str
    start: tuple[tuple[float, ...], ...]  # [K, K]: the costs that the page began with
    pairs: tuple[AskedPair, ...]
    referral_cost: float | None = None  # the page does not ask for it: it began with it
    comparisons: tuple[Comparison, ...] = ()
    skipped: tuple[tuple[Names, Names], ...] = ()
    groups: tuple[Group, ...] = ()
    labels: tuple[LabelFlag, ...] = ()
    checksum: str = ""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError(f"format is {self.format}; this version of csada reads {FORMAT}")
        CostMatrix(self.start, self.classes, self.referral_cost)
        check("answers", len(self.comparisons), f"{len(self.comparisons):,} comparisons")
        known, listed = {*self.classes}, Counter(self._listed)
        grouped = Counter(name for group in self.groups for name in group.classes)
        if twice := [name for name, times in grouped.items() if times > 1]:
            raise InputError(f"class {twice[0]!r} stands in two groups")
        for name in [*(name for pair in listed for name in pair), *grouped]:
            if name not in known:
                raise InputError(f"unknown class {name!r}{did_you_mean(name, self.classes)}")
        for pair, times in listed.items():
            if times > 1 or pair[0] == pair[1]:
                raise InputError(f"pair {pair[0]!r}, {pair[1]!r} stands there twice, or is no mistake")
        for answer in self.comparisons:
            if answer.first == answer.second or not {answer.first, answer.second} <= listed.keys():
                raise InputError(f"a comparison of {answer.first} with {answer.second}, which are not two listed pairs")

    @property
    def _listed(self) -> list[Names]:
        return [(pair.truth, pair.predicted) for pair in self.pairs]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Answers:
        text, where = read_text(path).replace("\r\n", "\n"), os.fspath(path)
        signed = re.match(r'\{\s*"checksum": "([0-9a-f]{8})",\n', text)
        if not signed or checksum(text[signed.end() :]) != signed[1]:
            raise InputError(
                f"{where} was changed after it was downloaded, or is no answers file; download it again from the page"
            )
        found: Answers = build(cls, parse_json(text, where), where)
        return found

    def costs(self) -> CostMatrix:
        """Typed costs, fitted ones, those that follow from groups, and elsewhere what the page began with."""
        start = CostMatrix(self.start, self.classes)
        number = {name: k for k, name in enumerate(self.classes)}
        at = [(number[y], number[z]) for y, z in self._listed]
        scale = fit_scale([start.values[pair] for pair in at], self._compared, self._typed)
        values, known = start.values.copy(), np.zeros(start.values.shape, bool)
        typed = self._typed
        for i, (pair, cost) in enumerate(zip(at, scale.costs.tolist(), strict=True)):
            if not np.isnan(cost):
                values[pair], known[pair] = typed.get(i, float(rounded(cost))), True
        of = {name: g for g, each in enumerate(self.groups) for name in each.classes}
        spread = from_groups(values, known, [of.get(name, -1) for name in self.classes])
        return CostMatrix(np.where(spread == values, values, rounded(spread)), self.classes, self.referral_cost)

    @property
    def _typed(self) -> dict[int, float]:
        return {i: pair.cost for i, pair in enumerate(self.pairs) if pair.cost is not None}

    @property
    def _compared(self) -> list[Compared]:
        number = {pair: i for i, pair in enumerate(self._listed)}
        return [Compared(number[a.first], number[a.second], a.ratio) for a in self.comparisons]


def checksum(text: str) -> str:
    """Against accidents, not against forgers."""
    return f"{zlib.crc32(text.encode()):08x}"


def read_experts(paths: Sequence[str | os.PathLike[str]]) -> list[CostMatrix]:
    """What each file says; answers files (JSON) of one model, and lists or tables of costs (CSV), of the same classes."""
    experts: list[CostMatrix] = []
    model = ""
    for path in paths:
        if os.fspath(path).endswith(".json"):
            answers = Answers.read(path)
            if model and answers.model != model:
                raise InputError(
                    f"{path} is about another model ({answers.model}, not {model}); merge answers about one"
                )
            model, costs = answers.model, answers.costs()
        else:
            costs = CostMatrix.from_csv(path)
        experts.append(costs.ordered(experts[0].classes, os.fspath(path)) if experts else costs)
    return experts
