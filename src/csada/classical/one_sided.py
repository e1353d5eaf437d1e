"""One-sided regression (Tu & Lin, 2010): estimate what each class would cost, and predict the cheapest.

    min  1/2 sum_k |w_k|^2  +  C sum_i sum_k max(0, s_ik (r_k(x_i) - c(y_i, k)))^2,     r_k(x) = w_k . phi(x) + b_k

s is +1 at the truth, whose estimate may be too small but not too large, and -1 elsewhere, the other way round. Squares
make the loss smooth for L-BFGS; the authors' support vector machine has the loss itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.kernel_approximation import Nystroem
from sklearn.utils.validation import validate_data

from csada.errors import InputError, check_known
from csada.sklearn import Array, CostClassifier, Costs, margins


@dataclass(eq=False, repr=False, kw_only=True)
class OneSidedRegressionSVM(CostClassifier):
    """kernel: "linear", or "rbf" by Nyström features on up to n_components landmarks; gamma: 1 / features if None."""

    C: float = 1.0
    kernel: str = "linear"
    gamma: float | None = None
    n_components: int = 300
    costs: Costs = None
    random_state: Any = None

    def fit(self, X: Any, y: Any, costs: Costs = None) -> OneSidedRegressionSVM:
        check_known("kernel", self.kernel, ("linear", "rbf"))
        if not 0 < self.C < float("inf"):
            raise InputError(f"C must be a positive number, got {self.C}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        index = self._learn_classes(y, costs)
        self.map_ = None
        if self.kernel == "rbf":
            gamma = 1 / X.shape[1] if self.gamma is None else self.gamma
            components = min(self.n_components, len(X))
            self.map_ = Nystroem(gamma=gamma, n_components=components, random_state=self.random_state).fit(X)
        features = self._features(X)
        rows = self.costs_.values[index]
        sign = np.where(np.arange(len(self.classes_)) == index[:, None], 1.0, -1.0)

        def objective(flat: Array) -> tuple[float, Array]:
            w = flat.reshape(len(self.classes_), -1)
            excess = np.maximum(sign * (features @ w.T - rows), 0)
            ridge = np.concatenate([w[:, :-1], np.zeros((len(w), 1))], axis=1)  # the intercept is free
            slope = ridge + 2 * self.C * (sign * excess).T @ features
            return 0.5 * float((ridge**2).sum()) + self.C * float((excess**2).sum()), slope.ravel()

        start = np.zeros(len(self.classes_) * features.shape[1])
        self.coef_ = minimize(objective, start, jac=True, method="L-BFGS-B").x.reshape(len(self.classes_), -1)
        return self

    def estimated_costs(self, X: Any) -> Array:
        """[N, K]: what each prediction would cost, as estimated."""
        return np.asarray(self._features(self._table(X)) @ self.coef_.T)

    def decision_function(self, X: Any) -> Array:
        return margins(-self.estimated_costs(X))

    def _features(self, X: Array) -> Array:
        mapped = X if self.map_ is None else self.map_.transform(X)
        return np.column_stack([mapped, np.ones(len(X))])
