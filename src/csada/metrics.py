"""Every hard-label number derives from one table of counts: confusion[y, z] = how often truth y was predicted z.

Two things it cannot hold are kept beside it: cases referred to a person, and costs that differ from sample to sample.
Pure NumPy, so that records can be read, compared and reported where there is no PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta
from scipy.stats import t as student_t

from csada.costs import ClassLike, CostMatrix
from csada.errors import InputError

Counts = NDArray[np.int64]

REFER = -1  # the prediction that leaves a case to a person


class Interval(NamedTuple):
    """Two-sided."""

    low: float
    high: float

    def named(self, level: float = 0.95) -> dict[str, float]:
        """As JSON says it."""
        return {"low": self.low, "high": self.high, "level": level, "sides": 2}


def confusion_counts(truth: ArrayLike, predicted: ArrayLike, n: int) -> Counts:
    """confusion[y, z] for classes 0 .. n-1."""
    y, z = _class_numbers(truth, predicted, n)
    return np.bincount(y * n + z, minlength=n * n).reshape(n, n)


def _class_numbers(truth: ArrayLike, predicted: ArrayLike, n: int, lowest: int = 0) -> tuple[Counts, Counts]:
    """Both as int64; a prediction may be as low as `lowest`."""
    found = []
    for what, given, low in (("truth", truth, 0), ("prediction", predicted, lowest)):
        values = np.asarray(given).ravel()
        if values.size and values.dtype.kind not in "iub":  # not rounded down: 0.9 is a score, not class 0
            raise InputError(f"{what}s are {values.dtype}, not class numbers; give integers from 0 to {n - 1}")
        values = values.astype(np.int64)
        if (bad := values[(values < low) | (values >= n)]).size:
            raise InputError(f"{what} {bad[0]} is out of range; there are {n} classes, 0 to {n - 1}")
        found.append(values)
    y, z = found
    if len(y) != len(z):
        raise InputError(f"{len(y)} truths but {len(z)} predictions; give one prediction per truth")
    return y, z


def check_table(values: ArrayLike, what: str, shape: tuple[int, int] | None = None) -> NDArray[np.float64]:
    """Costs with one row per sample and one column per class: finite and zero or more."""
    table = np.array(values, dtype=np.float64)
    if table.ndim != 2 or (shape is not None and table.shape != shape):
        needed = shape or "(samples, classes)"
        raise InputError(
            f"{what} have shape {table.shape}; {needed} is needed: one row per sample, one column per class"
        )
    if (bad := ~(np.isfinite(table) & (table >= 0))).any():
        i, k = map(int, np.argwhere(bad)[0])
        raise InputError(f"{what}: sample {i}, class {k} is {table[i, k]:g}; costs must be finite and zero or more")
    return table


def accuracy(confusion: NDArray[np.integer]) -> float:
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def total_cost(confusion: NDArray[np.integer], costs: CostMatrix) -> float:
    return float((confusion * costs.values).sum())


def mean_cost(confusion: NDArray[np.integer], costs: CostMatrix) -> float:
    """The mean cost of a prediction; with unit costs it is the error rate, without predictions 0."""
    return total_cost(confusion, costs) / max(int(confusion.sum()), 1)


def pairwise_error_rates(confusion: NDArray[np.integer]) -> NDArray[np.float64]:
    """rates[y, z] = share of the samples of class y that were predicted as z; NaN in the row of a class without samples."""
    rows = confusion.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(confusion, rows, out=np.full(confusion.shape, np.nan), where=rows > 0))


def exact_bounds(errors: float, samples: int, confidence: float = 0.95) -> Interval:
    """Clopper-Pearson, two-sided. The upper end at confidence c is also the one-sided bound at (1 + c) / 2."""
    if not 0 <= errors <= samples:
        raise InputError(f"{errors} errors of {samples} samples; errors must be from 0 to the number of samples")
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, errors, samples - errors + 1)) if errors > 0 else 0.0
    high = float(beta.ppf(1 - tail, errors + 1, samples - errors)) if errors < samples else 1.0
    return Interval(low, high)


def at_most(errors: int, samples: int, confidence: float = 0.95) -> float:
    """The one-sided upper bound on an error rate: 0 of 120 is at most 2.5 % (95 %)."""
    return exact_bounds(errors, samples, 2 * confidence - 1).high


def named_bound(errors: int, samples: int, level: float = 0.95) -> dict[str, float]:
    """`at_most` as JSON says it."""
    return {"high": at_most(errors, samples, level), "level": level, "sides": 1}


class Mean(NamedTuple):
    """A mean over replications and half the width of its two-sided 95 % interval (Student's t)."""

    value: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.half_width:.2f}"


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> Mean:
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return Mean(float(array.mean()), float("nan"))
    spread = array.std(ddof=1) / np.sqrt(len(array))
    return Mean(float(array.mean()), float(student_t.ppf((1 + confidence) / 2, len(array) - 1) * spread))


