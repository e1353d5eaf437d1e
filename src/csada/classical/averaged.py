"""`auto` for scikit-learn: the average of an estimator and its re-seeded or bagged copies, under a decision rule.

A rule is only as good as the probabilities under it. Everything is chosen on out-of-fold predictions, as `csada.auto` does on
validation: which copies join the given estimator (`decisions.select`), the calibration of their average, and the strength of
the rule within the accuracy budget. Then those that were chosen are fitted on all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted

from csada.decisions import Decided, choose, mixed, select
from csada.errors import InputError
from csada.sklearn import Array, Costs, Wrapper, log_probabilities, margins


@dataclass(eq=False, repr=False)
class AveragedClassifier(Wrapper):
    """Any classifier with probabilities: averaged over copies, calibrated, and deciding by cost within an accuracy budget.

    n_estimators: at most so many are averaged, the estimator as it is first; the others get seeds of their own and, with
    bootstrap=True, bootstrap samples. budget: the accuracy that may be lost against the estimator alone. cv: as everywhere
    in scikit-learn, for the out-of-fold predictions that choose. `weights_` says what was chosen. With
    fewer than 50 samples the estimator stays alone.
    """

    estimator: Any
    _: KW_ONLY
    costs: Costs = None
    labels: Any = None
    n_estimators: int = 5
    bootstrap: bool = True
    budget: float = 0.005
    cv: Any = 5
    random_state: Any = None

    def fit(self, X: Any, y: Any, costs: Costs = None) -> AveragedClassifier:
        if self.n_estimators < 1:
            raise InputError(f"n_estimators must be at least 1, got {self.n_estimators}")
        if self.n_estimators > 1 and not self.bootstrap and not seeds_of(self.estimator):
            kind = type(self.estimator).__name__
            raise InputError(f"{kind} has no random_state, so all copies would be the same; set bootstrap=True")
        X, y, _ = self._read(X, y, None)
        index = self._learn_classes(y, costs)
        drawn = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_estimators)
        seeds = {f"copy {i}" if i else "given": int(seed) for i, seed in enumerate(drawn)}
        folds = list(check_cv(self.cv, y, classifier=True).split(X, y))
        library = {name: {"identity": self._out_of_fold(X, y, folds, name, seed)} for name, seed in seeds.items()}
        truth = index[np.concatenate([held for _, held in folds])]
        chosen = select(library, truth, self.costs_, budget=self.budget, members=self.n_estimators)
        given = library["given"]["identity"].argmax(1)
        self.decision_ = choose(chosen.scores(library), truth, self.costs_, budget=self.budget, reference=given)
        self.weights_, self.temperatures_ = chosen.selection.weights, chosen.temperatures
        self._fit_all(X, y, None, **self._seeds("given", seeds["given"]))
        everything, copies = np.arange(len(y)), [name for name in self.weights_ if name != "given"]
        self.estimators_ = {name: self._member(X, y, everything, name, seeds[name]) for name in copies}
        self.estimators_ = {"given": self.estimator_} | self.estimators_
        return self

    def _out_of_fold(self, X: Any, y: Array, folds: Sequence[tuple[Array, Array]], name: str, seed: int) -> Array:
        """[N, K]: the logarithms of probabilities, fold after fold."""
        return np.concatenate(
            [
                log_probabilities(self._member(X, y, train, name, seed), _safe_indexing(X, held), self.classes_)
                for train, held in folds
            ]
        )

    def _member(self, X: Any, y: Array, rows: Array, name: str, seed: int) -> Any:
        """One of those that are averaged, fitted on these rows."""
        if self.bootstrap and name != "given":
            rows = rows[np.random.default_rng(seed).integers(len(rows), size=len(rows))]
        return self._fit_copy(X, y, rows, None, **self._seeds(name, seed))

    def _seeds(self, name: str, seed: int) -> dict[str, int]:
        """Of a copy; the given estimator keeps those that it has."""
        return {key: seed for key, own in seeds_of(self.estimator).items() if name != "given" or own is None}

    def _decided(self, X: Any) -> Decided:
        check_is_fitted(self, "estimators_")
        logs = {
            name: log_probabilities(each, X, self.classes_) / self.temperatures_[name]
            for name, each in self.estimators_.items()
        }
        return self.decision_.automatic(self.costs_).decide(mixed(logs, self.weights_))

    def predict_proba(self, X: Any) -> Array:
        """Averaged and calibrated."""
        return self._decided(X).probabilities

    def decision_function(self, X: Any) -> Array:
        """Minus what the rule minimises; for two classes the difference, positive for the second."""
        return margins(self._decided(X).scores)


def seeds_of(estimator: Any) -> dict[str, Any]:
    """Its seeds, and those within a pipeline, by name."""
    return {key: own for key, own in estimator.get_params().items() if key.rpartition("__")[2] == "random_state"}
