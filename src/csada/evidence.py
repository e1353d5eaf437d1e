"""What is known about a classifier: how it was trained, and what validation and test say of each way to use it.

Plain values and NumPy arrays, so that a report needs neither PyTorch nor the data. Every number derives from the scores: a row
of the comparison is a model (a side: before, after) and how it decides (by argmax, or by its decision rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.costs import CostMatrix
from csada.decisions import CALIBRATIONS, Admission, Decision, Judged, Limits, Rule, argmax, half_expected, judged
from csada.errors import InputError
from csada.metrics import REFER, Evaluation, Interval, bootstrap_paid

INTERPOLATES = 0.01  # training loss without augmentation below which a model counts as fitting its data
HELD_OUT = ("validation", "test")
PRICE = "referral_cost"  # the array of one number that holds it
ROWS = {
    "before": "the model as it was",
    "before + rule": "the model as it was, with the decision rule",
    "after": "the improved model",
    "after + rule": "the improved model, with its decision rule",
}
IMAGE = ("u1", (None, None, 3))
# arrays of as many rows; type and shape of a row
PICTURES: tuple[dict[str, tuple[str, tuple[int | None, ...]]], ...] = (
    {"mistakes": ("i", (3,)), "mistake_images": IMAGE},
    {"examples": ("i", (2,)), "perturbations": ("f", (2,)), "original_images": IMAGE, "adversarial_images": IMAGE},
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Environment:
    """What it was run with: versions and the kind of device; no paths and no names of machines."""

    csada: str
    commit: str | None
    python: str
    packages: dict[str, str]
    device: str
    threads: int


@dataclass(frozen=True)
class Attacks:
    """How the attacks on one pair ended."""

    truth: int
    predicted: int
    skipped: int = 0
    rejected: int = 0
    reached: int = 0
    exhausted: int = 0


@dataclass(frozen=True)
class EpochLine:
    epoch: int
    loss: float
    lr: float
    seconds: float
    validation_accuracy: float | None = None
    validation_cost: float | None = None  # the mean cost of a prediction, by argmax
    attacks: tuple[Attacks, ...] = ()


@dataclass(frozen=True)
class Training:
    """How a model was trained from its first weights on."""

    data: str
    model: str
    recipe: str
    seed: int
    pretrained: str | None
    samples: dict[str, int]
    loss: float  # on the training part, without augmentation
    accuracy: dict[str, float]
    history: tuple[EpochLine, ...]
    environment: Environment
    run: str = ""  # the same for the same settings and data

    @property
    def interpolates(self) -> bool:
        return self.loss < INTERPOLATES

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.history)


@dataclass(frozen=True)
class Evidence:
    """What `csada fit` found. `chosen` is the row that validation chose: the saved classifier is that one."""

    data: str
    classes: tuple[str, ...]
    samples: dict[str, int]
    architecture: str
    method: str
    options: dict[str, Any]
    budget: float  # points of accuracy that may be lost on validation, against "before"
    refer: float | None  # the share of cases that may be left to a person; None: any, where a referral has a price
    rules: dict[str, Decision]  # of each side
    chosen: str
    history: tuple[EpochLine, ...]
    environment: Environment
    started: str
    trials: int = 0  # settings that were tried on the same validation samples
    seen: int = 0  # validation and test samples that the given model was trained on, kept knowingly
    admissions: tuple[Admission, ...] = ()  # the members of `after`, each added to those before, and what was left out
    limits: Limits | None = None  # in place of the accuracy budget
    passes: int = 1  # forward passes that the saved classifier needs per sample
    mistaken: tuple[str, ...] = ()  # files of the pictured mistakes; () where the samples are no files
    arrays: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # kept in a file of their own

    def __post_init__(self) -> None:
        if "before" not in self.rules or not set(self.rules) <= {"before", "after"}:
            raise InputError(f"rules are for {', '.join(self.rules)}; before, or before and after, are needed")
        if self.chosen not in self.rows_of(self.rules):
            raise InputError(f"chosen is {self.chosen!r}; known rows: {', '.join(self.rows_of(self.rules))}")
        if missing := [part for part in ("train", *HELD_OUT) if part not in self.samples]:
            raise InputError(f"samples lacks {', '.join(missing)}")
        if not self.arrays:
            return
        k = len(self.classes)
        numbers: list[Any] = [[(a.truth, a.predicted) for line in self.history for a in line.attacks]]
        for part in HELD_OUT:
            labels = self._array(f"{part}_labels", "i", (None,))
            numbers.append(labels)
            for side in self.rules:
                self._array(f"{side}_{part}", "f", (len(labels), k))
                if part == "validation" and f"{side}_held_out" in self.arrays:
                    found = self._array(f"{side}_held_out", "i", (len(labels),))
                    refers = self.rules[side].refer_above is not None
                    numbers.append(found[found != REFER] if refers else found)
        if self.limits is not None:
            self._array("limits_tested", "b", self.labels("validation").shape)
            self.limits.resolved(self.classes)
        self._array("costs", "f", (k, k))
        if PRICE in self.arrays:
            self._array(PRICE, "f", (1,))
        for rule in self.rules.values():
            rule.rule(self.costs)  # refuses what does not fit the classes
        for group in PICTURES:
            if not any(name in self.arrays for name in group):
                continue
            first, *others = (self._array(name, kind, (None, *row)) for name, (kind, row) in group.items())
            if any(len(first) != len(other) for other in others):
                raise InputError(f"{', '.join(group)} differ in length")
            numbers.append(first[:, -2:])  # truth and predicted
        if self.mistaken and len(self.mistaken) != len(self.arrays.get("mistakes", ())):
            raise InputError(f"the evidence does not fit together: {len(self.mistaken)} names of mistakes")
        for each in map(np.asarray, numbers):
            if each.size and not 0 <= each.min() <= each.max() < k:
                raise InputError(f"the evidence does not fit together: it numbers classes {each.min()} to {each.max()}")

    def _array(self, name: str, kind: str, shape: tuple[int | None, ...]) -> Array:
        if name not in self.arrays:
            raise InputError(f"the evidence does not fit together: {name} is missing")
        found = np.asarray(self.arrays[name])
        fits = len(found.shape) == len(shape) and all(b in (None, a) for a, b in zip(found.shape, shape, strict=True))
        if not fits or not found.dtype.str[1:].startswith(kind):
            raise InputError(f"the evidence does not fit together: {name} is {found.dtype} of shape {found.shape}")
        if not np.isfinite(found).all():
            raise InputError(f"the evidence does not fit together: {name} is not finite")
        return found

    @staticmethod
    def rows_of(sides: Mapping[str, Any]) -> list[str]:
        return [row for row in ROWS if row.split()[0] in sides]

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.history)

    @property
    def improved(self) -> bool:
        """Whether there is another model than the given one to compare."""
        return "after" in self.rules

    @cached_property
    def costs(self) -> CostMatrix:
        return costs_in(self.arrays, self.classes)

    @cached_property
    def validation(self) -> dict[str, Evaluation]:
        return {row: self.evaluation(row, "validation") for row in self.rows_of(self.rules)}

    @cached_property
    def test(self) -> dict[str, Evaluation]:
        """Every row on the test part."""
        return {row: self.evaluation(row, "test") for row in self.rows_of(self.rules)}

    @property
    def decision(self) -> Decision:
        """How the saved classifier decides."""
        return self.rules[side_of(self.chosen)] if "rule" in self.chosen else Decision.of(argmax)

    @property
    def must_refer(self) -> bool:
        """Whether a share of the cases is to be left to a person, at no stated price."""
        return bool(self.refer) and self.costs.referral_cost is None

    def rule(self, row: str) -> Rule:
        return self.rules[side_of(row)].rule(self.costs) if "rule" in row else argmax

    def automatic(self, row: str) -> Rule:
        """The row's rule, without a person."""
        return self.rules[side_of(row)].automatic(self.costs) if "rule" in row else argmax

    def logits(self, side: str, part: str = "test") -> Array:
        return np.asarray(self.arrays[f"{side}_{part}"])

    def labels(self, part: str = "test") -> Array:
        return np.asarray(self.arrays[f"{part}_labels"])

    def decided(self, row: str, part: str = "test") -> Array:
        """[N]: the row's prediction for every sample, REFER where a person decides; without a price for that, nowhere.

        On validation a rule decides each sample as it does when it is fitted to the others: see decisions.held_out.
        """
        side, priced = side_of(row), self.costs.referral_cost is not None
        found = np.asarray((self.rule(row) if priced else self.automatic(row))(self.logits(side, part)))
        if "rule" in row and part == "validation" and (name := f"{side}_held_out") in self.arrays:
            held_out = np.asarray(self.arrays[name])  # older ones refer without a price
            return held_out if priced else np.where(held_out == REFER, found, held_out)
        return found

    def evaluation(self, row: str, part: str = "test") -> Evaluation:
        """On validation a cost is half counted and half expected: see decisions.half_expected."""
        half = self._half_expected[side_of(row)] if part == "validation" else None
        decided = automatic = self.decided(row, part)
        if self.costs.referral_cost is None:
            left = np.asarray(self.rule(row)(self.logits(side_of(row), part))) == REFER
            decided = np.where(left, REFER, automatic)
        return Evaluation.of(self.labels(part), decided, self.costs, example_costs=half, automatic=automatic, name=row)

    @cached_property
    def _half_expected(self) -> dict[str, Array | None]:
        found: dict[str, Array | None] = dict.fromkeys(self.rules)
        for side, rule in self.rules.items():
            if f"{side}_held_out" in self.arrays:
                kind = CALIBRATIONS[0 if rule.scaling is None else np.ndim(rule.scaling.scale)]
                scores, labels = self.logits(side, "validation"), self.labels("validation")
                found[side] = half_expected(scores, labels, self.costs, kind)
        return found

    def judged(self, row: str, part: str = "validation") -> tuple[Judged, ...]:
        """Each limit on a row: on validation by the samples that tested the rules, at half the risk where there are two."""
        if self.limits is None:
            return ()
        which = np.asarray(
            self.arrays["limits_tested"] if part == "validation" else np.ones(len(self.labels(part)), bool)
        )
        decided, before = (np.asarray(self.rule(r)(self.logits(side_of(r), part))) for r in (row, "before"))
        known, tries = self.limits.resolved(self.classes), len(self.rules) if part == "validation" else 1
        return judged(known, self.labels(part)[which], decided[which], before[which], tries)

    def paid(self, row: str) -> NDArray[np.float64]:
        """[N]: what every test sample cost."""
        predicted, price = self.decided(row), self.costs.referral_cost or 0.0
        return np.where(predicted == REFER, price, self.costs.values[self.labels(), predicted])

    def cheapest(self) -> str:
        """The row that costs least on validation among those that lose at most `budget` points of accuracy there.

        Of equals the first side, which changes least, and of this the rule, which knows of mistakes that validation lacks;
        unless all mistakes cost the same. A share that is to be referred at no stated price needs a rule: only that refers.
        Accuracy is that of deciding every case. Where there are limits, they count in place of the budget: the cheapest rule
        that keeps them.
        """
        labels, uniform = self.labels("validation"), len(np.unique(self.costs.mistakes)) == 1

        def accuracy(row: str) -> float:
            return float((np.asarray(self.automatic(row)(self.logits(side_of(row), "validation"))) == labels).mean())

        def order(row: str) -> tuple[bool, float, bool, bool]:
            cannot = self.must_refer and "rule" not in row
            return cannot, self.validation[row].mean_cost, side_of(row) == "after", ("rule" in row) == uniform

        if self.limits is not None:  # only rules were sought and tested for them
            rules = [row for row in self.validation if "rule" in row]
            return min(rules, key=lambda row: (not all(limit.kept for limit in self.judged(row)), *order(row)))
        needed = accuracy("before") - self.budget / 100 - 1e-12
        return min((row for row in self.validation if accuracy(row) >= needed), key=order)

    def change(self, first: str, second: str) -> Interval:
        """The 95 % interval of the change in cost per 100 predictions on test: paired, since both decided the same samples."""
        low, high = bootstrap_paid(self.paid(second) - self.paid(first), "mean_cost")
        return Interval(100 * low, 100 * high)


def arrays_of(costs: CostMatrix) -> dict[str, Array]:
    """The costs as a file keeps them; `costs_in` reads them."""
    price = costs.referral_cost
    return {"costs": costs.values} | ({} if price is None else {PRICE: np.array([price])})


def costs_in(arrays: Mapping[str, Any], classes: Sequence[str]) -> CostMatrix:
    return CostMatrix(arrays["costs"], classes, float(arrays[PRICE][0]) if PRICE in arrays else None)


def side_of(row: str) -> str:
    return row.partition(" ")[0]
