"""Logistic regression on the costs themselves (Bahnsen, Aouada & Ottersten, 2014), two classes:

    min  1/N sum_i [ y_i (h_i C_TP_i + (1 - h_i) C_FN_i) + (1 - y_i)(h_i C_FP_i + (1 - h_i) C_TN_i) ]  +  alpha/2 |w|^2

with h_i = sigmoid(w . x_i + b). Written by what each prediction costs sample i, that is h_i c_i1 + (1 - h_i) c_i0. It
is not convex: the authors search with a genetic algorithm, we descend by L-BFGS from the logistic regression of y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.utils.validation import validate_data

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.sklearn import Array, CostClassifier, Costs, classes_and_costs


@dataclass(eq=False, repr=False, kw_only=True)
class ExampleDependentLogisticRegression(CostClassifier):
    """costs: of the classes as everywhere, or [N, 2] for `fit`: what predicting each class costs for each sample."""

    alpha: float = 1e-3
    costs: Costs = None

    def fit(self, X: Any, y: Any, costs: Costs = None) -> ExampleDependentLogisticRegression:
        if not 0 <= self.alpha < float("inf"):
            raise InputError(f"alpha must be zero or more, got {self.alpha}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        costs = self.costs if costs is None else costs
        own = sample_costs(costs, len(X))
        self.classes_, index, matrix = classes_and_costs(y, None if own is not None else costs)
        if len(self.classes_) > 2:
            raise InputError(
                f"Only binary classification is supported. The type of the target is multiclass: {len(self.classes_)} "
                "classes; MinimumExpectedCostClassifier takes any number"
            )
        rows = matrix.values[index] if own is None else own
        scale = float(rows.mean()) or 1.0  # alpha then means the same whatever the currency
        features = np.column_stack([X, np.ones(len(X))])

        def descend(start: Array, loss: Any) -> Array:
            def objective(w: Array) -> tuple[float, Array]:
                value, slope = loss(features @ w)
                ridge = np.append(w[:-1], 0.0)
                return value.mean() + self.alpha / 2 * ridge @ ridge, slope @ features / len(X) + self.alpha * ridge

            return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B").x)

        def cross_entropy(score: Array) -> tuple[Array, Array]:
            return np.logaddexp(0, np.where(index == 1, -score, score)), expit(score) - index

        def expected_cost(score: Array) -> tuple[Array, Array]:
            h = expit(score)
            return (h * rows[:, 1] + (1 - h) * rows[:, 0]) / scale, h * (1 - h) * (rows[:, 1] - rows[:, 0]) / scale

        self.coef_ = descend(descend(np.zeros(features.shape[1]), cross_entropy), expected_cost)
        return self

    def decision_function(self, X: Any) -> Array:
        return np.asarray(self._table(X) @ self.coef_[:-1] + self.coef_[-1])

    def predict_proba(self, X: Any) -> Array:
        """h as it was fitted: a decision made soft, not a frequency."""
        h = expit(self.decision_function(X))
        return np.column_stack([1 - h, h])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def sample_costs(costs: Costs, n: int) -> Array | None:
    """The table [N, 2] if that is what was given; None for costs of classes (also for a 2 x 2 table)."""
    if costs is None or isinstance(costs, CostMatrix | Mapping):
        return None
    table = np.asarray(costs, dtype=np.float64)
    if table.shape == (2, 2):
        return None
    if table.shape != (n, 2):
        raise InputError(
            f"costs of shape {table.shape}; give 2 x 2 for the classes, or ({n}, 2) with one row per sample"
        )
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise InputError("costs must be finite and zero or more; add a constant to a sample's row if it has gains")
    return table
