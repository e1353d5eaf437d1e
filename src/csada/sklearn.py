"""scikit-learn estimators: CSADA on tables and images, and two ways to make any probabilistic classifier heed costs.

All take `costs` in the constructor, where a grid search finds them, or in `fit`, where they win and where metadata
routing can send them (`set_fit_request(costs=True)`). They are a CostMatrix, or a table with one row (truth) and one
column (prediction) a class in the order of `classes_`, or pairs of labels {(truth, predicted): cost}, others costing 1.
`labels` names all classes where y may lack some, as in a fold of a cross-validation; the costs are then those of all.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, assert_all_finite, check_random_state, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)
from torch import nn

from csada.costs import CostMatrix
from csada.data.augment import Normalization
from csada.data.batches import batches
from csada.decisions import MinimumExpectedCost, decide, fit_temperature
from csada.errors import InputError, check_known
from csada.methods.csada import CSADA
from csada.methods.metacost import bagged
from csada.models.initial import seeded
from csada.models.modes import borrowed_eval, device_of
from csada.models.plain import mlp
from csada.training import fit

Array = NDArray[Any]
Costs = CostMatrix | Mapping[tuple[Any, Any], float] | Any | None

DECISIONS = ("argmax", "minimum_expected_cost")
LEAST_PROBABILITY = 1e-6  # a forest says 0 of what it never saw; its logarithm must stay finite for a temperature


class CostClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What csada's estimators share.

    Their options are dataclass fields: scikit-learn asks for a constructor that keeps what it is given and does no more.
    """

    def _learn_classes(self, y: Array, costs: Costs) -> NDArray[np.int64]:
        """y as numbers of `classes_`, which are set here, as are the costs; those given to `fit` win."""
        given = self.costs if costs is None else costs
        self.classes_, index, self.costs_ = classes_and_costs(y, given, getattr(self, "labels", None))
        return index

    def _table(self, X: Any) -> Array:
        """X [N, F] for a fitted estimator."""
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

    def predict(self, X: Any) -> Array:
        """The class of the largest score."""
        f = self.decision_function(X)
        return np.asarray(self.classes_[(f > 0).astype(int) if f.ndim == 1 else f.argmax(1)])