def bootstrap_paid(
    paid: NDArray[np.float64], statistic: str, confidence: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap over samples that each paid their own cost: a two-sided interval."""
    check_statistic(statistic)
    if len(paid) == 0:
        return Interval(float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    means = np.array([paid[generator.integers(len(paid), size=len(paid))].mean() for _ in range(draws)])
    return _percentiles(means * len(paid) if statistic == "total_cost" else means, confidence)


STATISTICS = ("accuracy", "mean_cost", "total_cost")


def check_statistic(statistic: str) -> None:
    if statistic not in STATISTICS:
        raise InputError(f"no interval for {statistic!r}; known: {', '.join(STATISTICS)}")


def _percentiles(values: NDArray[np.float64], confidence: float) -> Interval:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


class Paid(NamedTuple):
    """What was really paid, where costs differ from sample to sample."""

    by_sample: NDArray[np.float64]  # [N], in the data's order; a referred one paid for the referral
    by_pair: NDArray[np.float64]  # [K, K], over the samples of truth y that were predicted as z


class PairError(NamedTuple):
    """How often one class was predicted as another. A pair reads as its rate: float(pair), or pair.rate."""

    truth: str
    predicted: str
    cost: float
    errors: int
    samples: int

    @property
    def rate(self) -> float:
        return self.errors / self.samples if self.samples else float("nan")

    @property
    def bounds(self) -> Interval:
        """Two-sided exact 95 % bounds."""
        return exact_bounds(self.errors, self.samples) if self.samples else Interval(0.0, 1.0)

    def __float__(self) -> float:
        return self.rate

    def __str__(self) -> str:
        if not self.samples:
            return f"{self.truth} -> {self.predicted}: no samples of {self.truth}"
        rate, bound = f"{100 * self.rate:.2f} %", f"{100 * at_most(self.errors, self.samples):.1f} % (one-sided 95 %)"
        return f"{self.truth} -> {self.predicted}: {self.errors} of {self.samples} ({rate}), at most {bound}"


@dataclass(frozen=True)
class Evaluation:
    """What a model got right and wrong, and what that cost.

    Costs are over all cases, and referring one is never free. Where the costs have a price for it (`referral_cost`), a
    referred case is charged that; accuracy and pair errors are over the others. Where they have none, every number is as if
    all cases had been decided automatically, and those really decided are judged apart (`decided`). With costs per sample
    (`paid`) every cost is what was really paid.
    """

    confusion: Counts
    costs: CostMatrix
    name: str = field(default="", kw_only=True)
    paid: Paid | None = field(default=None, kw_only=True)
    referred: int = field(default=0, kw_only=True)
    decided: Evaluation | None = field(default=None, kw_only=True)

    @classmethod
    def of(
        cls,
        truth: ArrayLike,
        predicted: ArrayLike,
        costs: CostMatrix,
        *,
        example_costs: ArrayLike | None = None,
        automatic: ArrayLike | None = None,
        name: str = "",
    ) -> Evaluation:
        """From labels and predictions.

        example_costs: [N, K], what predicting each class costs for that very sample, its truth being known; a correct
        prediction pays its entry too, usually 0. A prediction of REFER (-1) costs `costs.referral_cost`; where that is None,
        `automatic` must say what else would have been predicted for each sample.
        """
        truth, predicted = _class_numbers(truth, predicted, len(costs), REFER)
        kept, fee = predicted != REFER, costs.referral_cost
        if fee is None and not kept.all():
            if automatic is None:
                raise InputError(
                    "a case is referred (prediction -1), but what that costs is not known; give costs with a referral_cost"
                )
            whole = cls.of(truth, automatic, costs, example_costs=example_costs, name=name)
            table = None if example_costs is None else np.asarray(example_costs)[kept]
            decided = cls.of(truth[kept], predicted[kept], costs, example_costs=table, name=name)
            return replace(whole, referred=int((~kept).sum()), decided=decided)
        confusion = confusion_counts(truth[kept], predicted[kept], len(costs))
        paid = None
        if example_costs is not None:
            table = check_table(example_costs, "example costs", (len(truth), len(costs)))
            by_sample = np.where(kept, table[np.arange(len(truth)), predicted], fee or 0.0)
            by_pair = np.zeros(confusion.shape)
            np.add.at(by_pair, (truth[kept], predicted[kept]), by_sample[kept])
            paid = Paid(by_sample, by_pair)
        return cls(confusion, costs, name=name, paid=paid, referred=int((~kept).sum()))

    @property
    def charged(self) -> int:
        """The referred cases that are charged a price, and not counted as if they had been decided."""
        return 0 if self.decided is not None else self.referred

    @property
    def samples(self) -> int:
        return int(self.confusion.sum()) + self.charged

    @property
    def coverage(self) -> float:
        """The share of cases that were decided automatically."""
        return (self.samples - self.referred) / max(self.samples, 1)

    @property
    def referral(self) -> str:
        """In words: how many cases are left to a person, and what that does to the numbers. "" where none is."""
        if not self.referred:
            return ""
        left = f"{self.referred:,} of {self.samples:,} cases are left to a person"
        if self.decided is None:
            return f"{left}, at {self.costs.referral_cost:g} each; accuracy and errors are of the others."
        apart = f"{100 * self.decided.mean_cost:.2f} per 100 at {100 * self.decided.accuracy:.2f} % accuracy"
        return (
            f"{left}. What that costs is not given, so the numbers are those of deciding every case automatically. The "
            f"{self.decided.samples:,} others alone cost {apart}."
        )

    @property
    def accuracy(self) -> float:
        return accuracy(self.confusion)

    @property
    def total_cost(self) -> float:
        if self.paid is not None:
            return float(self.paid.by_sample.sum())
        return total_cost(self.confusion, self.costs) + self.charged * (self.costs.referral_cost or 0.0)

    @property
    def mean_cost(self) -> float:
        """Of a case, whether decided or referred."""
        return self.total_cost / max(self.samples, 1)

    @property
    def pairwise_error_rates(self) -> NDArray[np.float64]:
        return pairwise_error_rates(self.confusion)

    def pair_error(self, y: ClassLike, z: ClassLike) -> PairError:
        i, j = self.costs.index(y), self.costs.index(z)
        names = self.costs.classes
        row = self.confusion[i]
        return PairError(names[i], names[j], float(self.costs.values[i, j]), int(row[j]), int(row.sum()))

    def top_pairs(self, k: int = 3) -> list[PairError]:
        """The pairs with the highest cost per mistake, and how often they happened."""
        return [self.pair_error(y, z) for y, z in self.costs.top_pairs(k)]

    def costliest_pairs(self, k: int = 3) -> list[PairError]:
        """The pairs that cost most in total, most expensive first; pairs that cost nothing are left out."""
        return self._largest(self.paid.by_pair if self.paid is not None else self.confusion * self.costs.values, k)

    def most_confused(self, k: int = 5) -> list[PairError]:
        """The mistakes that happened most often."""
        return self._largest(self.confusion * ~np.eye(len(self.costs), dtype=bool), k)

    def _largest(self, table: NDArray[Any], k: int) -> list[PairError]:
        order = np.argsort(-table, axis=None, kind="stable")[:k].tolist()
        return [self.pair_error(*divmod(i, len(table))) for i in order if table.flat[i] > 0]

    def interval(self, statistic: str, confidence: float = 0.95, *, draws: int = 2000, seed: int = 0) -> Interval:
        """Two-sided percentile bootstrap over the test samples for accuracy, mean_cost or total_cost.

        A statistic of the counts sees a sample only through its cell (referred cases are one more), so drawing samples
        again is drawing the table from a multinomial: the samples themselves are not needed.
        """
        if self.paid is not None and statistic != "accuracy":
            return bootstrap_paid(self.paid.by_sample, statistic, confidence, draws, seed)
        check_statistic(statistic)
        counts, n = np.append(self.confusion, self.charged), self.samples
        if n == 0:
            return Interval(float("nan"), float("nan"))
        cells = np.flatnonzero(counts)
        tables = np.random.default_rng(seed).multinomial(n, counts[cells] / n, size=draws)
        if statistic == "accuracy":
            automatic = tables @ np.append(np.ones(self.confusion.size), 0.0)[cells]
            values = tables @ np.append(np.eye(len(self.confusion)), 0.0)[cells] / np.maximum(automatic, 1)
        else:
            values = tables @ np.append(self.costs.values, self.costs.referral_cost or 0.0)[cells]
            values = values if statistic == "total_cost" else values / n
        return _percentiles(values, confidence)

    def __str__(self) -> str:
        low, high = self.interval("mean_cost")
        lines = [
            f"{self.samples:,} samples, accuracy {100 * self.accuracy:.2f} %, "
            f"cost per 100 predictions {100 * self.mean_cost:.2f} "
            f"(two-sided 95 %: {100 * low:.2f} to {100 * high:.2f}), total cost {self.total_cost:g}",
            *filter(None, [self.referral]),
            *(f"  {pair}" for pair in self.top_pairs(3)),
        ]
        return "\n".join(lines)
