"""CSADA for models without gradients, such as forests and boosting.

Each round fits a small network, the surrogate, to what the model predicts on the training samples and around them, and
draws N tasks (sample i, target z) with probability proportional to c~(y_i, z). Each x_i is pushed towards its z by ascent
on the surrogate's log p_z, and Algorithm 1 is played on that path with the model's own predictions: it stops at the
first point that the model calls z, and goes back one step from a point of a third class. The points join the training
set with label y_i and weight lambda, shared among the rounds so far, and the model is fitted again.

Tasks are drawn, not all taken with small weights: a fully grown tree gives a point its own leaf whatever it weighs.
The features must be numbers between which other numbers make sense.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data
from torch import Tensor, nn
from torch.nn import functional as F

from csada.attacks import DIRECTIONS, PROJECTIONS, Outcome, check_settings
from csada.errors import InputError
from csada.models.plain import mlp
from csada.sklearn import Array, Costs, aligned, classes_and_costs, standardization, take_features
from csada.training import fit


def _has_probabilities(self: Any) -> bool:
    return hasattr(self.estimator, "predict_proba")


class AugmentedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """estimator: any classifier whose `fit` takes sample_weight. epsilon and step_size are in standard deviations.

    `outcomes_` counts, a row a round, how the attacks ended: skipped, rejected, reached, exhausted.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        costs: Costs = None,
        rounds: int = 3,
        weight: float = 0.5,
        tau: float = 1.0,
        steps: int = 10,
        step_size: float = 0.03,
        epsilon: float = 0.3,
        hidden: tuple[int, ...] = (50,),
        epochs: int = 30,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.costs = costs
        self.rounds = rounds
        self.weight = weight
        self.tau = tau
        self.steps = steps
        self.step_size = step_size
        self.epsilon = epsilon
        self.hidden = hidden
        self.epochs = epochs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, costs: Costs = None) -> AugmentedClassifier:
        check_settings(self.epsilon, self.step_size, self.steps, "linf", "sign")
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise InputError(
                f"{type(self.estimator).__name__}.fit takes no sample_weight; choose a classifier that does"
            )
        if self.rounds < 0 or not 0 <= self.weight < float("inf"):
            raise InputError(f"rounds and weight must be zero or more, got {self.rounds} and {self.weight}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, index, self.costs_ = classes_and_costs(y, self.costs if costs is None else costs)
        rng = check_random_state(self.random_state)
        pairs = self.costs_.weights(self.tau)[index]
        normalization = standardization(X)
        mean, std = np.array(normalization.mean), np.array(normalization.std)
        points, labels, counts = [X], [y], [np.empty(0)]
        outcomes = []
        self.estimator_ = self._fitted(X, y, np.ones(len(X)), rng)
        for r in range(1, self.rounds + 1 if pairs.any() and self.weight > 0 else 1):
            drawn = rng.multinomial(len(X), pairs.ravel() / pairs.sum()).reshape(pairs.shape)
            rows, target = drawn.nonzero()
            surrogate = self._surrogate(X, mean, std, int(rng.randint(2**31 - 1)))
            path = surrogate_path(
                surrogate,
                torch.from_numpy((X[rows] - mean) / std),
                torch.from_numpy(target),
                self.epsilon,
                self.step_size,
                self.steps,
            )
            way = X[rows] + path.numpy() * std  # [K + 1, T, F], in the model's own units
            predicted = self._predicted(way.reshape(-1, X.shape[1])).reshape(way.shape[:2])
            step, outcome = accept(predicted, index[rows], target)
            outcomes.append(np.bincount(outcome, drawn[rows, target], len(Outcome)).astype(int))
            points.append(way[step, np.arange(len(rows))])
            labels.append(y[rows])
            counts.append(drawn[rows, target])
            weights = np.concatenate([np.ones(len(X)), self.weight / r * np.concatenate(counts)])
            self.estimator_ = self._fitted(np.concatenate(points), np.concatenate(labels), weights, rng)
        self.outcomes_ = np.array(outcomes).reshape(-1, len(Outcome))
        take_features(self, self.estimator_)
        return self

    def _fitted(self, X: Array, y: Array, weights: Array, rng: Any) -> Any:
        estimator = clone(self.estimator)
        if "random_state" in estimator.get_params():
            estimator.set_params(random_state=int(rng.randint(2**31 - 1)))
        return estimator.fit(X, y, sample_weight=weights)

    def _predicted(self, X: Array) -> NDArray[np.int64]:
        return np.asarray(np.searchsorted(self.classes_, self.estimator_.predict(X)))

    def _surrogate(self, X: Array, mean: Array, std: Array, seed: int) -> nn.Module:
        """A network that says what the model says, on the samples and at one random point of each sample's ball."""
        around = X + np.random.default_rng(seed).uniform(-self.epsilon, self.epsilon, X.shape) * std
        asked = np.concatenate([X, around])
        start = mlp(X.shape[1], len(self.classes_), self.hidden, seed=seed).double()
        data = ((asked - mean) / std, self._predicted(asked))
        return fit(
            start, data, "cross_entropy", epochs=self.epochs, lr=1e-2, optimizer="adam", batch_size=128, seed=seed
        ).model

    def predict(self, X: Any) -> Array:
        check_is_fitted(self, "estimator_")
        return np.asarray(self.estimator_.predict(validate_data(self, X, dtype=np.float64, reset=False)))

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        check_is_fitted(self, "estimator_")
        return aligned(self.estimator_, validate_data(self, X, dtype=np.float64, reset=False), self.classes_)


def surrogate_path(model: nn.Module, x: Tensor, target: Tensor, epsilon: float, step_size: float, steps: int) -> Tensor:
    """[K + 1, T, F]: the perturbations after 0 .. K signed ascent steps, none of them judged."""
    path = [torch.zeros_like(x)]
    for _ in range(steps):
        point = (x + path[-1]).requires_grad_()
        (gradient,) = torch.autograd.grad(-F.cross_entropy(model(point), target, reduction="sum"), point)
        path.append(PROJECTIONS["linf"](path[-1] + step_size * DIRECTIONS["sign"](gradient), epsilon))
    return torch.stack(path)


def accept(predicted: NDArray[np.int64], y: NDArray[np.int64], target: NDArray[np.int64]) -> tuple[Array, Array]:
    """Algorithm 1 on paths that are known already: predicted[k, t] after k steps -> (steps kept, outcome) a path."""
    away = predicted != y
    first = np.where(away.any(0), away.argmax(0), len(predicted))  # the first point that is not called y
    last = np.minimum(first, len(predicted) - 1)
    reached = predicted[last, np.arange(len(y))] == target
    outcome = np.select(
        [first == 0, first == len(predicted), reached],
        [Outcome.SKIPPED, Outcome.EXHAUSTED, Outcome.REACHED],
        Outcome.REJECTED,
    )
    return np.where(outcome == Outcome.REJECTED, last - 1, last), outcome
