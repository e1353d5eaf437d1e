"""Limits on simulated data whose true rates are known: how often they are broken, and what keeping them costs.

python benchmarks/limits.py [--repetitions 200] [--first 10000] [--problems 200] [--out results/limits.json]

Every scenario draws validation sets from Gaussian classes, with logits that are `sureness` times too sure. The rule that
`within_limits` takes is judged by the known posterior on TRUTH fresh samples. broken: data sets on which a limit's true rate is
above it. refused: data sets on which no rule could be shown to keep the limits. cost: of the rule, divided by that of the best
rule that keeps the limits under the true distribution, which is found with the posterior on those fresh samples.

The search alone, on random problems of three classes: what its rule costs in expectation, divided by the least that any way to
decide the same samples within the same limits costs (a linear program).
"""

import argparse
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import eye, kron
from scipy.special import log_softmax

from csada.costs import CostMatrix
from csada.decisions import Limits, within_limits
from csada.decisions.constrained import Search
from csada.decisions.rules import Decision, by_scores
from csada.errors import InputError
from csada.metrics import REFER
from csada.reading import parse_json, read_text, write_json

TRUTH = 100_000
TRIANGLE = ((0.0, 0.0), (3.0, 0.0), (1.5, 2.6))
COSTS = ((0, 1, 1), (5, 0, 2), (1, 3, 0))


@dataclass(frozen=True)
class Scenario:
    name: str
    limits: Limits
    samples: int
    referral_cost: float | None = None
    sureness: float = 2.0
    means: tuple[tuple[float, ...], ...] = TRIANGLE
    priors: tuple[float, ...] = (0.4, 0.3, 0.3)
    costs: tuple[tuple[float, ...], ...] = COSTS

    @property
    def table(self) -> CostMatrix:
        return CostMatrix(self.costs, [f"c{i}" for i in range(len(self.costs))], self.referral_cost)

    def draw(self, seed: int, samples: int):
        """(the logarithms of the true probabilities, labels)"""
        rng = np.random.default_rng(seed)
        labels = rng.choice(len(self.priors), samples, p=self.priors)
        x = np.asarray(self.means)[labels] + rng.normal(size=(samples, len(self.means[0])))
        distances = ((x[:, None] - np.asarray(self.means)) ** 2).sum(2)
        return log_softmax(np.log(self.priors) - distances / 2, axis=1), labels


PAIR = {"truth": "c1", "predicted": "c0", "at_most": 0.02}
SCENARIOS = (
    Scenario("a pair", Limits.of({"pair": [PAIR]}), 3000),
    Scenario("a pair and a recall", Limits.of({"pair": [PAIR], "recall": [{"class": "c2", "at_least": 0.9}]}), 4000),
    Scenario("a pair and a person", Limits.of({"pair": [PAIR], "referred": {"at_most": 0.05}}), 4000),
    Scenario("a recall and a price", Limits.of({"recall": [{"class": "c2", "at_least": 0.97}]}), 2000, 0.3),
    Scenario(
        "four classes",
        Limits.of(
            {"pair": [PAIR], "precision": [{"class": "c3", "at_least": 0.8}], "accuracy_lost": {"at_most": 0.08}}
        ),
        4000,
        means=(*TRIANGLE, (4.5, 2.6)),
        priors=(0.25, 0.25, 0.25, 0.25),
        costs=((0, 1, 1, 1), (5, 0, 2, 1), (1, 3, 0, 1), (1, 1, 4, 0)),
        sureness=0.5,
    ),
)


def true_rate(limit, p, decided, top):
    """Of the limit's bad cases among decisions on samples of known probabilities."""
    kept, rows = decided != REFER, np.arange(len(p))
    right = np.where(kept, p[rows, decided], 0.0)
    if limit.kind == "referred":
        return 1 - kept.mean()
    if limit.kind == "accuracy_lost":
        return ((p[rows, top] - right) * kept).mean()
    if limit.kind == "precision":
        return 1 - right[decided == limit.predicted].mean()
    bad = decided == limit.predicted if limit.kind == "pair" else kept & (decided != limit.truth)
    return (p[:, limit.truth] * bad).sum() / p[:, limit.truth].sum()


