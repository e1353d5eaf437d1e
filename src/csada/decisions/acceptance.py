"""Acceptance: whether a classifier keeps its limits, by samples that chose nothing.

    pass                 they prove that the limit is kept: the exact upper bound (Clopper-Pearson) is within it
    fail                 they prove that it is broken: the exact lower bound is beyond it
    not enough samples   they prove neither

Each of m criteria has its one-sided bounds at the error (1 - confidence) / m (Bonferroni). Holm's steps would prove a little
more, but their bounds do not hold together; here the bound that is shown is the verdict, and all of them hold at once.
Accuracy lost is a difference of two shares of the same samples, lost and gained: the upper bound of the first less the
lower bound of the second, each at half the error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from csada.bounds import check
from csada.decisions.arrays import Labels
from csada.decisions.limits import Limit, share_bounds
from csada.metrics import PairError

Verdict = Literal["pass", "fail", "not enough samples"]
AT_LEAST = ("recall", "precision")
ROUNDING = 1e-12  # 1 - 0.9 is a little less than 0.1
MOST_SAMPLES = 10**7  # more are as good as impossible
remembered_bounds = lru_cache(2**16)(share_bounds)  # of many limits and groups most have seen few mistakes
JOINTLY = "Bounds are exact, one-sided and corrected for the number of criteria: all of them hold together."


@dataclass(frozen=True)
class Criterion:
    """A limit and what the samples say of it. Limit, rate and bound are shares: at most, or of AT_LEAST at least."""

    name: str
    kind: str
    group: str  # "": all samples
    verdict: Verdict
    limit: float
    rate: float | None  # None without samples
    bound: float  # no worse than this, at the confidence `level`
    best: float  # no better than this, likewise
    samples: int  # those that the limit is about
    bad: int
    gained: int  # of accuracy_lost alone
    confidence: float  # that the limit asks for
    level: float  # of the bound: corrected for all criteria that were judged together
    needed: int | None  # samples that would decide at the rate seen; None where these do, or none would

    @property
    def at(self) -> str:
        return "at least" if self.kind in AT_LEAST else "at most"

    @property
    def title(self) -> str:
        return f"{self.name}, {self.group}" if self.group else self.name

    @property
    def why(self) -> str:
        """What is missing, in words; "" for a pass."""
        if self.verdict == "pass":
            return ""
        rate = math.nan if self.rate is None else self.rate
        seen = f"{100 * rate:.4g} % seen on {self.samples:,} samples" if self.samples else "there are no samples"
        asked = f"{self.at} {100 * self.limit:.4g} % is asked for, {seen}"
        if self.verdict == "fail":
            other = "at most" if self.kind in AT_LEAST else "at least"
            return f"{asked}; {other} {100 * self.best:.4g} % is proven"
        would = f"{self.needed:,} samples" if self.needed else "no feasible number of samples"
        beyond = self.samples > 0 and (rate < self.limit if self.kind in AT_LEAST else rate > self.limit)
        return f"{asked}; at this rate {would} would prove {'that it is broken' if beyond else 'it'}"


@dataclass(frozen=True)
class Group:
    """What a group of the samples cost; None without costs or samples."""

    name: str
    samples: int
    mean_cost: float | None
    pairs: tuple[PairError, ...] = ()  # the critical ones


@dataclass(frozen=True)
class Check:
    """One look at the test samples, as it is recorded. Hashes say by which criteria, of which model, on which samples."""

    judged: str
    criteria: str
    stated: dict[str, Any]  # the criteria themselves
    model: str
    samples: str
    truth: str  # the samples with their labels and groups
    data: str
    part: str
    count: int
    trained_on: int  # of the samples, kept knowingly
    results: tuple[Criterion, ...]
    groups: tuple[Group, ...] = ()

    @property
    def verdict(self) -> Verdict:
        found = {each.verdict for each in self.results}
        return "fail" if "fail" in found else "not enough samples" if "not enough samples" in found else "pass"

    @property
    def when(self) -> str:
        return self.judged.replace("T", " ").replace("Z", " UTC")

    def told(self) -> str:
        """What was judged, in a sentence."""
        flattered = f", {self.trained_on:,} of which it was trained on, which flatters it" if self.trained_on else ""
        return (
            f"{len(self.results)} criteri{'a' if len(self.results) > 1 else 'on'} (sha256 {self.criteria[:12]}), judged "
            f"{self.when} on {self.count:,} samples of {self.data} ({self.part}){flattered}."
        )


@dataclass(frozen=True)
class Looked:
    """A check among the other looks at the same samples, oldest first."""

    check: Check
    earlier: tuple[Check, ...] = ()
    again: bool = False  # asked for again, and not judged again

    @property
    def history(self) -> str:
        """How often the samples were looked at before, in a sentence; "" at the first time."""
        if not self.earlier:
            return ""
        told = [
            f"{each.when} by {'the same' if each.criteria == self.check.criteria else 'other'} criteria"
            f"{'' if each.model == self.check.model else ', of another model'} ({each.verdict})"
            for each in self.earlier
        ]
        sets = len({each.criteria for each in (*self.earlier, self.check)})
        return (
            f"Look {len(told) + 1} at these samples, with {sets} set{'s' * (sets > 1)} of criteria so far. Earlier: "
            f"{'; '.join(told)}. Trying until something passes proves nothing."
        )


def verdicts(
    limits: Sequence[Limit],
    truth: Labels,
    predicted: Labels,
    before: Labels | None = None,
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
    *,
    refers: bool = True,
) -> tuple[Criterion, ...]:
    """Every limit on all samples and within each group. refers=False: the rule leaves no case to a person, whatever comes."""
    parts = {"": np.ones(len(truth), bool), **(groups or {})}
    count = len(limits) * len(parts)
    check("limits", count, f"{len(limits):,} limits on {len(parts):,} sets of samples are {count:,}")
    share = 1 / count
    found = []
    for group, mask in parts.items():
        for limit in limits:
            bad = limit.bad(truth[mask], predicted[mask], None if before is None else before[mask])
            certain = limit.kind == "referred" and not refers
            found.append(_criterion(limit, group, bad, (1 - limit.confidence) * share, certain))
    return tuple(found)


def _criterion(limit: Limit, group: str, bad: NDArray[np.float64], error: float, certain: bool) -> Criterion:
    n, lost, gained = len(bad), int((bad > 0).sum()), int((bad < 0).sum())
    paired = limit.kind == "accuracy_lost"
    low, high = (0.0, 0.0) if certain else remembered_bounds(lost, gained, n, error, paired)
    rate = (lost - gained) / n if n else None
    verdict: Verdict = "not enough samples"
    if high <= limit.most + ROUNDING:
        verdict = "pass"
    elif low > limit.most + ROUNDING:
        verdict = "fail"
    needed = _needed(limit.most, lost, gained, n, error, paired) if verdict == "not enough samples" else None

    def shown(share: float) -> float:
        """As the limit counts."""
        return round(1 - share if limit.kind in AT_LEAST else share, 15)

    return Criterion(
        limit.name,
        limit.kind,
        group,
        verdict,
        limit=shown(limit.most),
        rate=None if rate is None else shown(rate),
        bound=shown(high),
        best=shown(low),
        samples=n,
        bad=lost,
        gained=gained,
        confidence=limit.confidence,
        level=1 - error,
        needed=needed,
    )


@lru_cache(2**16)
def _needed(most: float, lost: float, gained: float, n: int, error: float, paired: bool) -> int | None:
    """The least number of samples, to 4 digits, that decide at the rates seen; without samples, at no mistake."""
    x, y = lost / max(n, 1), gained / max(n, 1)
    broken = x - y > most

    def decides(m: int) -> bool:
        low, high = remembered_bounds(x * m, y * m, m, error, paired)
        return low > most if broken else high <= most

    low, high = n, max(2 * n, 1)
    while not decides(high):
        low, high = high, 2 * high
        if high > MOST_SAMPLES:
            return None
    while high - low > max(high // 10_000, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
