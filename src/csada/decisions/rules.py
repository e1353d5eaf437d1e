"""From scores to decisions. A rule is a small frozen value that is called on logits and returns predictions.

The honest rival of every training method: keep the model, calibrate its probabilities on validation data, and predict
the class of least expected cost,  argmin_z sum_y p(y | x) c(y, z).  Three variations: less of it, where accuracy may
not suffer (`strength`); other class frequencies than in training (`priors`); a person for the rest (`Abstention`).

Pure NumPy: the rules also run on stored logits. A torch tensor goes in and a torch tensor comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.metrics import REFER, check_table

Rule = Callable[[Any], Any]
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

CALIBRATIONS = ("temperature", "vector")
PULL = 10.0  # of vector scaling to the identity, in samples: a standard deviation of 0.22 on every scale and bias
STRENGTHS = (0.0, *(float(odds / (1 + odds)) for odds in np.geomspace(1e-3, 1e3, 61)), 1.0)


def as_array(values: Any) -> Floats:
    """Any array or tensor, on any device, as float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _like(result: NDArray[Any], given: Any) -> Any:
    """A tensor where a tensor was given, on its device; real numbers in its precision."""
    if hasattr(given, "detach"):
        import torch

        tensor = torch.from_numpy(result)
        return tensor.to(given.device, given.dtype if tensor.is_floating_point() else tensor.dtype)
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


def fit_temperature(logits: Any, labels: Any) -> float:
    """The T > 0 that minimises the cross-entropy of softmax(logits / T): it changes confidence, never the ranking."""
    scores, truth = _labelled(logits, labels)
    rows = np.arange(len(truth))

    def cross_entropy(log_t: float) -> float:
        return -float(log_softmax(scores / np.exp(log_t), axis=1)[rows, truth].mean())

    return float(np.exp(minimize_scalar(cross_entropy, bounds=(-4.0, 4.0), method="bounded").x))


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
        _probabilities(given, f"{what} priors")
        for given, what in ((train_priors, "training"), (deployment_priors, "deployment"))
    )
    if train.shape != deployment.shape or train.ndim != 1:
        raise InputError(
            f"{train.shape} training and {deployment.shape} deployment priors; give one number a class in each"
        )
    if (unseen := np.flatnonzero((train == 0) & (deployment > 0))).size:
        raise InputError(
            f"class {unseen[0]} was never seen in training (prior 0) but comes in deployment "
            f"({deployment[unseen[0]]:g}); no weight makes up for that: train on it, or set its deployment prior to 0"
        )
    return np.divide(deployment, train, out=np.zeros_like(train), where=train > 0)


def reweight_priors(probabilities: Any, train_priors: ArrayLike, deployment_priors: ArrayLike) -> Any:
    """p(y | x) where the classes come as often as in deployment: p(y | x) * deployment(y) / training(y), normalised."""
    rows, ratio = _probabilities(probabilities), prior_ratio(train_priors, deployment_priors)
    if rows.ndim != 2 or rows.shape[1] != len(ratio):
        raise InputError(f"probabilities of shape {rows.shape}; (samples, {len(ratio)}) is needed, as the priors say")
    weighted = rows * ratio
    total = weighted.sum(1, keepdims=True)
    if (total == 0).any():
        i = int(np.argmin(total))
        raise InputError(
            f"sample {i} has probability only for classes with deployment prior 0; raise these priors above 0"
        )
    return _like(weighted / total, probabilities)


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