def simulated(scenario: Scenario, repetitions: int, first: int = 0):
    """What came of so many data sets."""
    costs, known = scenario.table, scenario.limits.resolved(scenario.table.classes)
    logs, _ = scenario.draw(10**9, TRUTH)
    p, top, refers = np.exp(logs), logs.argmax(1), scenario.referral_cost is not None or scenario.limits.referred

    def paid(decision: Decision) -> tuple[float, list[float]]:
        decided = decision.rule(costs)(scenario.sureness * logs)
        each = np.where(decided == REFER, scenario.referral_cost or 0.0, (p @ costs.values)[np.arange(TRUTH), decided])
        return float(each.mean()), [float(true_rate(limit, p, decided, top)) for limit in known]

    truth = Search(by_scores(logs, costs), costs, (scenario.referral_cost or 0.0) if refers else None, top)
    best = truth.best(*truth.rows(known, [limit.most for limit in known]))
    free, rates = paid(Decision(scenario.sureness, strength=1.0))
    least, broken, refused, ratios = float(truth.objective @ best.done), np.zeros(len(known), int), 0, []
    for seed in range(first, first + repetitions):
        logits, labels = scenario.draw(seed, scenario.samples)
        try:
            found = within_limits(scenario.sureness * logits, labels, costs, scenario.limits)
        except InputError:
            refused += 1
            continue
        cost, shares = paid(found.decision)
        broken += [share > limit.most for share, limit in zip(shares, known, strict=True)]
        ratios.append(cost / least)
    return {
        "scenario": scenario,
        "without": {"mean_cost": free, "rates": dict(zip((limit.name for limit in known), rates, strict=True))},
        "best": least,
        "broken": {limit.name: int(count) for limit, count in zip(known, broken, strict=True)},
        "refused": refused,
        "cost": {"median": float(np.median(ratios)), "deciles": np.quantile(ratios, [0.1, 0.9]).round(4).tolist()},
    }, ratios


def random_problem(seed: int, samples: int = 2000):
    """(search, limits): one, two or three limits, with and without referrals and a price for them."""
    rng, off = np.random.default_rng(seed), 1 - np.eye(3)
    logs = log_softmax(rng.normal(0, rng.uniform(1.5, 4), (samples, 3)), axis=1)
    price = [None, None, float(rng.uniform(0.05, 0.3))][seed % 3]
    costs = CostMatrix(off * (0.1 + rng.pareto(1.5, (3, 3))), ["a", "b", "c"], price)
    values = {"pair": [{"truth": "a", "predicted": "b", "at_most": float(rng.uniform(0.005, 0.05))}]}
    if seed % 2:
        values["recall"] = [{"class": "c", "at_least": float(rng.uniform(0.8, 0.95))}]
    if seed % 5 == 0:
        values["precision"] = [{"class": "b", "at_least": float(rng.uniform(0.7, 0.95))}]
    if seed % 3 == 1:
        values["referred"] = {"at_most": float(rng.uniform(0.02, 0.2))}
    if seed % 5 == 3 and price is None and "referred" not in values:
        values["accuracy_lost"] = {"at_most": 0.05}
    limits = Limits.of(values)
    price = 0.0 if price is None and limits.referred else price
    return Search(by_scores(logs, costs), costs, price, logs.argmax(1)), limits.resolved(costs.classes)


