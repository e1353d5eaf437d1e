"""Probabilities that mean what they say: fitted on validation scores, never on test."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from csada.decisions.arrays import Floats, Labels, as_array, checked_probabilities, labelled
from csada.errors import InputError, check_known

FOLDS = 5
CLEAR = 2.0  # standard errors
REMEMBERED = 1024
FEWEST = 50  # samples for a choice; with fewer, the simplest is taken
CALIBRATIONS = ("temperature", "vector", "matrix")  # the simplest first
# to the identity, in samples: standard deviations of 0.22 and 0.1 on a parameter
PULL = {"vector": 10.0, "matrix": 50.0}

F = TypeVar("F", bound=Callable[..., Any])


def fit_temperature(logits: Any, labels: Any, weights: Any = None) -> float:
    """The T > 0 that minimises the cross-entropy of softmax(logits / T): it changes confidence, never the ranking.

    Where every label has the highest score, the best T would be 0. One more sample is then assumed, which may be of any
    class: confidence ends near what N right samples can show, (N + 1) / (N + 2). Where the labels score no higher than
    the other classes, the best T would be infinite: a warning says so, and all classes become almost equally probable.
    """
    scores, truth = labelled(logits, labels)
    above = scores - scores[np.arange(len(truth)), truth, None]
    spread = float(np.abs(above).max()) or 1.0
    above = np.ascontiguousarray(above.T) / spread  # sums over the first axis are several times faster
    below, weights = above - above.max(0), np.ones(len(truth)) if weights is None else as_array(weights)
    weights = weights / (total := float(weights.sum()))

    def slope(beta: float) -> tuple[float, float]:
        """First and second derivative of the cross-entropy in beta = spread / T, in which it is convex."""
        p = np.exp(below * beta)
        p /= p.sum(0)
        weighted = p * above
        mean = weighted.sum(0)
        return float(weights @ mean), float(weights @ ((weighted * above).sum(0) - mean**2))

    low, high = math.exp(-20.0), math.exp(20.0)
    if slope(low)[0] >= 0:
        warnings.warn(
            "the true class scores no higher than the others on these data, so that all classes get about the same "
            "probability; check that the labels follow the order of the classes",
            stacklevel=2,
        )
        return 100 * spread
    doubt = float(weights @ above.mean(0)) / (1 + total) if slope(high)[0] <= 0 else 0.0
    beta, step = min(max(spread, low), high), math.inf
    for _ in range(200):  # Newton's steps in log(beta), between bounds; where all is flat, rounding alone moves them
        if abs(step) <= 1e-10:
            break
        first, second = slope(beta)
        low, high = (beta, high) if first < doubt else (low, beta)
        step = (doubt - first) / (beta * second) if second > 0 else math.inf
        moved = beta * math.exp(min(max(step, -1.0), 1.0))
        beta = moved if low <= moved <= high else math.sqrt(low * high)
    return spread / beta


def remembered(fit: F) -> F:
    """fit(scores, labels, ...): results are kept by content. They do not depend on costs, of which many are tried."""
    known: dict[bytes, Any] = {}

    @wraps(fit)
    def found(logits: Any, labels: Any, *more: Any, **named: Any) -> Any:
        scores = as_array(logits)
        told = repr((scores.shape, more, named)).encode() + as_array(labels).tobytes()
        key = blake2b(np.ascontiguousarray(scores).data, digest_size=16).digest() + blake2b(told).digest()
        result = known.get(key)
        if result is None:
            result = fit(logits, labels, *more, **named)
            if len(known) >= REMEMBERED:
                known.clear()
            known[key] = result
        return result

    return found  # type: ignore[return-value]


class Scaling(NamedTuple):
    """scores @ scale + bias, for logits that a temperature has scaled already. scale: [K], a diagonal, or [K, K]."""

    scale: tuple[float, ...] | tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]

    @property
    def matrix(self) -> Floats:
        """[K, K]."""
        scale = as_array(self.scale)
        return np.diag(scale) if scale.ndim == 1 else scale


@remembered
def fit_scaling(logits: Any, labels: Any, calibration: str = "vector") -> Scaling:
    """The W and b that minimise the cross-entropy of softmax(logits @ W + b), pulled to W = identity and b = 0.

    "vector": W is diagonal, one scale per class. "matrix": W is any matrix, for classes that are mistaken for each other
    more often than their scores say. The pull, PULL / N * (|W - identity|^2 + |b|^2), weighs as much as a few samples: it
    decides where there are hardly any, for instance for a class that they lack, and fades as their number N grows.
    """
    scores, truth = labelled(logits, labels)
    n, k = scores.shape
    pull, full = PULL[calibration], calibration == "matrix"
    one_hot = np.eye(k)[truth]
    identity = np.concatenate([np.eye(k).ravel() if full else np.ones(k), np.zeros(k)])

    def objective(parameters: Floats) -> tuple[float, Floats]:
        scale, bias = parameters[:-k], parameters[-k:]
        log_p = log_softmax((scores @ scale.reshape(k, k) if full else scores * scale) + bias, axis=1)
        residual = np.exp(log_p) - one_hot
        slope = (scores.T @ residual).ravel() if full else (residual * scores).sum(0)
        away = parameters - identity
        loss = -(log_p * one_hot).sum() + pull * (away**2).sum()
        return float(loss) / n, (np.concatenate([slope, residual.sum(0)]) + 2 * pull * away) / n

    fitted = minimize(objective, identity, jac=True, method="L-BFGS-B").x
    scale = fitted[:-k].reshape(k, k).tolist() if full else fitted[:-k].tolist()
    return Scaling(tuple(map(tuple, scale)) if full else tuple(scale), tuple(fitted[-k:].tolist()))


def fit_calibration(logits: Any, labels: Any, calibration: str = "temperature") -> tuple[float, Scaling | None]:
    """The temperature, and the scaling of the logits that it has scaled, where one is asked for."""
    check_known("calibration", calibration, CALIBRATIONS)
    temperature = fit_temperature(logits, labels)
    if calibration == "temperature":
        return temperature, None
    return temperature, fit_scaling(as_array(logits) / temperature, labels, calibration)


def stratified_folds(labels: Any, count: int = FOLDS) -> NDArray[np.int64]:
    """[N]: the fold of each sample. Folds differ by at most one sample, in all and in each class.

    From the order of the samples alone: no random numbers, and the numbers of the classes do not matter.
    """
    _, first, which = np.unique(as_array(labels), return_index=True, return_inverse=True)
    folds = np.empty(len(which), np.int64)
    folds[np.argsort(first[which], kind="stable")] = np.arange(len(which)) % min(count, len(which))
    return folds


def cross_fitted(logits: Any, labels: Any, calibration: str = "temperature") -> Floats:
    """[N, K]: the logarithms of calibrated probabilities, each sample by a calibration that was fitted on the other folds."""
    scores, truth = labelled(logits, labels)
    if len(truth) == 1:  # no other fold
        return np.asarray(log_softmax(scores, axis=1))
    found, folds = np.empty_like(scores), stratified_folds(truth)
    for fold, (temperature, scaling) in enumerate(_fitted_on_others(scores, truth, calibration)):
        out = folds == fold
        found[out] = scores[out] / temperature
        if scaling is not None:
            found[out] = found[out] @ scaling.matrix + scaling.bias
    return np.asarray(log_softmax(found, axis=1))


@remembered
def _fitted_on_others(scores: Floats, truth: Labels, calibration: str) -> tuple[tuple[float, Scaling | None], ...]:
    """For each fold the calibration of all samples but its own."""
    folds = stratified_folds(truth)
    with warnings.catch_warnings():  # who fits on all samples is warned
        warnings.simplefilter("ignore")
        return tuple(
            fit_calibration(scores[folds != fold], truth[folds != fold], calibration) for fold in range(folds.max() + 1)
        )


@remembered
def choose_calibration(logits: Any, labels: Any, known: Sequence[str] = CALIBRATIONS) -> str:
    """The simplest calibration, unless another has a clearly lower cross-entropy on samples that it was not fitted on.

    Clearly: by more than CLEAR standard errors of the difference, sample by sample, to the best simpler one. Fewer than
    FEWEST samples choose nothing, and a matrix of more numbers than there are samples is not tried.
    """
    scores, truth = labelled(logits, labels)
    rows = np.arange(len(truth))
    chosen, least = known[0], None
    for calibration in known if len(truth) >= FEWEST else ():
        if calibration == "matrix" and scores.shape[1] ** 2 > len(truth):
            continue
        loss = -cross_fitted(logits, truth, calibration)[rows, truth]
        if least is None or (least - loss).mean() > CLEAR * (least - loss).std() / math.sqrt(len(truth)):
            chosen, least = calibration, loss
    return chosen


def prior_ratio(train_priors: ArrayLike, deployment_priors: ArrayLike) -> Floats:
    """deployment / training frequency of every class: the `priors` of MinimumExpectedCost."""
    train, deployment = (
        checked_probabilities(train_priors, "training priors"),
        checked_probabilities(deployment_priors, "deployment priors"),
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
