"""From scores to decisions. A rule is a small frozen value that is called on logits and returns predictions.

The honest rival of every training method: keep the model, calibrate its probabilities on validation data, and predict
the class of least expected cost,  argmin_z sum_y p(y | x) c(y, z).  Three variations: less of it, where accuracy may
not suffer (`strength`); other class frequencies than in training (`priors`); a person for the rest (`Abstention`).

`Decided` is the only place that decides by cost: scikit-learn, MetaCost and the report call it, and the ONNX graph repeats
it in float64 (a test compares them sample by sample). Pure NumPy: the rules also run on stored logits. A torch tensor
goes in and a torch tensor comes out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax, softmax

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.metrics import REFER, check_table

Rule = Callable[[Any], Any]
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

CALIBRATIONS = ("temperature", "vector")
PULL = 10.0  # of vector scaling to the identity, in samples: a standard deviation of 0.22 on every scale and bias
TIE = 1e-12  # costs are the same when they differ by less than this share of themselves and of a mistake's mean cost
STRENGTHS = (0.0, *(float(odds / (1 + odds)) for odds in np.geomspace(1e-3, 1e3, 61)), 1.0)


def as_array(values: Any) -> Floats:
    """Any array or tensor, on any device, as float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _like(result: Labels, given: Any) -> Any:
    """A tensor where a tensor was given, on its device."""
    if hasattr(given, "detach"):
        import torch

        return torch.from_numpy(result).to(given.device)
    return result


def _logits(values: Any, classes: int | None = None) -> Floats:
    scores = as_array(values)
    if scores.ndim != 2 or (classes is not None and scores.shape[1] != classes):
        needed = "(samples, classes)" if classes is None else f"(samples, {classes})"
        raise InputError(f"scores of shape {scores.shape}; {needed} is needed: give one column a class")
    if not np.isfinite(scores).all():
        i = int(np.argwhere(~np.isfinite(scores))[0, 0])
        raise InputError(f"the scores of sample {i} are {scores[i].tolist()[:10]}; check the model and its inputs")
    return scores


def _labelled(logits: Any, labels: Any, classes: int | None = None) -> tuple[Floats, Labels]:
    scores, truth = _logits(logits, classes), as_array(labels).astype(np.int64)
    if len(scores) == 0 or truth.shape != (len(scores),):
        raise InputError(f"{len(scores)} rows of logits and {truth.size} labels; a fit needs one label a row")
    if not (truth.min() >= 0 and truth.max() < scores.shape[1]):
        bad = truth[(truth < 0) | (truth >= scores.shape[1])][0]
        raise InputError(f"label {bad} is out of range; the logits score {scores.shape[1]} classes, counted from 0")
    return scores, truth


def _probabilities(values: Any, what: str = "probabilities") -> Floats:
    """Rows that sum to one, to within what half precision loses."""
    rows = as_array(values)
    sums = rows.sum(axis=-1)
    bad = ~((rows >= 0).all(axis=-1) & (np.abs(sums - 1) <= 2e-3))
    if bad.any():
        where = f" of sample {int(np.flatnonzero(bad)[0])}" if rows.ndim == 2 else ""
        row = rows[bad][0] if rows.ndim == 2 else rows
        raise InputError(
            f"the {what}{where} are {np.round(row, 4).tolist()[:10]} and sum to {row.sum():.4g}; "
            f"they must be zero or more and sum to 1 (softmax turns logits into probabilities)"
        )
    return rows


def argmax(logits: Any) -> Any:
    """The most probable class, whatever a mistake costs."""
    return _like(_logits(logits).argmax(1), logits)


def fit_temperature(logits: Any, labels: Any, weights: Any = None) -> float:
    """The T > 0 that minimises the cross-entropy of softmax(logits / T): it changes confidence, never the ranking.

    Where every label has the highest score, the best T would be 0. One more sample is then assumed, which may be of any
    class: confidence ends near what N right samples can show, (N + 1) / (N + 2). Where the labels score no higher than
    the other classes, the best T would be infinite: a warning says so, and all classes become almost equally probable.
    """
    scores, truth = _labelled(logits, labels)
    above = scores - scores[np.arange(len(truth)), truth, None]
    spread = float(np.abs(above).max()) or 1.0
    above, weights = above / spread, np.ones(len(truth)) if weights is None else as_array(weights)

    def slope(log_beta: float, doubt: float = 0.0) -> float:
        """Of the cross-entropy in beta = spread / T, in which it is convex; `doubt`: the share of unknown labels."""
        gained = (softmax(above * np.exp(log_beta), axis=1) * above).sum(1) - doubt * above.mean(1)
        return float(np.average(gained, weights=weights))

    low, high = -20.0, 20.0
    if slope(low) >= 0:
        warnings.warn(
            "the true class scores no higher than the others on these data, so that all classes get about the same "
            "probability; check that the labels follow the order of the classes",
            stacklevel=2,
        )
        return 100 * spread
    doubt = 1 / (1 + weights.sum()) if slope(high) <= 0 else 0.0
    return spread / float(np.exp(brentq(slope, low, high, args=(doubt,), xtol=1e-9)))