def expected_costs(probabilities: Any, costs: Costs) -> Floats:
    """[N, K]: what predicting each class is expected to cost."""
    return _expected(_probabilities(probabilities), costs)


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
        object.__setattr__(self, "costs", _as_costs(self.costs))
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
        allowed[0] = True  # strength 0 is argmax
        best = int(np.argmin(np.where(allowed, curve.weighted_error_rate, math.inf)))
        return replace(rule, strength=float(curve.strength[best]))

    @property
    def classes(self) -> int:
        return int(self.costs.values.shape[1])

    def probabilities(self, logits: Any) -> Floats:
        """[N, K]: calibrated, and reweighted to the classes' frequencies in deployment."""
        scores = _logits(logits, self.classes) / self.temperature
        if self.vector is not None:
            scores = scores * self.vector.scale + self.vector.bias
        if self.priors is not None:
            with np.errstate(divide="ignore"):  # a class that does not occur in deployment: log 0 = -inf is right
                scores = scores + np.log(self.priors)
        return np.asarray(softmax(scores, axis=1))

    def expected_costs(self, logits: Any) -> Floats:
        """[N, K]: what predicting each class is expected to cost, whatever the strength."""
        return _expected(self.probabilities(logits), self.costs)

    def __call__(self, logits: Any) -> Any:
        p = self.probabilities(logits)
        return _like(_decide(p, _expected(p, self.costs), _mean_cost(self.costs), self.strength), logits)


def cheapest(probabilities: Any, costs: Costs) -> Labels:
    """[N]: the class of least expected cost under these probabilities; among classes that cost the same, the likeliest."""
    p = _probabilities(probabilities)
    return _decide(p, _expected(p, costs), _mean_cost(costs), 1.0)


def _decide(p: Floats, expected: Floats, mean_cost: float, strength: float) -> Labels:
    """Under (1 - strength) * mean + strength * c: expected costs are linear in costs, and uniform ones give 1 - p.

    A trace of the uniform costs always stays, so that among classes that cost the same the likelier wins: under a single
    costly pair all classes but one are expected to cost nothing.
    """
    strength = min(strength, 1 - 1e-12)
    return np.asarray((strength * expected - (1 - strength) * mean_cost * p).argmin(1))


def _mean_cost(costs: Costs) -> float:
    """Of a mistake; 1 where no mistake costs anything, so that probability decides."""
    values = costs.values
    mistakes = values.size - len(values) if isinstance(costs, CostMatrix) else values.size
    return float((values / mistakes).sum()) or 1.0


def _as_costs(costs: Any) -> Costs:
    if isinstance(costs, CostMatrix | CostsByTruth):
        return costs
    values = as_array(costs)
    return CostMatrix(values) if values.ndim == 2 and values.shape[0] == values.shape[1] else CostsByTruth(values)


@dataclass(frozen=True)
class ThresholdMoving:
    """Zhou and Liu (2006): multiply p(y) by what mistaking class y costs in all, sum_z c(y, z), and take the largest.

    It moves the thresholds between classes and is exact where c(y, z) does not depend on z; where it does, the sum
    forgets which mistake is the expensive one, and MinimumExpectedCost does not.
    """

    costs: CostMatrix
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be a positive number, got {self.temperature}")

    def probabilities(self, logits: Any) -> Floats:
        """[N, K]: p(y) * sum_z c(y, z), normalised."""
        weights = self.costs.values.sum(1)
        if not weights.any():
            weights = np.ones(len(weights))
        with np.errstate(divide="ignore"):  # a class that may be mistaken for free is never predicted
            return np.asarray(softmax(_logits(logits, len(weights)) / self.temperature + np.log(weights), axis=1))

    def __call__(self, logits: Any) -> Any:
        return _like(self.probabilities(logits).argmax(1), logits)


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

    def __call__(self, logits: Any) -> Any:
        predicted, expected = _decisions(self.rule, logits)
        return _like(np.where(expected > self.referral_cost, REFER, predicted), logits)


