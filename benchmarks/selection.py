"""How members should be chosen: chosen on one half of validation, judged on the other. No test sample is looked at.

average   given + restart + mixup under all views, nothing chosen
greedy    the greedy selection alone, with the views that cost less
auto      `csada.decisions.select`: the average unless another choice is clearly cheaper

Run:  python benchmarks/selection.py  ->  results/selection.json
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from csada.costs import CostMatrix
from csada.decisions import Mixture, Selection, choose, fit_temperature, select
from csada.decisions.rules import mean_cost
from csada.decisions.selection import Judge, viewed
from csada.paper.library import GIVEN, MEMBERS, SOURCES, read_library
from csada.paper.study_rows import AIMED, Given
from csada.reading import write_json

RESULTS = Path(__file__).parents[1] / "results"
PER_KIND = 3  # problems


def average(library: Any, truth: Any, costs: CostMatrix, budget: float) -> Mixture:
    names, views = MEMBERS[:3], tuple(library[GIVEN])
    temperatures = {name: fit_temperature(library[name]["identity"], truth) for name in names}
    return Mixture(Selection(dict.fromkeys(names, 1 / 3), ()), temperatures, views)


def greedy(library: Any, truth: Any, costs: CostMatrix, budget: float) -> Mixture:
    temperatures = {name: fit_temperature(seen["identity"], truth) for name, seen in library.items()}
    right = (library[GIVEN]["identity"].argmax(1) == truth).astype(np.float64)
    found = []
    for views in {("identity",), tuple(library[GIVEN])}:
        chosen, cost = Judge.of(viewed(library, views, temperatures), truth, costs, budget, right).greedy(3)
        found.append((cost.mean(), Mixture(chosen, {n: temperatures[n] for n in chosen.weights}, views)))
    return min(found, key=lambda each: each[0])[1]


def auto(library: Any, truth: Any, costs: CostMatrix, budget: float) -> Mixture:
    return select(library, truth, costs, budget=budget, members=3)


ROWS = {"average": average, "greedy": greedy, "auto": auto}


def run(name: str, budget: float) -> dict[str, Any]:
    """Cost removed in %, the mean over the kinds of problems, and points of accuracy gained."""
    library = read_library(RESULTS, name)
    assert library is not None
    paid: dict[tuple[str, str], float] = {}
    gained: dict[str, list[float]] = {row: [] for row in ROWS}
    for seed in library.seeds:
        given, truth = Given(library, seed, SOURCES[name]), library.labels(seed, "validation")
        scores = {member: given.scores["validation"][member] for member in MEMBERS}
        half = np.random.default_rng(100).permutation(len(truth)) < len(truth) // 2
        for first in (half, ~half):
            own, other = (
                {m: {v: s[part] for v, s in seen.items()} for m, seen in scores.items()} for part in (first, ~first)
            )
            top, right = other[GIVEN]["identity"].argmax(1), own[GIVEN]["identity"].argmax(1) == truth[first]
            judged = truth[~first]
            for kind, problems in given.problems.items():
                step = max(1, len(problems) // PER_KIND)
                for costs in list(problems.values())[::step][:PER_KIND] if kind != AIMED else ():
                    unit = mean_cost(costs)
                    paid[kind, "given"] = paid.get((kind, "given"), 0.0) + costs.values[judged, top].sum() / unit
                    for row, chosen in ROWS.items():
                        mixture = chosen(own, truth[first], costs, budget / 100)
                        common: Any = {"budget": budget / 100, "reference": right.astype(np.float64)}
                        rule = choose(mixture.scores(own), truth[first], costs, **common).automatic(costs)
                        decided = np.asarray(rule(mixture.scores(other)))
                        paid[kind, row] = paid.get((kind, row), 0.0) + costs.values[judged, decided].sum() / unit
                        gained[row].append(100 * float((decided == judged).mean() - (top == judged).mean()))
    kinds = sorted({kind for kind, _ in paid if paid[kind, "given"] > 0})
    removed = {
        row: float(np.mean([100 * (1 - paid[kind, row] / paid[kind, "given"]) for kind in kinds])) for row in ROWS
    }
    return {row: {"removed": round(removed[row], 1), "points": round(float(np.mean(gained[row])), 2)} for row in ROWS}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {}
    for data in ("cifar10", "mnist", "digits", "breast_cancer"):
        for points in (0.0, 0.5):
            record[f"{data}, budget {points:g}"] = run(data, points)
            print(data, points, record[f"{data}, budget {points:g}"], flush=True)
    write_json(RESULTS / "selection.json", record)
