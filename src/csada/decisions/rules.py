"""From scores to decisions. A rule is a small frozen value that is called on logits and returns predictions.

The honest rival of every training method: keep the model, calibrate its probabilities on validation data, and predict
the class of least expected cost,  argmin_z sum_y p(y | x) c(y, z).  Three variations: less of it, where accuracy may
not suffer (`strength`); other class frequencies than in training (`priors`); a person for the rest (`Abstention`).
Limits on rates are linear in decisions too: they add `multipliers` to the costs (csada.decisions.constrained).

`Decided` is the only place that decides by cost: scikit-learn, MetaCost and the report call it, and the ONNX graph repeats
it in float64 (a test compares them sample by sample). Pure NumPy: the rules also run on stored logits. A torch tensor
goes in and a torch tensor comes out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from csada.costs import CostMatrix
from csada.decisions.arrays import Floats, Labels, as_array, checked_logits, checked_probabilities, labelled, like
from csada.decisions.calibration import Scaling, cross_fitted, fit_calibration
from csada.errors import InputError
from csada.metrics import REFER, check_table

Rule = Callable[[Any], Any]
Matrix = tuple[tuple[float, ...], ...]

TIE = 1e-12  # costs are the same when they differ by less than this share of themselves and of a mistake's mean cost
STRENGTHS = (0.0, *(float(odds / (1 + odds)) for odds in np.geomspace(1e-3, 1e3, 61)), 1.0)

LEAST = 0.001  # accuracy: a tenth of a point
ROUNDED = 0.001  # of a probability, or of a cost
EXPECTED = 0.5  # share of what is expected, which varies little, in costs and leads that are otherwise counted


def argmax(logits: Any) -> Any:
    """The most probable class, whatever a mistake costs."""
    return like(checked_logits(logits).argmax(1), logits)


class CostsByTruth:
    """[N, K], known before the truth is: c_i(y) is what it costs to get sample i wrong should its class be y.

    A loan of 5,000: 5,000 lost if it is a bad one, 300 of interest if it is a good one. The expected cost of
    predicting z is then sum_{y != z} p(y) c_i(y). Not to be mixed up with the table that `evaluate` takes, whose row
    says what predicting each class costs once the truth is known: `table(labels)` makes that of this.
    """

    def __init__(self, values: Any) -> None:
        self.values = check_table(as_array(values), "costs by truth")
        self.values.flags.writeable = False

    def table(self, labels: Any) -> Floats:
        """[N, K]: what predicting each class costs, the truth being known; nothing where it is right."""
        truth = as_array(labels).astype(np.int64)
        if truth.shape != self.values.shape[:1]:
            raise InputError(f"{truth.size} labels for costs of {len(self.values)} samples; give one label per row")
        rows = np.arange(len(truth))
        paid = np.repeat(self.values[rows, truth, None], self.values.shape[1], axis=1)
        paid[rows, truth] = 0.0
        return paid


Costs = CostMatrix | CostsByTruth


def _expected(p: Floats, costs: Costs) -> Floats:
    classes = costs.values.shape[1]
    if p.ndim != 2 or p.shape[1] != classes:
        raise InputError(f"scores of shape {p.shape} for {classes} classes; give one column per class")
    if isinstance(costs, CostMatrix):
        return np.asarray(p @ costs.values)
    if len(costs.values) != len(p):
        raise InputError(
            f"costs of shape {costs.values.shape} for scores of shape {p.shape}; give ({classes}, {classes}), truth by "
            f"prediction, or {p.shape}, one row per sample: what it costs to get it wrong, by its true class"
        )
    weighted = p * costs.values
    return np.asarray(weighted.sum(1, keepdims=True) - weighted)


def same_up_to(cost: Any, unit: float) -> Any:
    """The highest cost that counts as the same: sums of the same numbers in another order differ in their last digits."""
    return cost + TIE * (cost + unit)


@dataclass(frozen=True)
class Decided:
    """N samples, decided: the class of the least criterion; among those that tie the likeliest, then the first.

    The criterion is the expected cost under strength * c + (1 - strength) * unit, where unit is the mean cost of a
    mistake. Expected costs are linear in costs, and uniform costs give 1 - p. The unit also settles ties with 0: under
    a single costly pair all classes but one are expected to cost nothing. Multipliers, [K, K] like costs, are what
    limits charge on top: they choose, and no expected cost includes them.
    """

    likelihood: Floats  # [N, K]: what ranks the classes as the probabilities do, before they are rounded
    probabilities: Floats  # [N, K]: calibrated, and for the class frequencies of deployment
    expected_costs: Floats  # [N, K]: of predicting each class, whatever the strength
    unit: float
    strength: float = 1.0
    multipliers: Floats | None = None

    @cached_property
    def criterion(self) -> Floats:
        """[N, K]: what the chosen class has least of. At strength 1 and without multipliers, the expected costs."""
        found = self.strength * self.expected_costs + (1 - self.strength) * self.unit * (1 - self.probabilities)
        return found if self.multipliers is None else found + self.probabilities @ self.multipliers

    @cached_property
    def chosen(self) -> Labels:
        tied = self.criterion <= same_up_to(self.criterion.min(1, keepdims=True), self.unit)
        return np.asarray(np.where(tied, self.likelihood, -np.inf).argmax(1))

    @property
    def cost(self) -> Floats:
        """[N]: what the chosen class is expected to cost."""
        return self.expected_costs[np.arange(len(self.chosen)), self.chosen]

    @property
    def doubt(self) -> Floats:
        """[N]: what refers a case: the cost of the chosen class and what the limits charge for it."""
        if self.multipliers is None:
            return self.cost
        charged = self.expected_costs + self.probabilities @ self.multipliers
        return np.asarray(charged[np.arange(len(self.chosen)), self.chosen])

    @property
    def scores(self) -> Floats:
        """[N, K]: minus the criterion; where classes tie, the chosen one is just above the others."""
        scores = -self.criterion
        scores[np.arange(len(self.chosen)), self.chosen] = np.nextafter(scores.max(1), np.inf)
        return scores


def decide(probabilities: Any, costs: Costs) -> Decided:
    """By least expected cost under these probabilities."""
    p = checked_probabilities(probabilities)
    return Decided(p, p, _expected(p, costs), mean_cost(costs))


def by_scores(scores: Floats, costs: Costs, strength: float = 1.0, multipliers: Floats | None = None) -> Decided:
    """By scores whose softmax are calibrated probabilities."""
    p = np.asarray(softmax(scores, axis=1))
    return Decided(scores, p, _expected(p, costs), mean_cost(costs), strength, multipliers)


def spare_accuracy(p: Floats, top: Labels, truth: Labels, reference: Labels, needed: float) -> float:
    """What may be lost of the accuracy of the classes `top`, whose lead on the classes `reference` is luck in part.

    p: [N, K], calibrated without the labels of the same samples. The lead is half counted, half expected by p. Then a lead m,
    with standard error e, counts as m (1 - e^2 / m^2), and one within its error not at all (James and Stein).
    """
    rows, base = np.arange(len(top)), (reference == truth).astype(np.float64)
    lead = (1 - EXPECTED) * ((top == truth) - base) + EXPECTED * (p[rows, top] - p[rows, reference])
    m = float(lead.mean())
    luck = float(lead.var()) / len(lead) / m if m else 0.0
    spare = float(base.mean()) - needed + (m - luck if abs(luck) < abs(m) else 0.0)
    return max(spare, LEAST) if spare >= -TIE else spare


def affordable(decided: Decided, top: Labels, spare: float) -> tuple[float, ...]:
    """The strengths, the lowest first, that are expected to lose at most `spare` of the accuracy of the classes `top`."""
    p, rows = decided.probabilities, np.arange(len(top))
    by_probability, by_cost = (replace(decided, strength=strength).chosen for strength in (0.0, 1.0))
    moved = by_probability != by_cost  # criteria are linear in strength: the others are decided alike at all
    settled = float((p[rows, top] - np.where(moved, 0.0, p[rows, by_cost])).sum())
    moving = Decided(decided.likelihood[moved], p[moved], decided.expected_costs[moved], decided.unit)
    rows = rows[: len(moving.probabilities)]

    def loss(strength: float) -> float:
        chosen = replace(moving, strength=strength).chosen
        return (settled - float(moving.probabilities[rows, chosen].sum())) / len(top)

    return STRENGTHS[: bisect_right(STRENGTHS, spare + TIE, key=loss)]


@dataclass(frozen=True)
class MinimumExpectedCost:
    """Predict the class of least expected cost; among classes that cost the same the likelier one.

    costs: a CostMatrix, or an array. A square one is read as a CostMatrix, any other as CostsByTruth: one row for each
    sample that the rule will be called on. `dataclasses.replace(rule, costs=...)` takes a fitted rule to other samples.
    p = softmax(logits / temperature @ scale + bias) * priors, normalised; priors is deployment / training frequency.
    strength: 1 decides by the costs, 0 by probability alone, between them by costs interpolated towards their mean.
    multipliers: [K, K], zero or more, added to the costs where a class is chosen: what keeps limits.
    """

    costs: Costs
    temperature: float = 1.0
    scaling: Scaling | None = None
    priors: tuple[float, ...] | None = None
    strength: float = 1.0
    multipliers: Matrix | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.costs, CostMatrix | CostsByTruth):
            values = as_array(self.costs)
            square = values.ndim == 2 and values.shape[0] == values.shape[1]
            object.__setattr__(self, "costs", CostMatrix(values) if square else CostsByTruth(values))
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be a positive number, got {self.temperature}")
        if not 0 <= self.strength <= 1:
            raise InputError(f"strength must be from 0 (by probability) to 1 (by cost), got {self.strength}")
        if self.scaling is not None:
            k, scale, bias = self.classes, as_array(self.scaling.scale), as_array(self.scaling.bias)
            if scale.shape not in ((k,), (k, k)) or bias.shape != (k,):
                raise InputError(f"scaling has scales {scale.shape} and biases {bias.shape} for {k} classes")
        if self.priors is not None:
            ratio = as_array(self.priors)
            if ratio.shape != (self.classes,) or not (np.isfinite(ratio) & (ratio >= 0)).all() or ratio.sum() == 0:
                raise InputError(
                    f"priors are {ratio.tolist()}; give deployment / training frequency of each of the {self.classes} "
                    f"classes (prior_ratio computes it), zero or more and not all zero"
                )
            object.__setattr__(self, "priors", tuple(ratio.tolist()))
        if self.multipliers is not None:
            added = as_array(self.multipliers)
            if added.shape != (self.classes,) * 2 or not (np.isfinite(added) & (added >= 0)).all():
                raise InputError(
                    f"multipliers of shape {added.shape}; give {self.classes} x {self.classes} numbers, zero or more"
                )
            object.__setattr__(self, "multipliers", tuple(map(tuple, added.tolist())))

    @classmethod
    def calibrated(
        cls, logits: Any, labels: Any, costs: Costs, calibration: str = "temperature"
    ) -> MinimumExpectedCost:
        """The rule with its probabilities fitted on these logits and labels: validation data, never test.

        "vector" and "matrix" fit the temperature and then a `Scaling`: for confidence that is wrong class by class, or
        pair by pair.
        """
        return cls(costs, *fit_calibration(logits, labels, calibration))

    @classmethod
    def within_budget(
        cls,
        logits: Any,
        labels: Any,
        costs: Costs,
        budget: float = 0.005,
        *,
        needed: float | None = None,
        reference: Any = None,
        calibration: str = "temperature",
    ) -> MinimumExpectedCost:
        """The rule at the highest strength that loses at most `budget` of argmax's accuracy on these data (validation).

        Expected cost only falls with strength, so the budget decides. Two estimates of the loss must keep to it: the
        expected one, p(argmax) - p(chosen) by probabilities that were fitted on the other folds, and the one really
        counted. The first is precise where few samples make the count coarse; a loss of LEAST, which no count can tell
        from none, is always allowed by it. Counted costs must not rise above argmax's, but they do not choose: rare
        mistakes that these data happen to lack would make no strength look worth it.

        needed: the accuracy that must remain, instead of a budget. Where argmax itself has less, the strength is 0.
        reference: [N], the classes that another model predicts: the budget is counted from them instead. What these
        logits gain or lack against them, half counted and half expected, counts the more, the more it exceeds its
        standard error.
        """
        if not 0 <= budget <= 1:
            raise InputError(f"budget is the accuracy that may be lost, from 0 to 1; got {budget}")
        scores, truth = labelled(logits, labels)
        rule = cls.calibrated(scores, truth, costs, calibration)
        top = scores.argmax(1)
        base: Any = top if reference is None else as_array(reference)
        if base.shape != top.shape or not np.isin(base, np.arange(scores.shape[1])).all():
            raise InputError(
                f"reference has shape {base.shape}, values {np.unique(base).tolist()[:9]}; give the class that was predicted "
                f"for each of the {len(top)} samples, from 0 to {scores.shape[1] - 1}"
            )
        base = base.astype(np.int64)
        needed = float((base == truth).mean()) - budget if needed is None else needed
        held_out = by_scores(cross_fitted(scores, truth, calibration), rule.costs)
        fitted, most = rule.decide(scores), realised(rule.costs, truth, top).mean()
        spare = spare_accuracy(held_out.probabilities, top, truth, base, needed)
        for strength in reversed(affordable(held_out, top, spare)):
            chosen = replace(fitted, strength=strength).chosen
            paid = realised(rule.costs, truth, chosen).mean()
            if (chosen == truth).mean() >= needed - TIE and paid <= same_up_to(most, held_out.unit):
                return replace(rule, strength=strength)
        return replace(rule, strength=0.0)

    @property
    def classes(self) -> int:
        return int(self.costs.values.shape[1])

    @property
    def affine(self) -> tuple[Floats, Floats]:
        """([K, K], [K]): temperature, scaling and priors as one map, logits @ weights + bias."""
        weights, bias = np.eye(self.classes), np.zeros(self.classes)
        if self.scaling is not None:
            weights, bias = self.scaling.matrix, as_array(self.scaling.bias)
        if self.priors is not None:
            with np.errstate(divide="ignore"):  # of a class that does not occur; the lowest number in place of -inf
                bias = bias + np.nan_to_num(np.log(self.priors))
        return weights / self.temperature, bias

    def decide(self, logits: Any) -> Decided:
        """The decisions with their reasons."""
        weights, bias = self.affine
        scores = checked_logits(logits, self.classes) @ weights + bias
        added = None if self.multipliers is None else as_array(self.multipliers)
        return by_scores(scores, self.costs, self.strength, added)

    def contradicts(self, probabilities: Any, chosen: Labels) -> NDArray[np.bool_]:
        """[N]: whether other classes than these follow from calibrated probabilities, whatever digits a file left out."""
        p = np.maximum(as_array(probabilities), TIE)  # what was rounded to zero settles no tie
        rows, unit = np.arange(len(chosen)), mean_cost(self.costs)
        added = None if self.multipliers is None else as_array(self.multipliers)
        criterion = Decided(p, p, _expected(p, self.costs), unit, self.strength, added).criterion
        found, least, most = criterion[rows, chosen], criterion.min(1), max(unit, self.costs.values.max())
        same = abs(criterion.T - found) <= TIE * (found + unit)
        likelier = (same & (p.T - p[rows, chosen] > ROUNDED)).any(0)
        return np.asarray(likelier | (found - least > ROUNDED * (found + ROUNDED * most)))

    def probabilities(self, logits: Any) -> Floats:
        """[N, K]: calibrated, and reweighted to the classes' frequencies in deployment."""
        return self.decide(logits).probabilities

    def __call__(self, logits: Any) -> Any:
        return like(self.decide(logits).chosen, logits)


