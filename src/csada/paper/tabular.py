"""Tables: every method on an MLP, and the classical rivals, on scikit-learn's breast-cancer and wine data.

Each seed splits the data 60/20/20 and trains one baseline, from which every method of METHODS starts. A method's
settings are chosen by cost on validation (ties: by accuracy, then the first listed), and the test part is looked at
once, with what was chosen. `run()` gives one record with the confusion counts of every run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
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
from csada.data.fetch import Progress
from csada.data.splits import Part, Splits, stratified
from csada.decisions import MinimumExpectedCost, argmax
from csada.errors import Diverged
from csada.evaluation import predict_logits
from csada.methods import METHODS
from csada.metrics import Evaluation
from csada.models.modes import borrowed_threads
from csada.models.plain import mlp
from csada.processes import in_order
from csada.reading import plain
from csada.sklearn import CSADAClassifier, MetaCostClassifier, MinimumExpectedCostClassifier, standardization
from csada.training import fit
from csada.workflow.runs import environment

FORMAT = 1
Labels = NDArray[np.int64]
Predictor = Callable[[Part], Labels]
Options = dict[str, Any]
Grid = Mapping[str, tuple[Any, ...]]
Tried = tuple[Options, Any, float]  # the settings, what was fitted with them, and how many seconds that took

DATA: dict[str, tuple[Callable[[], Any], dict[tuple[ClassLike, ClassLike], float]]] = {
    "breast_cancer": (load_breast_cancer, {(0, 1): 10.0}),  # a tumour missed
    "wine": (load_wine, {(0, 1): 10.0, (2, 1): 5.0}),  # the expensive wines sold as the cheap one
}

BASELINE: Options = {"epochs": 30, "lr": 1e-2, "batch_size": 64, "optimizer": "adam"}
FINE_TUNING: Options = {"epochs": 15, "batch_size": 64, "optimizer": "adam"}
LEARNING_RATES = (1e-3, 1e-2)
# What is tried for a method besides the learning rates; one that is not named here runs with its defaults.
GRIDS: dict[str, Grid] = {
    "csada": {"weight": (1.0, 5.0), "step_size": (0.1,), "steps": (5,)},
    "adjusted_penalty": {"alpha": (0.5, 5.0)},
    "pgd_training": {"epsilon": (0.1, 0.5), "step_size": (0.1,), "steps": (5,)},
    "metacost": {"bags": (5,)},
    "csdnn": {"epochs": (45,)},  # it starts a network of its own, so it gets the baseline's epochs too
}


def rivals(costs: CostMatrix, classes: int, seed: int) -> dict[str, tuple[Callable[..., Any], Grid]]:
    """The classical ones: for each name what makes an unfitted estimator, and the settings to choose among."""

    def logistic(C: float) -> Any:
        return LogisticRegression(C=C, max_iter=1000)

    def ruled_logistic(C: float, calibration: str | None) -> Any:
        return MinimumExpectedCostClassifier(logistic(C), costs=costs, calibration=calibration)

    def metacost_logistic(C: float) -> Any:
        return MetaCostClassifier(logistic(C), costs=costs, random_state=seed)

    forest = RandomForestClassifier(50, random_state=seed)
    ruled_forest = partial(MinimumExpectedCostClassifier, forest, costs=costs, cv=3)
    forest_csada = partial(AugmentedClassifier, forest, costs=costs, random_state=seed, epochs=15)
    one_sided_rbf = partial(OneSidedRegressionSVM, costs=costs, kernel="rbf", random_state=seed)
    tuned = partial(CSADAClassifier, costs=costs, random_state=seed)
    weaker, stronger, calibrations = (0.01, 0.1, 1.0), (0.1, 1.0, 10.0), (None, "temperature")
    found: dict[str, tuple[Callable[..., Any], Grid]] = {
        "logistic_regression": (logistic, {"C": stronger}),
        "logistic_regression_rule": (ruled_logistic, {"C": stronger, "calibration": calibrations}),
        "metacost_logistic": (metacost_logistic, {"C": stronger}),
        "cost_tree": (partial(cost_tree, costs, random_state=seed), {"min_samples_leaf": (2, 5, 10)}),
        "one_sided_linear": (partial(OneSidedRegressionSVM, costs=costs), {"C": weaker}),
        "one_sided_rbf": (one_sided_rbf, {"C": stronger}),
        "cost_sensitive_svm": (partial(CostSensitiveSVM, costs=costs), {"C": weaker, "kappa": (0.5, 1.0)}),
        "forest": (lambda: forest, {}),
        "forest_rule": (ruled_forest, {"calibration": calibrations}),
        "forest_csada": (forest_csada, {"weight": (0.5, 2.0), "epsilon": (0.3, 1.0)}),
        "linear_csada": (partial(tuned, hidden=()), {"weight": (1.0, 5.0)}),
        "kernel_csada": (partial(tuned, kernel_module), {"weight": (1.0, 5.0)}),
    }
    if classes == 2:
        own = partial(ExampleDependentLogisticRegression, costs=costs)
        found["example_dependent_logistic"] = (own, {"alpha": (1e-4, 1e-3, 1e-2)})
    return found


def run(seeds: int = 10, on_progress: Progress | None = None, *, jobs: int = 2) -> dict[str, Any]:
    """The record. Both data sets with each seed are one piece of work; on_progress(done, total) counts those."""
    work = list(itertools.product(DATA, range(seeds)))
    runs: list[dict[str, Any]] = []
    for done, part in enumerate(in_order(one, work, jobs), start=1):
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


class MethodSummary(NamedTuple):
    """One method: means over the seeds, and the paired difference of cost from the baseline with its standard error."""

    method: str
    cost: float
    accuracy: float
    difference: float
    difference_se: float  # a little too small: test parts of different seeds overlap


def summary(record: Mapping[str, Any], dataset: str) -> list[MethodSummary]:
    """One line per method, cheapest first."""
    rows = [run for run in record["runs"] if run["dataset"] == dataset]
    baseline = {run["seed"]: run["cost"] for run in rows if run["method"] == "baseline"}
    lines = []
    for method in dict.fromkeys(run["method"] for run in rows):
        mine = [run for run in rows if run["method"] == method]
        cost, accuracy = (float(np.mean([run[key] for run in mine])) for key in ("cost", "accuracy"))
        saved = np.array([run["cost"] - baseline[run["seed"]] for run in mine])
        error = float(saved.std(ddof=1) / np.sqrt(len(saved))) if len(saved) > 1 else float("nan")
        lines.append(MethodSummary(method, cost, accuracy, float(saved.mean()), error))
    return sorted(lines, key=lambda line: (line.cost, -line.accuracy))


def load(name: str, seed: int) -> tuple[Splits, CostMatrix]:
    source, pairs = DATA[name]
    data = source()
    classes = [str(c) for c in data.target_names]
    groups = stratified(data.target, (0.6, 0.2, 0.2), seed)
    normalization = standardization(data.data[groups[0]])
    x, y = normalization(torch.tensor(data.data)).float(), torch.tensor(data.target)
    train, validation, test = (Part(x[torch.from_numpy(g)], y[torch.from_numpy(g)]) for g in groups)
    return Splits(train, validation, test, tuple(classes), name), CostMatrix.from_pairs(classes, pairs)


@borrowed_threads(1)
def one(name: str, seed: int) -> list[dict[str, Any]]:
    """Every method on one split."""
    splits, costs = load(name, seed)
    x, y = splits.train.x.double().numpy(), splits.train.y.numpy()
    lines = []

    def judge(method: str, tried: list[Tried], predictor: Callable[[Any], Predictor]) -> None:
        if tried:  # else every setting diverged
            candidates = [(options, predictor(fitted), seconds) for options, fitted, seconds in tried]
            head = {"dataset": name, "seed": seed}
            lines.append(judged(method, candidates, splits=splits, costs=costs, head=head))

    def network(start: nn.Module, method: str, settings: Options, **options: Any) -> nn.Module:
        return fit(start, splits, method, costs, seed=seed, **{**settings, **options}).model

    def estimator(make: Callable[..., Any], **options: Any) -> Any:
        return make(**options).fit(x, y)

    start = mlp(x.shape[1], len(costs), (50,), seed=seed)
    networks = {"baseline": each_setting(partial(network, start, "cross_entropy", BASELINE), {})}
    baseline = networks["baseline"][0][1]
    for method in METHODS:
        grid: Grid = {"lr": LEARNING_RATES, **GRIDS.get(method, {})}
        networks[method] = each_setting(partial(network, baseline, method, FINE_TUNING), grid)
    for method, tried in networks.items():
        judge(method, tried, by_network)
        if method in ("baseline", "csada"):
            judge(f"{method}_rule", tried, partial(by_rule, splits=splits, costs=costs))
    for method, (make, grid) in rivals(costs, len(costs), seed).items():
        judge(method, each_setting(partial(estimator, make), grid), by_estimator)
    return lines


def each_setting(make: Callable[..., Any], grid: Grid) -> list[Tried]:
    """What `make` gives for each combination; those whose training diverges are left out."""
    tried = []
    for values in itertools.product(*grid.values()):
        options = dict(zip(grid, values, strict=True))
        began = time.perf_counter()
        with suppress(Diverged):
            tried.append((options, make(**options), time.perf_counter() - began))
    return tried


def judged(
    method: str, candidates: list[Tried], *, splits: Splits, costs: CostMatrix, head: Mapping[str, Any]
) -> dict[str, Any]:
    """Of settings and their predictors, the one that is cheapest on validation, and what it does on test."""

    def evaluation(predict: Predictor, part: Part) -> Evaluation:
        return Evaluation.of(part.y.numpy(), predict(part), costs)

    def on_validation(candidate: Tried) -> tuple[float, float]:
        found = evaluation(candidate[1], splits.validation)
        return found.mean_cost, -found.accuracy

    options, predict, seconds = min(candidates, key=on_validation)
    found = evaluation(predict, splits.test)
    return {
        **head,
        "method": method,
        "chosen": options,
        "tried": len(candidates),
        "confusion": found.confusion.tolist(),
        "accuracy": found.accuracy,
        "cost": found.mean_cost,
        "seconds": round(seconds, 4),
    }


def by_network(model: nn.Module, rule: Callable[[Any], Any] = argmax) -> Predictor:
    return lambda part: np.asarray(rule(predict_logits(model, part).logits))


def by_rule(model: nn.Module, splits: Splits, costs: CostMatrix) -> Predictor:
    """Minimum expected cost, its temperature fitted on validation."""
    scores = predict_logits(model, splits.validation)
    return by_network(model, MinimumExpectedCost.calibrated(scores.logits, scores.labels, costs))


def by_estimator(estimator: Any) -> Predictor:
    return lambda part: np.asarray(estimator.predict(part.x.double().numpy()))