def optimum(search: Search, limits) -> float:
    """The least expected cost of any way to decide these samples within the limits, each on its own; inf where none keeps them.

    A linear program with one number per sample and decision, so that ties may even be shared out: no rule costs less.
    """
    p, costs, refers = search.base.probabilities, search.costs.values, search.price is not None
    n, ones = len(p), np.ones(len(p))
    actions = [*range(3), *[REFER] * refers]

    def bad(limit, z):
        """([N], [N] or a number): what deciding z adds to the bad cases, and to the cases that the limit is about."""
        if limit.kind == "referred":
            return ones * (z == REFER), 1 / len(actions)
        if limit.kind == "accuracy_lost":
            return (p[np.arange(n), search.before] - p[:, z]) * (z != REFER), 1 / len(actions)
        if limit.kind == "precision":
            return (1 - p[:, z]) * (z == limit.predicted), ones * (z == limit.predicted)
        wrong = z == limit.predicted if limit.kind == "pair" else z not in (REFER, limit.truth)
        return p[:, limit.truth] * wrong, 0.0

    rows, most = [], []
    for limit in limits:
        counted = [bad(limit, z) for z in actions]
        fixed = {"pair": p[:, limit.truth or 0].sum(), "recall": p[:, limit.truth or 0].sum(), "precision": 0.0}.get(
            limit.kind, n
        )
        about = limit.most if limit.kind == "precision" else 0.0
        rows.append(np.stack([wrong - about * of for wrong, of in counted], 1).ravel())
        most.append(limit.most * fixed)
    paid = np.column_stack([p @ costs, *[ones * search.price] * refers] if refers else [p @ costs])
    once = kron(eye(n), np.ones((1, len(actions))))
    found = linprog(paid.ravel(), np.array(rows), most, once, ones)
    return found.fun / n if found.status == 0 else np.inf


def brute_force(search: Search, rows, most, rules: int = 4000) -> float:
    """The least expected cost on a grid of rules around the dual's multipliers: from a third to four times each of them."""
    strengths, _ = search.dual(rows, most)
    axis = np.geomspace(1 / 3, 4, int(rules ** (1 / len(most))))
    tried = (search.at(rows, strengths * factors).done for factors in product(axis, repeat=len(most)))
    return min((float(search.objective @ done) for done in tried if (rows @ done <= most + 1e-9).all()), default=np.inf)


def compared(problems: int):
    """The search against the optimum, and where it costs over 1 % more, as samples tie, against rules on a grid."""
    ratios, refused, grid = [], {"both": 0, "search": 0}, []
    for seed in range(problems):
        search, limits = random_problem(seed)
        rows, most = search.rows(limits, [limit.most for limit in limits])
        best, least = search.best(rows, most), optimum(search, limits)
        if best is None or np.isinf(least):
            refused["both" if np.isinf(least) else "search"] += 1
            continue
        cost = float(search.objective @ best.done)
        ratios.append(cost / least)
        if cost > 1.01 * least:
            grid.append(cost / brute_force(search, rows, most))
    at = {f"{100 * q:g} %": float(np.quantile(ratios, q)) for q in (0.5, 0.9, 0.99, 1)}
    return {"problems": problems, "to_optimum": at, "to_brute_force_where_above_1.01": grid, "refused": refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=200, help="data sets for each scenario; 0: none")
    parser.add_argument(
        "--first", type=int, default=10_000, help="seed; lower ones were looked at while the search was made"
    )
    parser.add_argument("--out", type=Path, default=Path("results/limits.json"))
    parser.add_argument("--problems", type=int, default=200, help="for the comparison with the optimum")
    given = parser.parse_args()
    optimal = compared(given.problems)
    print(optimal, flush=True)
    if given.repetitions == 0:  # the simulation stays as it was recorded
        write_json(given.out, parse_json(read_text(given.out), str(given.out)) | {"optimal": optimal})
        return
    rows, every, started = [], [], time.process_time()
    for scenario in SCENARIOS:
        row, ratios = simulated(scenario, given.repetitions, given.first)
        rows.append(row)
        every += ratios
        print(
            f"{scenario.name}: {row['broken']} refused {row['refused']} cost {row['cost']} of {row['best']:.4f}",
            flush=True,
        )
    most = {"limits_broken": sum(sum(row["broken"].values()) for row in rows), "median_cost": float(np.median(every))}
    about = {"data_sets": given.repetitions * len(rows), "seconds": round(time.process_time() - started)} | most
    write_json(given.out, {"optimal": optimal, "simulated": about | {"rows": rows}})
    print(about)


if __name__ == "__main__":
    main()
