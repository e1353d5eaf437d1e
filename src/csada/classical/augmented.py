"""CSADA for models without gradients, such as forests and boosting.

Each round fits a small network, the surrogate, to what the model predicts on the training samples and around them, and
draws N tasks (sample i, target z) with probability proportional to c~(y_i, z). Each x_i is pushed towards its z by ascent
on the surrogate's log p_z, as in Algorithm 1, but judged by the model's own predictions: it stops at the first point that
the model calls z, and goes back one step from a point of a third class. The points join the training set with label y_i
and weight lambda, shared among the rounds so far, and the model is fitted again.

Tasks are drawn, not all taken with small weights: a fully grown tree gives a point its own leaf whatever it weighs.
The features must be numbers between which other numbers make sense.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import has_fit_parameter, validate_data
from torch import nn

from csada.attacks import Ascent, AttackResult, Outcome, ascend
from csada.errors import InputError
from csada.models.plain import mlp
from csada.sklearn import Array, CostClassifier, Costs, aligned, standardization
from csada.training import fit


@dataclass(eq=False, repr=False)
class AugmentedClassifier(CostClassifier):
    """estimator: any classifier whose `fit` takes sample_weight. epsilon and step_size are in standard deviations.

    `outcomes_` counts, one row per round, how the attacks ended: skipped, rejected, reached, exhausted.
    """

    estimator: Any
    _: KW_ONLY
    costs: Costs = None
    rounds: int = 3
    weight: float = 0.5
    tau: float = 1.0
    steps: int = 10
    step_size: float = 0.03
    epsilon: float = 0.3
    hidden: tuple[int, ...] = (50,)
    epochs: int = 30
    random_state: Any = None

    def fit(self, X: Any, y: Any, costs: Costs = None) -> AugmentedClassifier:
        how = Ascent(self.epsilon, self.step_size, self.steps, step="sign")
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise InputError(
                f"{type(self.estimator).__name__}.fit takes no sample_weight; choose a classifier that does"
            )
        if self.rounds < 0 or not 0 <= self.weight < float("inf"):
            raise InputError(f"rounds and weight must be zero or more, got {self.rounds} and {self.weight}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        index = self._learn_classes(y, costs)
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
            found = self._attacked(surrogate, X[rows], index[rows], target, mean, std, how)
            outcomes.append(np.bincount(found.outcome.numpy(), drawn[rows, target], len(Outcome)).astype(int))
            points.append(X[rows] + found.delta.numpy() * std)
            labels.append(y[rows])
            counts.append(drawn[rows, target])
            weights = np.concatenate([np.ones(len(X)), self.weight / r * np.concatenate(counts)])
            self.estimator_ = self._fitted(np.concatenate(points), np.concatenate(labels), weights, rng)
        self.outcomes_ = np.array(outcomes).reshape(-1, len(Outcome))
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

    def _attacked(
        self, surrogate: nn.Module, X: Array, y: Array, target: Array, mean: Array, std: Array, how: Ascent
    ) -> AttackResult:
        """Algorithm 1, up the surrogate's gradient and judged by the model, which takes samples in its own units."""
        start = torch.from_numpy((X - mean) / std)
        return ascend(
            lambda delta: surrogate(start + delta),
            torch.zeros_like(start),
            torch.from_numpy(y),
            torch.from_numpy(target),
            how,
            judge=lambda delta: torch.from_numpy(self._predicted(X + delta.numpy() * std)),
        )

    def predict(self, X: Any) -> Array:
        X = self._table(X)
        return np.asarray(self.estimator_.predict(X))

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        X = self._table(X)
        return aligned(self.estimator_, X, self.classes_)
