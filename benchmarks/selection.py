"""How members and the strength of the rule should be chosen: chosen on one half of validation, judged on the other. No test
sample is looked at. Where networks have out-of-fold scores of training and validation samples, these are halved.

average   given + restart + mixup under all views, nothing chosen
greedy    the greedy selection alone, with the views that cost less
auto      `csada.decisions.select`: the average unless another choice is clearly cheaper
single    one network that learned from the average, one view
restart   another network alone, one view: it leads the given one by little

The rule may spend what a row leads the given model by in accuracy. A lead is half counted and half expected; with
"counted" it is counted alone, with "expected" expected alone.

Run:  python benchmarks/selection.py  ->  results/selection.json
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from csada.costs import CostMatrix
from csada.decisions import Mixture, Selection, choose, fit_temperature, rules, select
from csada.decisions.rules import mean_cost
from csada.decisions.selection import Judge, viewed
from csada.paper.library import GIVEN, MEMBERS, STUDENT, read_library
from csada.paper.sources import SOURCES
from csada.paper.study_rows import AIMED, Given
from csada.reading import write_json

RESULTS = Path(__file__).parents[1] / "results"
PER_KIND, HALVES = 3, 2  # problems; how often validation is halved
BUDGETS = (0.0, 0.5)  # points
DATA = ("cifar10", "mnist", "mnist_few", "pills", "digits", "breast_cancer", "wine")


def fixed(names: tuple[str, ...], views: tuple[str, ...] | None = None) -> Callable[..., Mixture]:
    def made(library: Any, truth: Any, costs: CostMatrix, budget: float) -> Mixture:
        temperatures = {name: fit_temperature(library[name]["identity"], truth) for name in names}
        weights = dict.fromkeys(names, 1 / len(names))
        return Mixture(Selection(weights, ()), temperatures, views or tuple(library[GIVEN]))

    return made


def greedy(library: Any, truth: Any, costs: CostMatrix, budget: float) -> Mixture:
    temperatures = {name: fit_temperature(library[name]["identity"], truth) for name in MEMBERS}
    found = []
    for views in {("identity",), tuple(library[GIVEN])}:
        judge = Judge.of(
            viewed(library, views, temperatures), truth, costs, budget, library[GIVEN]["identity"].argmax(1)
        )
        chosen, cost = judge.greedy(3)
        found.append((cost.mean(), Mixture(chosen, {n: temperatures[n] for n in chosen.weights}, views)))
    return min(found, key=lambda each: each[0])[1]


def auto(library: Any, truth: Any, costs: CostMatrix, budget: float) -> Mixture:
    return select({name: library[name] for name in MEMBERS}, truth, costs, budget=budget, members=3)


CHOICES: dict[str, tuple[Callable[..., Mixture], tuple[str, ...]]] = {  # how, and the networks that it needs
    "average": (fixed(MEMBERS[:3]), MEMBERS),
    "greedy": (greedy, MEMBERS),
    "auto": (auto, MEMBERS),
    "single": (fixed((STUDENT,), ("identity",)), (GIVEN, STUDENT)),
    "restart": (fixed((MEMBERS[2],), ("identity",)), MEMBERS),
}
LEADS = {"": 0.5, ", counted": 0.0, ", expected": 1.0}  # how much of a lead in accuracy is expected
ROWS = [(name, "") for name in CHOICES] + list(product(("average", "single", "restart"), list(LEADS)[1:]))


def run(data: str) -> dict[str, Any]:
    """By budget and row: cost removed in %, the mean over the kinds of problems; points of accuracy gained."""
    library = read_library(RESULTS, data)
    assert library is not None
    paid: dict[Any, float] = {}  # by budget, kind and row
    base: dict[Any, float] = {}
    gained: dict[Any, list[float]] = {}
    for seed, (name, lead) in product(library.seeds, ROWS):
        given, (chosen, needed) = Given(library, seed, SOURCES[data]), CHOICES[name]
        if not set(needed) <= set(given.temperatures):
            continue
        part = given.chooses(needed)
        truth, scores = given.labels(part), {member: given.scores[part][member] for member in needed}
        for own, other in halves(len(truth)):
            mine, rest = ({m: {v: s[i] for v, s in seen.items()} for m, seen in scores.items()} for i in (own, other))
            top, right = rest[GIVEN]["identity"].argmax(1), truth[other]
            for (kind, costs), budget in product(asked(given), BUDGETS):
                key, unit = (budget, name + lead, kind), mean_cost(costs)
                with patch.object(rules, "EXPECTED", LEADS[lead]):
                    mixture = chosen(mine, truth[own], costs, budget / 100)
                    common: Any = {"budget": budget / 100, "reference": mine[GIVEN]["identity"].argmax(1)}
                    rule = choose(mixture.scores(mine), truth[own], costs, **common).automatic(costs)
                decided = np.asarray(rule(mixture.scores(rest)))
                base[key] = base.get(key, 0.0) + costs.values[right, top].sum() / unit
                paid[key] = paid.get(key, 0.0) + costs.values[right, decided].sum() / unit
                gained.setdefault(key[:2], []).append(100 * float((decided == right).mean() - (top == right).mean()))
    return {
        f"budget {budget:g}": {
            row: {
                "removed": round(
                    float(np.mean([100 * (1 - paid[k] / base[k]) for k in base if k[:2] == (budget, row) and base[k]])),
                    1,
                ),
                "points": round(float(np.mean(gained[budget, row])), 2),
            }
            for row in (name + lead for name, lead in ROWS)
        }
        for budget in BUDGETS
    }


def halves(n: int) -> list[tuple[Any, Any]]:
    found = [np.random.default_rng(100 + i).permutation(n) < n // 2 for i in range(HALVES)]
    return [pair for half in found for pair in ((half, ~half), (~half, half))]


def asked(given: Given) -> list[tuple[str, CostMatrix]]:
    """Some problems of every kind."""
    kinds = {kind: list(own.values()) for kind, own in given.problems.items() if not kind.startswith(AIMED)}
    return [(kind, each) for kind, own in kinds.items() for each in own[:: max(1, len(own) // PER_KIND)][:PER_KIND]]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {}
    for data in DATA:
        for budget, found in run(data).items():
            record[f"{data}, {budget}"] = found
            print(data, budget, found, flush=True)
    write_json(RESULTS / "selection.json", record)