def mean_cost(costs: Costs) -> float:
    """Of a mistake; 1 where no mistake costs anything, so that probability decides."""
    values = costs.values
    mistakes = values.size - len(values) if isinstance(costs, CostMatrix) else values.size
    return float((values / mistakes).sum()) or 1.0


@dataclass(frozen=True)
class ThresholdMoving:
    """Zhou and Liu (2006): multiply p(y) by what mistaking class y costs in all, sum_z c(y, z), and take the largest.

    It moves the thresholds between classes and is exact where c(y, z) does not depend on z; where it does, the sum
    forgets which mistake is the expensive one, and MinimumExpectedCost does not.
    """

    costs: CostMatrix
    temperature: float = 1.0

    @property
    def rule(self) -> MinimumExpectedCost:
        """p(y) * sum_z c(y, z) are its probabilities, normalised. A class that may be mistaken for free is never predicted."""
        weights = self.costs.values.sum(1)
        return MinimumExpectedCost(self.costs, self.temperature, priors=weights if weights.any() else None, strength=0)

    def __call__(self, logits: Any) -> Any:
        return self.rule(logits)


@dataclass(frozen=True)
class Abstention:
    """The rule's decision, or REFER (-1), a person's, where the decision is expected to cost more than `refer_above`.

    Expected costs are real ones, whatever the rule's strength: at the price of a referral (`CostMatrix.referral_cost`) or
    above it, referring never costs more in expectation than not to.
    Where limits charge for a decision, that counts too (`Decided.doubt`).
    """

    rule: MinimumExpectedCost
    refer_above: float

    def __post_init__(self) -> None:
        if not 0 <= self.refer_above < math.inf:
            raise InputError(
                f"refer_above is {self.refer_above}; give the expected cost above which a person decides, zero or more"
            )

    @property
    def limit(self) -> float:
        """The highest expected cost that is still decided: the threshold itself, up to rounding."""
        return float(same_up_to(self.refer_above, mean_cost(self.rule.costs)))

    def __call__(self, logits: Any) -> Any:
        decided = self.rule.decide(logits)
        return like(np.where(decided.doubt > self.limit, REFER, decided.chosen), logits)


