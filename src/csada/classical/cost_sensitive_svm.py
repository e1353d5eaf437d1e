"""Cost-sensitive support vector machine (Iranmehr, Masnadi-Shirazi & Vasconcelos, 2019): costly class +1, cheap class -1,

    min  1/2 |w|^2 + C [ beta sum_{y=+1} hinge(1 - f(x_i)) + 1/kappa sum_{y=-1} hinge(kappa + f(x_i)) ],   f = w . x + b

so the cheap class is kept at a smaller margin, kappa <= 1. The authors' C_1 is beta and their C_-1 (1 + 1/kappa) / 2;
here kappa is free and beta = r / kappa, r >= 1 being the ratio of the two costs, so that the best f changes its sign at
p(+1) = 1 / (1 + r). hinge is max(0, .) with its corner rounded by a parabola of width 0.1, for L-BFGS; slopes at f = 0
stay the same.

More than two classes: one machine per class against the rest, for what missing it and calling others it cost on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.utils.validation import validate_data

from csada.errors import InputError
from csada.sklearn import Array, CostClassifier, Costs

ROUNDING = 0.1


@dataclass(eq=False, repr=False, kw_only=True)
class CostSensitiveSVM(CostClassifier):
    """A linear machine; put a kernel map such as sklearn.kernel_approximation.Nystroem before it for another."""

    C: float = 1.0
    kappa: float = 0.5
    costs: Costs = None

    def fit(self, X: Any, y: Any, costs: Costs = None) -> CostSensitiveSVM:
        if not 0 < self.C < float("inf"):
            raise InputError(f"C must be a positive number, got {self.C}")
        if not ROUNDING <= self.kappa <= 1:
            raise InputError(f"kappa must lie between {ROUNDING} and 1, got {self.kappa}")
        X, y = validate_data(self, X, y, dtype=np.float64)
        index = self._learn_classes(y, costs)
        missed, false = self.costs_.values.sum(1), self.costs_.values.sum(0)
        features = np.column_stack([X, np.ones(len(X))])
        machines = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        self.coef_ = np.stack([self._machine(features, index == k, missed[k], false[k]) for k in machines])
        return self

    def _machine(self, features: Array, positive: Array, missed: float, false: float) -> Array:
        flip = 1.0 if missed >= false else -1.0  # the formula wants the costly class on the positive side
        costly = positive if flip > 0 else ~positive
        cheap, costlier = sorted((missed, false))
        # what costs nothing must still weigh something
        ratio = costlier / max(cheap, 1e-3 * costlier) if costlier > 0 else 1.0
        side, margin = np.where(costly, 1.0, -1.0), np.where(costly, 1.0, self.kappa)
        weight = self.C / self.kappa * np.where(costly, ratio, 1.0)

        def objective(w: Array) -> tuple[float, Array]:
            m = margin - side * (features @ w)
            corner = (m > 0) & (m < ROUNDING)
            loss = np.where(corner, m**2 / (2 * ROUNDING), np.maximum(m - ROUNDING / 2, 0) * (m >= ROUNDING))
            slope = np.where(corner, m / ROUNDING, m >= ROUNDING)
            ridge = np.append(w[:-1], 0.0)
            return 0.5 * float(ridge @ ridge) + float(weight @ loss), ridge - (weight * side * slope) @ features

        return np.asarray(flip * minimize(objective, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B").x)

    def decision_function(self, X: Any) -> Array:
        f = self._table(X) @ self.coef_[:, :-1].T + self.coef_[:, -1]
        return np.asarray(f[:, 0] if len(self.classes_) == 2 else f)
