"""Limits on simulated data whose true rates are known: how often they are broken, and what keeping them costs.

python benchmarks/limits.py [--repetitions 200] [--out results/limits.json]

Every scenario draws validation sets from Gaussian classes, with logits that are `sureness` times too sure. The rule that
`within_limits` takes is judged by the known posterior on TRUTH fresh samples. broken: data sets on which a limit's true rate is
above it. refused: data sets on which no rule could be shown to keep the limits. cost: of the rule, divided by that of the best
rule that keeps the limits under the true distribution, which is found with the posterior on those fresh samples.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from csada.costs import CostMatrix
from csada.decisions import Limits, within_limits
from csada.decisions.constrained import Search
from csada.decisions.rules import Decision, by_scores
from csada.errors import InputError
from csada.metrics import REFER
from csada.reading import write_json

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=200, help="data sets for each scenario")
    parser.add_argument("--out", type=Path, default=Path("results/limits.json"))
    given = parser.parse_args()
    rows, every, started = [], [], time.process_time()
    for scenario in SCENARIOS:
        row, ratios = simulated(scenario, given.repetitions)
        rows.append(row)
        every += ratios
        print(
            f"{scenario.name}: {row['broken']} refused {row['refused']} cost {row['cost']} of {row['best']:.4f}",
            flush=True,
        )
    most = {"limits_broken": sum(max(row["broken"].values()) for row in rows), "median_cost": float(np.median(every))}
    about = {"data_sets": given.repetitions * len(rows), "seconds": round(time.process_time() - started)} | most
    write_json(given.out, about | {"rows": rows})
    print(about)


if __name__ == "__main__":
    main()
