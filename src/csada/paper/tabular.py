"""Tables: every method on an MLP, and the classical rivals, on scikit-learn's breast-cancer and wine data.

Each seed splits the data 60/20/20 and trains one baseline, from which every method of METHODS starts. A method's
settings are chosen by cost on validation (ties: by accuracy, then the first listed), and the test part is looked at
once, with what was chosen. `run()` gives one record with the confusion counts of every run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn

from csada.classical import (
    AugmentedClassifier,
    CostSensitiveSVM,
    ExampleDependentLogisticRegression,
    OneSidedRegressionSVM,
    cost_tree,
    kernel_module,
)
from csada.costs import ClassLike, CostMatrix
from csada.data.splits import Part, Splits, stratified
from csada.decisions import MinimumExpectedCost, argmax
from csada.errors import Diverged
from csada.evaluation import predict_logits
from csada.methods import METHODS
from csada.metrics import accuracy, confusion_counts, weighted_error_rate
from csada.models.modes import borrowed_threads
from csada.models.plain import mlp
from csada.reading import plain
from csada.sklearn import CSADAClassifier, MetaCostClassifier, MinimumExpectedCostClassifier, standardization
from csada.training import fit
from csada.workflow.runs import environment

FORMAT = 1
Labels = NDArray[np.int64]
Predictor = Callable[[Part], Labels]
Options = dict[str, Any]
Progress = Callable[[int, int], None]

DATA: dict[str, tuple[Callable[[], Any], dict[tuple[ClassLike, ClassLike], float]]] = {
    "breast_cancer": (load_breast_cancer, {(0, 1): 10.0}),  # a tumour missed
    "wine": (load_wine, {(0, 1): 10.0, (2, 1): 5.0}),  # the dear wines sold as the cheap one
}

BASELINE: Options = {"epochs": 30, "lr": 1e-2, "batch_size": 64, "optimizer": "adam"}
FINE_TUNING: Options = {"epochs": 15, "batch_size": 64, "optimizer": "adam"}
LEARNING_RATES = (1e-3, 1e-2)
# What is tried for a method besides the learning rates; one that is not named here runs with its defaults.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "csada": {"weight": (1.0, 5.0), "step_size": (0.1,), "steps": (5,)},
    "adjusted_penalty": {"alpha": (0.5, 5.0)},
    "pgd_training": {"epsilon": (0.1, 0.5), "step_size": (0.1,), "steps": (5,)},
    "metacost": {"bags": (5,)},
    "csdnn": {"epochs": (45,)},  # it starts a network of its own, so it gets the baseline's epochs too
}


def rivals(costs: CostMatrix, classes: int, seed: int) -> dict[str, list[tuple[Options, Any]]]:
    """The classical ones: for each name the settings to choose among, each with an unfitted estimator."""

    def tried(make: Callable[..., Any], **grid: tuple[Any, ...]) -> list[tuple[Options, Any]]:
        return [(options, make(**options)) for options in combinations(grid)]

    def logistic(C: float) -> Any:
        return LogisticRegression(C=C, max_iter=1000)

    forest = RandomForestClassifier(50, random_state=seed)
    strength = (0.01, 0.1, 1.0)
    found = {
        "logistic_regression": tried(logistic, C=(0.1, 1.0, 10.0)),
        "logistic_regression_rule": tried(
            lambda C, calibration: MinimumExpectedCostClassifier(logistic(C), costs=costs, calibration=calibration),
            C=(0.1, 1.0, 10.0),
            calibration=(None, "temperature"),
        ),
        "metacost_logistic": tried(
            lambda C: MetaCostClassifier(logistic(C), costs=costs, random_state=seed), C=(0.1, 1.0, 10.0)
        ),
        "cost_tree": tried(partial(cost_tree, costs, random_state=seed), min_samples_leaf=(2, 5, 10)),
        "one_sided_linear": tried(partial(OneSidedRegressionSVM, costs=costs), C=strength),
        "one_sided_rbf": tried(
            partial(OneSidedRegressionSVM, costs=costs, kernel="rbf", random_state=seed), C=(0.1, 1.0, 10.0)
        ),
        "cost_sensitive_svm": tried(partial(CostSensitiveSVM, costs=costs), C=strength, kappa=(0.5, 1.0)),
        "forest": tried(lambda: forest),
        "forest_rule": tried(
            lambda calibration: MinimumExpectedCostClassifier(forest, costs=costs, calibration=calibration, cv=3),
            calibration=(None, "temperature"),
        ),
        "forest_csada": tried(
            partial(AugmentedClassifier, forest, costs=costs, random_state=seed, epochs=15),
            weight=(0.5, 2.0),
            epsilon=(0.3, 1.0),
        ),
        "linear_csada": tried(partial(CSADAClassifier, hidden=(), costs=costs, random_state=seed), weight=(1.0, 5.0)),
        "kernel_csada": tried(
            partial(CSADAClassifier, kernel_module, costs=costs, random_state=seed), weight=(1.0, 5.0)
        ),
    }
    if classes == 2:
        found["example_dependent_logistic"] = tried(
            partial(ExampleDependentLogisticRegression, costs=costs), alpha=(1e-4, 1e-3, 1e-2)
        )
    return found


def run(seeds: int = 10, on_progress: Progress | None = None, *, jobs: int = 2) -> dict[str, Any]:
    """The record. Both data sets with each seed are one piece of work; on_progress(done, total) counts those."""
    work = list(itertools.product(DATA, range(seeds)))
    runs: list[dict[str, Any]] = []
    with parallel_config("loky", inner_max_num_threads=1):  # tiny matrices: more threads would only wait
        for done, part in enumerate(Parallel(jobs, return_as="generator")(delayed(one)(*w) for w in work), start=1):
            runs += part
            if on_progress is not None:
                on_progress(done, len(work))
    described = {}
    for name in DATA:
        splits, costs = load(name, 0)
        parts = {part: len(getattr(splits, part)) for part in ("train", "validation", "test")}
        described[name] = {"classes": list(costs.classes), "costs": costs.values.tolist(), "samples": parts}
    return {
        "format": FORMAT,
        "experiment": "tabular",
        "environment": plain(environment()),
        "seeds": seeds,
        "datasets": described,
        "runs": runs,
    }


def summary(record: Mapping[str, Any], dataset: str) -> list[dict[str, Any]]:
    """A line a method, cheapest first: means over the seeds, and the paired difference of cost from the baseline.

    The `_se` are standard errors over the seeds; test parts of different seeds overlap, so they are a little too small.
    """
    rows = [run for run in record["runs"] if run["dataset"] == dataset]
    baseline = {run["seed"]: run["cost"] for run in rows if run["method"] == "baseline"}
    lines = []
    for method in dict.fromkeys(run["method"] for run in rows):
        mine = [run for run in rows if run["method"] == method]
        saved = np.array([run["cost"] - baseline[run["seed"]] for run in mine])
        error = float(saved.std(ddof=1) / np.sqrt(len(saved))) if len(saved) > 1 else float("nan")
        means = {key: float(np.mean([run[key] for run in mine])) for key in ("cost", "accuracy", "seconds")}
        lines.append(
            {"method": method, "seeds": len(mine), **means, "difference": float(saved.mean()), "difference_se": error}
        )
    return sorted(lines, key=lambda line: (line["cost"], -line["accuracy"]))


def load(name: str, seed: int) -> tuple[Splits, CostMatrix]:
    source, pairs = DATA[name]
    data = source()
    classes = [str(c) for c in data.target_names]
    groups = stratified(data.target, (0.6, 0.2, 0.2), seed)
    normalization = standardization(data.data[groups[0]])
    x, y = normalization(torch.tensor(data.data)).float(), torch.tensor(data.target)
    train, validation, test = (Part(x[torch.from_numpy(g)], y[torch.from_numpy(g)]) for g in groups)
    return Splits(train, validation, test, tuple(classes), name), CostMatrix.from_pairs(classes, pairs)


def one(name: str, seed: int) -> list[dict[str, Any]]:
    """Every method on one split."""
    with borrowed_threads(1):
        return _one(name, seed)


def _one(name: str, seed: int) -> list[dict[str, Any]]:
    splits, costs = load(name, seed)
    record = partial(judged, splits=splits, costs=costs, head={"dataset": name, "seed": seed})
    start = mlp(splits.train.x.shape[1], len(costs), (50,), seed=seed)
    began = time.perf_counter()
    baseline = fit(start, splits, "cross_entropy", costs, seed=seed, **BASELINE).model
    seconds = time.perf_counter() - began
    lines = [record("baseline", [({}, by_network(baseline), seconds)])]
    lines.append(record("baseline_rule", [({}, by_rule(baseline, splits, costs), seconds)]))
    for method in METHODS:
        candidates = list(fine_tuned(baseline, splits, costs, method, seed))
        if not candidates:
            continue  # every setting diverged
        lines.append(record(method, [(options, by_network(model), took) for options, model, took in candidates]))
        if method == "csada":
            ruled = [(options, by_rule(model, splits, costs), took) for options, model, took in candidates]
            lines.append(record("csada_rule", ruled))
    x, y = splits.train.x.double().numpy(), splits.train.y.numpy()
    for method, tried in rivals(costs, len(costs), seed).items():
        fitted = []
        for options, estimator in tried:
            began = time.perf_counter()
            estimator.fit(x, y)
            fitted.append((options, by_estimator(estimator), time.perf_counter() - began))
        lines.append(record(method, fitted))
    return lines


def fine_tuned(
    baseline: nn.Module, splits: Splits, costs: CostMatrix, method: str, seed: int
) -> Iterator[tuple[Options, nn.Module, float]]:
    for options in combinations({"lr": LEARNING_RATES, **GRIDS.get(method, {})}):
        began = time.perf_counter()
        try:
            model = fit(baseline, splits, method, costs, seed=seed, **{**FINE_TUNING, **options}).model
        except Diverged:
            continue
        yield options, model, time.perf_counter() - began


def judged(
    method: str,
    candidates: list[tuple[Options, Predictor, float]],
    *,
    splits: Splits,
    costs: CostMatrix,
    head: Mapping[str, Any],
) -> dict[str, Any]:
    """The setting that is cheapest on validation, and what it does on test. `seconds` are those of its own training."""

    def counts(predict: Predictor, part: Part) -> NDArray[np.int64]:
        return confusion_counts(part.y.numpy(), predict(part), len(costs))

    def on_validation(candidate: tuple[Options, Predictor, float]) -> tuple[float, float]:
        confusion = counts(candidate[1], splits.validation)
        return weighted_error_rate(confusion, costs), -accuracy(confusion)

    chosen = min(candidates, key=on_validation)
    confusion = counts(chosen[1], splits.test)
    return {
        **head,
        "method": method,
        "chosen": chosen[0],
        "tried": len(candidates),
        "confusion": confusion.tolist(),
        "accuracy": accuracy(confusion),
        "cost": weighted_error_rate(confusion, costs),
        "seconds": round(chosen[2], 4),
    }


def by_network(model: nn.Module, rule: Callable[[Any], Any] = argmax) -> Predictor:
    return lambda part: np.asarray(rule(predict_logits(model, part).logits))


def by_rule(model: nn.Module, splits: Splits, costs: CostMatrix) -> Predictor:
    """Minimum expected cost, its temperature fitted on validation."""
    scores = predict_logits(model, splits.validation)
    return by_network(model, MinimumExpectedCost.calibrated(scores.logits, scores.labels, costs))


def by_estimator(estimator: Any) -> Predictor:
    return lambda part: np.asarray(estimator.predict(part.x.double().numpy()))


def combinations(grid: Mapping[str, tuple[Any, ...]]) -> list[Options]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
