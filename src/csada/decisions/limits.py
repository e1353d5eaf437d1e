"""Limits: what must not happen more often than stated, written down before the data are looked at.

Each one bounds a share of cases, at a confidence:

    pair            of the cases of class `truth`: decided as `predicted`                          at_most
    recall          of the cases of a class: not decided as another class                          at_least
    precision       of the cases decided as a class: really of that class                          at_least
    referred        of all cases: left to a person                                                 at_most
    accuracy_lost   of all cases: right by the given model's most probable class and decided
                    wrong now, less the reverse                                                     at_most

A referred case is never a mistake, so referring everything keeps every limit but the one on the referred share.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from csada import bounds
from csada.costs import did_you_mean
from csada.decisions.arrays import Floats, Labels
from csada.errors import InputError
from csada.metrics import REFER, Interval, exact_bounds
from csada.reading import build, read_toml


@dataclass(frozen=True)
class AtMost:
    at_most: float
    confidence: float | None = None  # None: the one of all limits

    def __post_init__(self) -> None:
        _check("at_most", self.at_most, self.confidence)


@dataclass(frozen=True)
class Pair:
    truth: str
    predicted: str
    at_most: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        _check("at_most", self.at_most, self.confidence)
        if self.truth == self.predicted:
            raise InputError(f"{self.truth!r} as itself is no mistake; name two classes")


@dataclass(frozen=True)
class AtLeast:
    """Of a class. In a file the class is the key `class`."""

    name: str
    at_least: float
    confidence: float | None = None

    FORMER: ClassVar = {"class": "name"}

    def __post_init__(self) -> None:
        _check("at_least", self.at_least, self.confidence)


def _check(key: str, share: float, confidence: float | None) -> None:
    if not 0 <= share <= 1:
        raise InputError(f"{key} is {share:g}; give a share from 0 to 1, such as 0.002 for one in 500")
    if confidence is not None and not 0.5 <= confidence < 1:
        raise InputError(f"confidence is {confidence:g}; no sample is proof: give 0.5 or more and less than 1")


@dataclass(frozen=True)
class Limit:
    """One limit for known classes, by their numbers. `most`: the largest share of bad cases that keeps it."""

    name: str
    kind: str
    most: float
    confidence: float
    truth: int | None = None
    predicted: int | None = None

    def bad(self, truth: Labels, predicted: Labels, before: Labels | None = None) -> Floats:
        """[n]: of the cases that the limit is about, 1 for a bad one and 0 for others; -1 for accuracy that was gained.

        before: the given model's most probable classes, for accuracy_lost.
        """
        if self.kind == "referred":
            return np.asarray(predicted == REFER, np.float64)
        if self.kind == "precision":
            about = predicted == self.predicted
            return np.asarray(truth[about] != self.predicted, np.float64)
        if self.kind == "accuracy_lost":
            if before is None:
                raise InputError("a limit on the accuracy lost needs the given model's predictions")
            lost = (before == truth).astype(np.float64) - (predicted == truth)
            return np.where(predicted == REFER, 0.0, lost)
        about = truth == self.truth
        wrong = predicted[about]
        if self.kind == "pair":
            return np.asarray(wrong == self.predicted, np.float64)
        return np.asarray((wrong != self.truth) & (wrong != REFER), np.float64)

    def bound(self, bad: Floats, tries: int = 1) -> float:
        """The highest share of bad cases that these do not exclude, exact and one-sided; 1 where there are none.

        tries: rules that are tested alike, of which one is taken. Accuracy lost is bounded by its two parts: what was
        lost from above and what was gained from below, each at half the risk.
        """
        worse, better = int((bad > 0).sum()), int((bad < 0).sum())
        paired = self.kind == "accuracy_lost"
        return share_bounds(worse, better, len(bad), (1 - self.confidence) / tries, paired).high

    def share(self, bad: float) -> str:
        """A share of bad cases as the user states the limit."""
        good = self.kind in ("recall", "precision")
        return f"{100 * (1 - bad if good else bad):.4g} %"

    def __str__(self) -> str:
        sign = "at least" if self.kind in ("recall", "precision") else "at most"
        return f"{self.name} {sign} {self.share(self.most)}"


def share_bounds(lost: float, gained: float, samples: int, error: float, paired: bool) -> Interval:
    """One-sided bounds of the share lost, each at this error; where it is `paired`, less the share gained."""
    if not paired:
        return exact_bounds(lost, samples, 1 - 2 * error)
    first, second = exact_bounds(lost, samples, 1 - error), exact_bounds(gained, samples, 1 - error)
    return Interval(first.low - second.high, first.high - second.low)


class Judged(NamedTuple):
    """A limit on counted cases."""

    limit: Limit
    bad: int  # less those that were gained
    samples: int
    bound: float

    @property
    def kept(self) -> bool:
        return self.bound <= self.limit.most + 1e-12

    @property
    def rate(self) -> float:
        return self.bad / self.samples if self.samples else 0.0


def judged(
    limits: Sequence[Limit], truth: Labels, predicted: Labels, before: Labels | None = None, tries: int = 1
) -> tuple[Judged, ...]:
    """Each limit on these decisions, at its confidence."""
    counted = ((limit, limit.bad(truth, predicted, before)) for limit in limits)
    return tuple(Judged(limit, int(bad.sum()), len(bad), limit.bound(bad, tries)) for limit, bad in counted)


@dataclass(frozen=True)
class Limits:
    """What limits.toml, or the table [limits] of csada.toml, says."""

    pair: tuple[Pair, ...] = ()
    recall: tuple[AtLeast, ...] = ()
    precision: tuple[AtLeast, ...] = ()
    referred: AtMost | None = None
    accuracy_lost: AtMost | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _check("at_most", 0, self.confidence)
        if not any((self.pair, self.recall, self.precision, self.referred, self.accuracy_lost)):
            raise InputError("no limit is given; known: pair, recall, precision, referred, accuracy_lost")
        bounds.check("limits", count := len(self.pair) + len(self.recall) + len(self.precision), f"{count:,} limits")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Limits:
        """The file's limits, or those of its table [limits], as a project file has."""
        values = read_toml(path)
        table = values.get("limits")
        return (
            cls.of(table, f"{os.fspath(path)}: [limits]")
            if isinstance(table, dict)
            else cls.of(values, os.fspath(path))
        )

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "limits") -> Limits:
        found: Limits = build(cls, values, where)
        return found

    def resolved(self, classes: Sequence[str]) -> tuple[Limit, ...]:
        """Every limit with the numbers of its classes; one about the same thing twice is refused."""
        found = tuple(self._each(classes))
        for name, times in Counter(limit.name for limit in found).items():
            if times > 1:
                raise InputError(f"there are two limits on {name}; keep one")
        return found

    def _each(self, classes: Sequence[str]) -> Iterator[Limit]:
        numbers = {name: k for k, name in enumerate(classes)}

        def number(name: str) -> int:
            if name not in numbers:
                raise InputError(f"a limit names the unknown class {name!r}{did_you_mean(name, classes)}")
            return numbers[name]

        def sure(given: Pair | AtLeast | AtMost) -> float:
            return self.confidence if given.confidence is None else given.confidence

        for p in self.pair:
            name = f"{p.truth} labelled as {p.predicted}"
            yield Limit(name, "pair", p.at_most, sure(p), number(p.truth), number(p.predicted))
        for r in self.recall:
            yield Limit(f"recall of {r.name}", "recall", 1 - r.at_least, sure(r), truth=number(r.name))
        for r in self.precision:
            yield Limit(f"precision of {r.name}", "precision", 1 - r.at_least, sure(r), predicted=number(r.name))
        if self.referred:
            yield Limit("share referred", "referred", self.referred.at_most, sure(self.referred))
        if self.accuracy_lost:
            yield Limit("accuracy lost", "accuracy_lost", self.accuracy_lost.at_most, sure(self.accuracy_lost))