@dataclass(eq=False, repr=False)
class CSADAClassifier(CostClassifier):
    """A network trained with cross-entropy, then fine-tuned with CSADA.

    module: an nn.Module, which is copied, or a function (x, classes) -> nn.Module of the standardised training samples
    (it gets `seed=` too if it takes that); None: an MLP with the widths `hidden`, and with hidden=() a linear model.
    X is [N, F] or images [N, C, H, W]. Features (channels) are standardised unless standardize=False, so step_size and
    epsilon are in standard deviations. epochs=0 starts from the module as it is; with warm_start=True a second `fit`
    continues from the fitted network without training the baseline again. `weight` is the paper's lambda.
    sample_weight repeats samples in training, as often as it says; fractions are rounded so that the sums agree.
    """

    module: Any = None
    _: KW_ONLY
    hidden: tuple[int, ...] = (50,)
    epochs: int = 30
    lr: float = 1e-2
    fine_tune_epochs: int = 10
    fine_tune_lr: float = 1e-3
    weight: float = 2.0
    tau: float = 1.0
    steps: int = 5
    step_size: float = 0.05
    epsilon: float = 1.0
    batch_size: int = 64
    decision: str = "argmax"
    standardize: bool = True
    costs: Costs = None
    labels: Any = None
    random_state: Any = None
    warm_start: bool = False

    def fit(self, X: Any, y: Any, costs: Costs = None, sample_weight: Any = None) -> CSADAClassifier:
        check_known("decision", self.decision, DECISIONS)
        going_on = self.warm_start and hasattr(self, "module_")
        X, y = validate_data(self, X, y, allow_nd=True, dtype=[np.float64, np.float32], reset=not going_on)
        if sample_weight is not None:
            rows = repeated(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True))
            X, y = X[rows], y[rows]
        classes, index, self.costs_ = classes_and_costs(y, self.costs if costs is None else costs, self.labels)
        if going_on and not np.array_equal(classes, self.classes_):
            raise InputError(
                f"y has the classes {_names(classes)}, the fitted network {_names(self.classes_)}; set warm_start=False"
            )
        self.classes_: Array = classes
        if not going_on:
            self.shape_ = X.shape[1:]
            self.normalization_ = standardization(X) if self.standardize else Normalization()
        x, labels = self._samples(X), torch.from_numpy(index)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network = self.module_ if going_on else self._network(x, len(classes), seed)
        dtype = next((p.dtype for p in network.parameters()), x.dtype)
        shared: dict[str, Any] = {"batch_size": self.batch_size, "seed": seed, "optimizer": "adam"}
        options = {name: getattr(self, name) for name in ("weight", "tau", "steps", "step_size", "epsilon")}
        method = CSADA(self.costs_, tasks=min(64, self.batch_size), **options)
        self.history_: list[dict[str, Any]] = []
        for stage, epochs, lr in (
            ("cross_entropy", 0 if going_on else self.epochs, self.lr),
            (method, self.fine_tune_epochs, self.fine_tune_lr),
        ):
            if epochs > 0:
                fitted = fit(network, (x.to(dtype), labels), stage, self.costs_, epochs=epochs, lr=lr, **shared)
                network = fitted.model
                self.history_ += fitted.history
        self.module_: nn.Module = network
        return self

    def decision_function(self, X: Any) -> Array:
        """Logits, or minus the expected costs; for two classes their difference, positive for the second."""
        logits = self._logits(X)
        return margins(logits if self.decision == "argmax" else MinimumExpectedCost(self.costs_).decide(logits).scores)

    def predict_proba(self, X: Any) -> Array:
        """The network's own probabilities, whatever the decision."""
        return np.asarray(softmax(self._logits(X), axis=1))

    def _samples(self, X: Array) -> torch.Tensor:
        return self.normalization_(torch.tensor(X))

    def _logits(self, X: Any) -> Array:
        check_is_fitted(self, "module_")
        X = validate_data(self, X, allow_nd=True, dtype=[np.float64, np.float32], reset=False)
        if X.shape[1:] != self.shape_:
            raise InputError(f"samples of shape {X.shape[1:]}, but {self.shape_} in fit; give them the same shape")
        dtype = next((p.dtype for p in self.module_.parameters()), torch.float64)
        data = (self._samples(X).to(dtype), torch.zeros(len(X)))
        with borrowed_eval(self.module_), torch.inference_mode():
            parts = [self.module_(b.x).cpu().double() for b in batches(data, 1024, device_of(self.module_)).epoch()]
        return np.asarray(torch.cat(parts).numpy())

    def _network(self, x: torch.Tensor, classes: int, seed: int) -> nn.Module:
        if self.module is None:
            # double precision: a sample's probabilities then do not depend on the batch it came in
            return mlp(x[0].numel(), classes, self.hidden, seed=seed).double()
        if isinstance(self.module, nn.Module):
            return self.module  # `fit` trains a copy
        if not callable(self.module):
            raise InputError(f"module is {self.module!r}; give an nn.Module or a function (x, classes) -> nn.Module")
        options = {"seed": seed} if "seed" in inspect.signature(self.module).parameters else {}
        with seeded(seed):
            made = self.module(x, classes, **options)
        if not isinstance(made, nn.Module):
            raise InputError(f"module made a {type(made).__name__}, not an nn.Module")
        return made