class VectorScaling(NamedTuple):
    """A scale and a bias a class, for logits that a temperature has scaled already."""

    scale: tuple[float, ...]
    bias: tuple[float, ...]


def fit_vector_scaling(logits: Any, labels: Any) -> VectorScaling:
    """The w and b that minimise the cross-entropy of softmax(w * logits + b), pulled to w = 1 and b = 0.

    The pull, PULL / N * (|w - 1|^2 + |b|^2), weighs as much as a few samples: it decides where there are hardly any,
    for instance for a class that they lack, and fades as their number N grows.
    """
    scores, truth = _labelled(logits, labels)
    n, k = scores.shape
    one_hot = np.eye(k)[truth]
    identity = np.repeat([1.0, 0.0], k)

    def objective(parameters: Floats) -> tuple[float, Floats]:
        log_p = log_softmax(scores * parameters[:k] + parameters[k:], axis=1)
        residual = np.exp(log_p) - one_hot
        away = parameters - identity
        loss = -(log_p * one_hot).sum() + PULL * (away**2).sum()
        gradient = np.concatenate([(residual * scores).sum(0), residual.sum(0)]) + 2 * PULL * away
        return float(loss) / n, gradient / n

    fitted = minimize(objective, identity, jac=True, method="L-BFGS-B").x.tolist()
    return VectorScaling(tuple(fitted[:k]), tuple(fitted[k:]))


def prior_ratio(train_priors: ArrayLike, deployment_priors: ArrayLike) -> Floats:
    """deployment / training frequency of every class: the `priors` of MinimumExpectedCost."""
    train, deployment = (
        _probabilities(train_priors, "training priors"),
        _probabilities(deployment_priors, "deployment priors"),
    )
    if train.shape != deployment.shape or train.ndim != 1:
        raise InputError(
            f"{train.shape} training and {deployment.shape} deployment priors; give one number per class in each"
        )
    if (unseen := np.flatnonzero((train == 0) & (deployment > 0))).size:
        raise InputError(
            f"class {unseen[0]} was never seen in training (prior 0) but comes in deployment "
            f"({deployment[unseen[0]]:g}); no weight makes up for that: train on it, or set its deployment prior to 0"
        )
    return np.divide(deployment, train, out=np.zeros_like(train), where=train > 0)


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
            raise InputError(f"{truth.size} labels for costs of {len(self.values)} samples; give one label a row")
        rows = np.arange(len(truth))
        paid = np.repeat(self.values[rows, truth, None], self.values.shape[1], axis=1)
        paid[rows, truth] = 0.0
        return paid


Costs = CostMatrix | CostsByTruth