@dataclass(frozen=True)
class Decision:
    """How a classifier decides, but for the costs: what a file keeps of a rule. The default takes the most probable class."""

    temperature: float = 1.0
    scaling: Scaling | None = None
    priors: tuple[float, ...] | None = None
    strength: float = 0.0
    refer_above: float | None = None
    multipliers: Matrix | None = None

    FORMER: ClassVar = {"vector": "scaling", "referral_cost": "refer_above"}  # names in older files

    @classmethod
    def of(cls, rule: Rule) -> Decision:
        inner = rule.rule if isinstance(rule, Abstention) else rule
        if inner is argmax:
            return cls()
        if not isinstance(inner, MinimumExpectedCost) or not isinstance(inner.costs, CostMatrix):
            raise InputError(
                f"{type(inner).__name__} cannot be kept; only MinimumExpectedCost with a cost matrix, or argmax"
            )
        above = rule.refer_above if isinstance(rule, Abstention) else None
        return cls(inner.temperature, inner.scaling, inner.priors, inner.strength, above, inner.multipliers)

    def automatic(self, costs: CostMatrix) -> MinimumExpectedCost:
        """The rule for those costs, without a person."""
        return MinimumExpectedCost(costs, self.temperature, self.scaling, self.priors, self.strength, self.multipliers)

    def rule(self, costs: CostMatrix) -> MinimumExpectedCost | Abstention:
        rule = self.automatic(costs)
        return rule if self.refer_above is None else Abstention(rule, self.refer_above)


def realised(costs: Costs, truth: Labels, predicted: Labels) -> Floats:
    """[N]: what each prediction did cost."""
    if isinstance(costs, CostMatrix):
        return costs.values[truth, predicted]
    return np.where(truth == predicted, 0.0, costs.values[np.arange(len(truth)), truth])


class Frontier(NamedTuple):
    """Accuracy against cost as the rule's strength goes from argmax (0) to the whole costs (1)."""

    strength: Floats
    accuracy: Floats
    mean_cost: Floats


def frontier(logits: Any, labels: Any, rule: MinimumExpectedCost) -> Frontier:
    """Every strength of the rule on these data; the rule's own is ignored."""
    _, truth = labelled(logits, labels, rule.classes)
    given = rule.decide(logits)
    decided = [replace(given, strength=strength).chosen for strength in STRENGTHS]
    return Frontier(
        np.array(STRENGTHS),
        np.array([(predicted == truth).mean() for predicted in decided]),
        np.array([realised(rule.costs, truth, predicted).mean() for predicted in decided]),
    )


RULES: dict[str, Rule] = {"argmax": argmax}