class Wrapper(CostClassifier):
    """Around any classifier with probabilities. What X may hold, that estimator knows and checks."""

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Array, Array | None]:
        """X so that rows can be taken, y and weights as vectors."""
        kind = type(self.estimator).__name__
        if not hasattr(self.estimator, "predict_proba"):
            raise InputError(
                f"{kind} has no predict_proba, which expected costs need; "
                "wrap it in sklearn.calibration.CalibratedClassifierCV, or set the option that gives it probabilities"
            )
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        X, y = indexable(X, y)
        if sample_weight is None:
            return X, np.asarray(y), None
        if not has_fit_parameter(self.estimator, "sample_weight"):
            raise InputError(f"{kind} takes no sample_weight; leave it out, or wrap another estimator")
        weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if len(np.unique(y[weights > 0])) == 1:
            raise InputError(
                "sample_weight is above zero for one class only; a classifier needs samples of at least two"
            )
        return X, np.asarray(y), weights

    def _fit_copy(self, X: Any, y: Array, rows: Array, weights: Array | None, **own: Any) -> Any:
        """A copy, with options of its `own`, fitted on these rows; for a single class, which most refuse, the constant one."""
        rows = rows if weights is None else rows[weights[rows] > 0]
        constant = len(np.unique(y[rows])) == 1
        copy = DummyClassifier(strategy="prior") if constant else clone(self.estimator).set_params(**own)
        return copy.fit(_safe_indexing(X, rows), y[rows], **weighing(None if weights is None else weights[rows]))

    def _fit_all(self, X: Any, y: Array, weights: Array | None, **own: Any) -> None:
        """Fit `estimator_` on everything; what it learns about the columns of X is also known of the wrapper."""
        self.estimator_ = clone(self.estimator).set_params(**own).fit(X, y, **weighing(weights))
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))

    def __sklearn_tags__(self) -> Any:
        """The wrapper takes what the wrapped estimator takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


@dataclass(eq=False, repr=False)
class MinimumExpectedCostClassifier(Wrapper):
    """Any classifier with probabilities, deciding for the class of least expected cost.

    calibration: None trusts the probabilities; "temperature" fits one on out-of-fold predictions (`cv` as everywhere in
    scikit-learn) before the estimator is fitted on everything.
    """

    estimator: Any
    _: KW_ONLY
    costs: Costs = None
    labels: Any = None
    calibration: str | None = None
    cv: Any = 5

    def fit(self, X: Any, y: Any, costs: Costs = None, sample_weight: Any = None) -> MinimumExpectedCostClassifier:
        if self.calibration not in (None, "temperature"):
            raise InputError(f"unknown calibration {self.calibration!r}; known: None, 'temperature'")
        X, y, weights = self._read(X, y, sample_weight)
        index = self._learn_classes(y, costs)
        self.temperature_ = 1.0
        if self.calibration is not None:
            folds = list(check_cv(self.cv, y, classifier=True).split(X, y))
            logs = [
                log_probabilities(self._fit_copy(X, y, train, weights), _safe_indexing(X, held), self.classes_)
                for train, held in folds
            ]
            held_out = np.concatenate([held for _, held in folds])
            seen = None if weights is None else weights[held_out]
            self.temperature_ = fit_temperature(np.concatenate(logs), index[held_out], seen)
        self._fit_all(X, y, weights)
        return self

    def predict_proba(self, X: Any) -> Array:
        check_is_fitted(self, "estimator_")
        if self.calibration is None:
            return aligned(self.estimator_, X, self.classes_)
        return np.asarray(softmax(log_probabilities(self.estimator_, X, self.classes_) / self.temperature_, axis=1))

    def decision_function(self, X: Any) -> Array:
        """Minus the expected costs; for two classes their difference, positive for the second."""
        return margins(decide(self.predict_proba(X), self.costs_).scores)


@dataclass(eq=False, repr=False)
class MetaCostClassifier(Wrapper):
    """MetaCost (Domingos, 1999): relabel every training sample with its class of least expected cost, then fit on that.

    The probabilities are the mean of `n_estimators` copies fitted on bootstrap samples; out_of_bag=True takes for each
    sample only the copies that did not see it (all of them where there are none).
    """

    estimator: Any
    _: KW_ONLY
    costs: Costs = None
    labels: Any = None
    n_estimators: int = 10
    out_of_bag: bool = False
    random_state: Any = None

    def fit(self, X: Any, y: Any, costs: Costs = None, sample_weight: Any = None) -> MetaCostClassifier:
        if self.n_estimators < 1:
            raise InputError(f"n_estimators must be at least 1, got {self.n_estimators}")
        X, y, weights = self._read(X, y, sample_weight)
        self._learn_classes(y, costs)
        rng = check_random_state(self.random_state)
        bags = (rng.randint(len(y), size=len(y)) for _ in range(self.n_estimators))
        members = ((bag, aligned(self._fit_copy(X, y, bag, weights), X, self.classes_)) for bag in bags)
        self.labels_ = self.classes_[decide(bagged(members, self.out_of_bag), self.costs_).chosen]
        one_left = len(np.unique(self.labels_)) == 1  # most estimators refuse to learn that; the original y will do
        self._fit_all(X, y if one_left else self.labels_, weights)
        self.constant_ = self.labels_[0] if one_left else None
        return self

    def predict_proba(self, X: Any) -> Array:
        """Of the relabelled classes: the costs are in them already."""
        check_is_fitted(self, "estimator_")
        p = aligned(self.estimator_, X, self.classes_)
        return p if self.constant_ is None else np.tile((self.classes_ == self.constant_).astype(float), (len(p), 1))

    def predict(self, X: Any) -> Array:
        check_is_fitted(self, "estimator_")
        predicted = np.asarray(self.estimator_.predict(X))
        return predicted if self.constant_ is None else np.full_like(predicted, self.constant_)


def mean_cost(y_true: Any, y_pred: Any, *, costs: Costs, labels: Any = None) -> float:
    """The mean cost of a prediction.

    labels: all classes, in the order of a cost table's rows. Without it: the classes of y_true, sorted.
    """
    truth, predicted = np.asarray(y_true), np.asarray(y_pred)
    for values in (truth, predicted):
        if values.ndim != 1:
            raise InputError(f"mean_cost needs one class per sample, got shape {values.shape}; flatten it first")
    if len(truth) != len(predicted):
        raise InputError(f"{len(truth)} truths but {len(predicted)} predictions; give one prediction per truth")
    if len(truth) == 0:
        raise InputError("no samples, so no mean cost; give at least one")
    classes = np.unique(truth) if labels is None else np.asarray(labels)
    table = resolve_costs(costs, classes).values
    number = {label: k for k, label in enumerate(classes.tolist())}
    pairs = list(zip(truth.tolist(), predicted.tolist(), strict=True))
    if unknown := [label for pair in pairs for label in pair if label not in number]:
        raise InputError(f"class {unknown[0]!r} is not among {_names(classes)}; give labels=, all of them")
    return float(np.mean([table[number[y], number[z]] for y, z in pairs]))


def cost_scorer(costs: Costs, labels: Any) -> Any:
    """For `scoring=`: minus the mean cost, so that the best is the cheapest."""
    return make_scorer(mean_cost, greater_is_better=False, costs=costs, labels=labels)


def classes_and_costs(y: Array, costs: Costs, labels: Any = None) -> tuple[Array, NDArray[np.int64], CostMatrix]:
    """The classes in order, y as their numbers, and the costs in that order; of all `labels` where y lacks some."""
    check_classification_targets(y)
    classes, index = np.unique(y, return_inverse=True)
    if len(classes) == 0:
        raise InputError("y is empty; a classifier needs samples of at least two classes")
    if len(classes) < 2:
        raise InputError(f"y has one class only, {_names(classes)}; a classifier needs samples of at least two")
    known = classes if labels is None else np.unique(labels)
    if unknown := [label for label in classes.tolist() if label not in known.tolist()]:
        raise InputError(f"y has class {unknown[0]!r}, which labels lacks; it names {_names(known)}")
    matrix, found = resolve_costs(costs, known), np.isin(known, classes)
    return classes, index.astype(np.int64), CostMatrix(matrix.values[np.ix_(found, found)], list(map(str, classes)))


def resolve_costs(costs: Costs, classes: Array) -> CostMatrix:
    """The costs of these classes, in this order.

    A named CostMatrix goes by its names (or by number, if the labels are the numbers 0 .. K-1), a table by position.
    """
    names = list(map(str, classes))
    if costs is None:
        return CostMatrix.from_pairs(names, {})
    if isinstance(costs, Mapping):
        named = dict(zip(classes.tolist(), names, strict=True))
        for pair in costs:
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise InputError(f"costs has the key {pair!r}; keys are pairs of labels, (truth, predicted)")
            if unknown := [label for label in pair if label not in named]:
                raise InputError(f"the costs name class {unknown[0]!r}, which y never has{_lacking(classes)}")
        return CostMatrix.from_pairs(names, {(named[y], named[z]): cost for (y, z), cost in costs.items()})
    matrix = costs if isinstance(costs, CostMatrix) else CostMatrix(costs)
    numbered = np.array_equal(classes, np.arange(len(matrix))) and set(names) != set(matrix.classes)
    unnamed = matrix.classes == tuple(map(str, range(len(matrix))))
    if not (numbered or unnamed):
        for name in (*matrix.classes, *names):
            if name not in names:
                raise InputError(f"the costs name class {name!r}, which y never has{_lacking(classes)}")
            if name not in matrix.classes:
                raise InputError(
                    f"y has class {name!r}, for which there are no costs; they name {_names(matrix.classes)}"
                )
        order = [matrix.classes.index(name) for name in names]
        return CostMatrix(matrix.values[np.ix_(order, order)], names)
    if len(matrix) != len(classes):
        raise InputError(
            f"costs of shape {matrix.values.shape} for {len(classes)} classes, but they need one row and one column for "
            f"each class that y has{_lacking(classes)}"
        )
    return CostMatrix(matrix.values, names)


def _lacking(classes: Array) -> str:
    return (
        f"; its classes: {_names(classes)}. Where a fold may lack a class, an estimator with labels= takes all of them"
    )


def _names(classes: Any) -> str:
    shown = [repr(label) for label in np.asarray(classes).tolist()[:10]]
    return ", ".join(shown) + (", ..." if len(classes) > 10 else "")


def standardization(X: Array) -> Normalization:
    """Mean and standard deviation by feature, or by channel of images; what does not vary is only centred."""
    axes = (0, *range(2, X.ndim))
    mean, std = X.mean(axes, dtype=np.float64), X.std(axes, dtype=np.float64)
    varies = std > 1e-10 * np.maximum(np.abs(mean), 1e-200)
    return Normalization(tuple(mean.tolist()), tuple(np.where(varies, std, 1.0).tolist()))


def margins(scores: Array) -> Array:
    """scikit-learn's shape of a decision function: one column per class, but a single margin for two classes."""
    return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)


def repeated(weights: Array) -> NDArray[np.int64]:
    """Row numbers, each as often as its weight says; at least as many in all as there are weights above zero."""
    total = weights.sum()
    if total == 0:
        raise InputError("sample_weight is zero for every sample; give some a positive weight")
    sums = np.cumsum(weights) * max(1.0, np.count_nonzero(weights) / total)
    return np.repeat(np.arange(len(weights)), np.diff(np.round(sums), prepend=0).astype(np.int64))


def weighing(weights: Array | None) -> dict[str, Array]:
    return {} if weights is None else {"sample_weight": weights}


def aligned(fitted: Any, X: Any, classes: Array) -> Array:
    """Probabilities with one column for each of `classes`, 0 for those that the fitted estimator never saw."""
    p = np.zeros((len(got := np.asarray(fitted.predict_proba(X))), len(classes)))
    p[:, np.searchsorted(classes, fitted.classes_)] = got
    return p


def log_probabilities(fitted: Any, X: Any, classes: Array) -> Array:
    return np.asarray(np.log(np.maximum(aligned(fitted, X, classes), LEAST_PROBABILITY)))
