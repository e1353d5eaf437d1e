"""Probabilities that mean what they say: fitted on validation scores, never on test."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax, softmax

from csada.decisions.arrays import Floats, as_array, checked_probabilities, labelled
from csada.errors import InputError

CALIBRATIONS = ("temperature", "vector")
PULL = 10.0  # of vector scaling to the identity, in samples: a standard deviation of 0.22 on every scale and bias


def fit_temperature(logits: Any, labels: Any, weights: Any = None) -> float:
    """The T > 0 that minimises the cross-entropy of softmax(logits / T): it changes confidence, never the ranking.

    Where every label has the highest score, the best T would be 0. One more sample is then assumed, which may be of any
    class: confidence ends near what N right samples can show, (N + 1) / (N + 2). Where the labels score no higher than
    the other classes, the best T would be infinite: a warning says so, and all classes become almost equally probable.
    """
    scores, truth = labelled(logits, labels)
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
    scores, truth = labelled(logits, labels)
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