def _expected(p: Floats, costs: Costs) -> Floats:
    classes = costs.values.shape[1]
    if p.ndim != 2 or p.shape[1] != classes:
        raise InputError(f"scores of shape {p.shape} for {classes} classes; give one column a class")
    if isinstance(costs, CostMatrix):
        return np.asarray(p @ costs.values)
    if len(costs.values) != len(p):
        raise InputError(
            f"costs of shape {costs.values.shape} for scores of shape {p.shape}; give ({classes}, {classes}), truth by "
            f"prediction, or {p.shape}, a row a sample: what it costs to get it wrong, by its true class"
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
    a single costly pair all classes but one are expected to cost nothing.
    """

    likelihood: Floats  # [N, K]: what ranks the classes as the probabilities do, before they are rounded
    probabilities: Floats  # [N, K]: calibrated, and for the class frequencies of deployment
    expected_costs: Floats  # [N, K]: of predicting each class, whatever the strength
    unit: float
    strength: float = 1.0

    @cached_property
    def criterion(self) -> Floats:
        """[N, K]: what the chosen class has least of. At strength 1 these are the expected costs."""
        return self.strength * self.expected_costs + (1 - self.strength) * self.unit * (1 - self.probabilities)

    @cached_property
    def chosen(self) -> Labels:
        tied = self.criterion <= same_up_to(self.criterion.min(1, keepdims=True), self.unit)
        return np.asarray(np.where(tied, self.likelihood, -np.inf).argmax(1))

    @property
    def cost(self) -> Floats:
        """[N]: what the chosen class is expected to cost."""
        return self.expected_costs[np.arange(len(self.chosen)), self.chosen]

    @property
    def scores(self) -> Floats:
        """[N, K]: minus the criterion; where classes tie, the chosen one is just above the others."""
        scores = -self.criterion
        scores[np.arange(len(self.chosen)), self.chosen] = np.nextafter(scores.max(1), np.inf)
        return scores


def decide(probabilities: Any, costs: Costs) -> Decided:
    """By least expected cost under these probabilities."""
    p = _probabilities(probabilities)
    return Decided(p, p, _expected(p, costs), mean_cost(costs))


@dataclass(frozen=True)
class MinimumExpectedCost:
    """Predict the class of least expected cost; among classes that cost the same the likelier one.

    costs: a CostMatrix, or an array. A square one is read as a CostMatrix, any other as CostsByTruth: one row for each
    sample that the rule will be called on. `dataclasses.replace(rule, costs=...)` takes a fitted rule to other samples.
    p = softmax(scale * logits / temperature + bias) * priors, normalised; priors is deployment / training frequency.
    strength: 1 decides by the costs, 0 by probability alone, between them by costs interpolated towards their mean.
    """

    costs: Costs
    temperature: float = 1.0
    vector: VectorScaling | None = None
    priors: tuple[float, ...] | None = None
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.costs, CostMatrix | CostsByTruth):
            values = as_array(self.costs)
            square = values.ndim == 2 and values.shape[0] == values.shape[1]
            object.__setattr__(self, "costs", CostMatrix(values) if square else CostsByTruth(values))
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be a positive number, got {self.temperature}")
        if not 0 <= self.strength <= 1:
            raise InputError(f"strength must be from 0 (by probability) to 1 (by cost), got {self.strength}")
        if self.priors is not None:
            ratio = as_array(self.priors)
            if ratio.shape != (self.classes,) or not (np.isfinite(ratio) & (ratio >= 0)).all() or ratio.sum() == 0:
                raise InputError(
                    f"priors are {ratio.tolist()}; give deployment / training frequency of each of the {self.classes} "
                    f"classes (prior_ratio computes it), zero or more and not all zero"
                )
            object.__setattr__(self, "priors", tuple(ratio.tolist()))

    @classmethod
    def calibrated(
        cls, logits: Any, labels: Any, costs: Costs, calibration: str = "temperature"
    ) -> MinimumExpectedCost:
        """The rule with its probabilities fitted on these logits and labels: validation data, never test.

        "vector" fits the temperature and then a scale and a bias a class: for confidence that is wrong class by class.
        """
        if calibration not in CALIBRATIONS:
            raise InputError(f"unknown calibration {calibration!r}; known: {', '.join(CALIBRATIONS)}")
        temperature = fit_temperature(logits, labels)
        vector = fit_vector_scaling(as_array(logits) / temperature, labels) if calibration == "vector" else None
        return cls(costs, temperature, vector)

    @classmethod
    def within_budget(cls, logits: Any, labels: Any, costs: Costs, budget: float = 0.005) -> MinimumExpectedCost:
        """The strength that is cheapest on these data (validation) and loses at most `budget` of argmax's accuracy."""
        if not 0 <= budget <= 1:
            raise InputError(f"budget is the accuracy that may be lost, from 0 to 1; got {budget}")
        rule = cls.calibrated(logits, labels, costs)
        curve = frontier(logits, labels, rule)
        needed = float((argmax(as_array(logits)) == as_array(labels)).mean()) - budget
        allowed = curve.accuracy >= needed - 1e-12
        best = int(np.argmin(np.where(allowed, curve.weighted_error_rate, math.inf)))
        return replace(rule, strength=float(curve.strength[best]))

    @property
    def classes(self) -> int:
        return int(self.costs.values.shape[1])

    @property
    def affine(self) -> tuple[Floats, Floats]:
        """[K] each: temperature, vector scaling and priors as one scale and one bias of the logits."""
        scale, bias = map(as_array, self.vector or (np.ones(self.classes), np.zeros(self.classes)))
        if self.priors is not None:
            with np.errstate(divide="ignore"):  # of a class that does not occur; the lowest number in place of -inf
                bias = bias + np.nan_to_num(np.log(self.priors))
        return scale / self.temperature, bias

    def decide(self, logits: Any) -> Decided:
        """The decisions with their reasons."""
        scale, bias = self.affine
        scores = _logits(logits, self.classes) * scale + bias
        p = np.asarray(softmax(scores, axis=1))
        return Decided(scores, p, _expected(p, self.costs), mean_cost(self.costs), self.strength)

    def probabilities(self, logits: Any) -> Floats:
        """[N, K]: calibrated, and reweighted to the classes' frequencies in deployment."""
        return self.decide(logits).probabilities

    def __call__(self, logits: Any) -> Any:
        return _like(self.decide(logits).chosen, logits)


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
    """The rule's decision, or REFER (-1), a person's, where the decision is expected to cost more than that person.

    Expected costs are real ones, whatever the rule's strength: referring never costs more in expectation than not to.
    """

    rule: MinimumExpectedCost
    referral_cost: float

    def __post_init__(self) -> None:
        if not 0 <= self.referral_cost < math.inf:
            raise InputError(f"referral_cost is {self.referral_cost}; give what a referred case costs, zero or more")

    @property
    def limit(self) -> float:
        """The highest expected cost that is still decided: the referral cost itself, up to rounding."""
        return float(same_up_to(self.referral_cost, mean_cost(self.rule.costs)))

    def __call__(self, logits: Any) -> Any:
        decided = self.rule.decide(logits)
        return _like(np.where(decided.cost > self.limit, REFER, decided.chosen), logits)


def to_plain(rule: MinimumExpectedCost | Abstention) -> dict[str, Any]:
    """The rule as values that JSON can hold, beside a model; `from_plain` gives it back."""
    inner = rule.rule if isinstance(rule, Abstention) else rule
    if not isinstance(inner.costs, CostMatrix):
        raise InputError("a rule with costs for each sample cannot be kept; only one with a cost matrix")
    return vars(inner) | {
        "costs": inner.costs.values.tolist(),
        "vector": None if inner.vector is None else inner.vector._asdict(),
        "priors": None if inner.priors is None else list(inner.priors),
        "referral_cost": rule.referral_cost if isinstance(rule, Abstention) else None,
    }


def from_plain(table: Mapping[str, Any], classes: Sequence[str] | None = None) -> MinimumExpectedCost | Abstention:
    try:
        values = dict(table)
        referral_cost, costs, vector = values.pop("referral_cost"), values.pop("costs"), values.pop("vector")
        scaling = None if vector is None else VectorScaling(*(tuple(vector[key]) for key in VectorScaling._fields))
        rule = MinimumExpectedCost(CostMatrix(costs, classes), vector=scaling, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is no decision rule: {error}") from None
    return rule if referral_cost is None else Abstention(rule, referral_cost)


def _realised(costs: Costs, truth: Labels, predicted: Labels) -> Floats:
    """[N]: what each prediction did cost."""
    if isinstance(costs, CostMatrix):
        return costs.values[truth, predicted]
    return np.where(truth == predicted, 0.0, costs.values[np.arange(len(truth)), truth])


class CoverageCurve(NamedTuple):
    """The share of cases decided automatically, surest first, and the mean cost that these really had."""

    coverage: Floats
    cost: Floats


def cost_coverage_curve(logits: Any, labels: Any, rule: MinimumExpectedCost) -> CoverageCurve:
    """What the automatic share costs as doubtful cases are referred, in the order of their expected cost."""
    _, truth = _labelled(logits, labels, rule.classes)
    decided = rule.decide(logits)
    order = np.argsort(decided.cost, kind="stable")
    counts = np.arange(1, len(truth) + 1)
    return CoverageCurve(counts / len(truth), np.cumsum(_realised(rule.costs, truth, decided.chosen)[order]) / counts)


def threshold_for_budget(logits: Any, rule: MinimumExpectedCost, budget: float) -> float:
    """The lowest referral cost under which at most the share `budget` of these (validation) cases is referred.

    `Abstention(rule, threshold)` then refers the costliest: the threshold is the price at which the budget is used up.
    """
    if not 0 <= budget <= 1:
        raise InputError(f"budget is the share of cases that may be referred, from 0 to 1; got {budget}")
    expected = np.sort(rule.decide(logits).cost)[::-1]
    if len(expected) == 0:
        raise InputError("no logits to choose a threshold on; give those of the validation data")
    referred = math.floor(budget * len(expected) + 1e-9)
    return float(expected[referred]) if referred < len(expected) else 0.0


class Frontier(NamedTuple):
    """Accuracy against cost as the rule's strength goes from argmax (0) to the whole costs (1)."""

    strength: Floats
    accuracy: Floats
    weighted_error_rate: Floats


def frontier(logits: Any, labels: Any, rule: MinimumExpectedCost) -> Frontier:
    """Every strength of the rule on these data; the rule's own is ignored."""
    _, truth = _labelled(logits, labels, rule.classes)
    given = rule.decide(logits)
    decided = [replace(given, strength=strength).chosen for strength in STRENGTHS]
    return Frontier(
        np.array(STRENGTHS),
        np.array([(predicted == truth).mean() for predicted in decided]),
        np.array([_realised(rule.costs, truth, predicted).mean() for predicted in decided]),
    )


RULES: dict[str, Rule] = {"argmax": argmax}