def to_plain(rule: MinimumExpectedCost | Abstention) -> dict[str, Any]:
    """The rule as values that JSON can hold, beside a model; `from_plain` gives it back."""
    inner = rule.rule if isinstance(rule, Abstention) else rule
    if not isinstance(inner.costs, CostMatrix):
        raise InputError("a rule with costs for each sample cannot be kept; only one with a cost matrix")
    return {
        "costs": inner.costs.values.tolist(),
        "temperature": inner.temperature,
        "vector": None if inner.vector is None else inner.vector._asdict(),
        "priors": None if inner.priors is None else list(inner.priors),
        "strength": inner.strength,
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


def _decisions(rule: MinimumExpectedCost, logits: Any) -> tuple[Labels, Floats]:
    """What the rule decides, and what each decision is expected to cost."""
    p = rule.probabilities(logits)
    expected = _expected(p, rule.costs)
    predicted = _decide(p, expected, _mean_cost(rule.costs), rule.strength)
    return predicted, expected[np.arange(len(predicted)), predicted]


def _as_rule(rule: MinimumExpectedCost | Costs, logits: Any, labels: Any) -> MinimumExpectedCost:
    return rule if isinstance(rule, MinimumExpectedCost) else MinimumExpectedCost.calibrated(logits, labels, rule)


def _realised(costs: Costs, truth: Labels, predicted: Labels) -> Floats:
    """[N]: what each prediction did cost."""
    if isinstance(costs, CostMatrix):
        return costs.values[truth, predicted]
    return np.where(truth == predicted, 0.0, costs.values[np.arange(len(truth)), truth])


class CoverageCurve(NamedTuple):
    """The share of cases decided automatically, surest first, and the mean cost that these really had."""

    coverage: Floats
    cost: Floats


def cost_coverage_curve(logits: Any, labels: Any, rule: MinimumExpectedCost | Costs) -> CoverageCurve:
    """What the automatic share costs as doubtful cases are referred, in the order of their expected cost.

    Costs instead of a rule stand for the rule calibrated on these same data; for test data give one fitted before.
    """
    rule = _as_rule(rule, logits, labels)
    _, truth = _labelled(logits, labels, rule.classes)
    predicted, expected = _decisions(rule, logits)
    order = np.argsort(expected, kind="stable")
    counts = np.arange(1, len(truth) + 1)
    return CoverageCurve(counts / len(truth), np.cumsum(_realised(rule.costs, truth, predicted)[order]) / counts)


def threshold_for_budget(logits: Any, rule: MinimumExpectedCost, budget: float) -> float:
    """The lowest referral cost under which at most the share `budget` of these (validation) cases is referred.

    `Abstention(rule, threshold)` then refers the costliest: the threshold is the price at which the budget is used up.
    """
    if not 0 <= budget <= 1:
        raise InputError(f"budget is the share of cases that may be referred, from 0 to 1; got {budget}")
    expected = np.sort(_decisions(rule, logits)[1])[::-1]
    if len(expected) == 0:
        raise InputError("no logits to choose a threshold on; give those of the validation data")
    referred = math.floor(budget * len(expected) + 1e-9)
    return float(expected[referred]) if referred < len(expected) else 0.0


class Frontier(NamedTuple):
    """Accuracy against cost as the rule's strength goes from argmax (0) to the whole costs (1)."""

    strength: Floats
    accuracy: Floats
    weighted_error_rate: Floats


def frontier(logits: Any, labels: Any, rule: MinimumExpectedCost | Costs) -> Frontier:
    """Every strength of the rule on these data; the rule's own is ignored.

    Costs instead of a rule stand for the rule calibrated on these same data; for test data give one fitted before.
    """
    rule = _as_rule(rule, logits, labels)
    _, truth = _labelled(logits, labels, rule.classes)
    p = rule.probabilities(logits)
    expected, mean_cost = _expected(p, rule.costs), _mean_cost(rule.costs)
    decided = [_decide(p, expected, mean_cost, strength) for strength in STRENGTHS]
    return Frontier(
        np.array(STRENGTHS),
        np.array([(predicted == truth).mean() for predicted in decided]),
        np.array([_realised(rule.costs, truth, predicted).mean() for predicted in decided]),
    )


RULES: dict[str, Rule] = {"argmax": argmax}
