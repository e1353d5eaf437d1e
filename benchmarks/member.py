"""A network that CSADA has fine-tuned for the costs, as the third member of the average of a small network. Validation only.

Three averages of three networks, under the rule: the given one, a fresh one with mixup and, third, a fresh one (as `auto` has
it), one after CSADA at these costs, or one after CSADA at uniform costs, which shows whether it is the aim that helps. CSADA
has the settings of `csada fit --method csada`. Every decision is fitted on the other folds of validation.

    python benchmarks/member.py NAME ...   ->  results/member.json    (some minutes each)

paid: the sum over validation samples and problems of a kind, every matrix scaled to a mean cost of 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from csada.costs import CostMatrix
from csada.decisions import fit_temperature, held_out
from csada.decisions.rules import mean_cost
from csada.evaluation import predict_logits
from csada.metrics import confusion_counts
from csada.paper.problems import problems
from csada.paper.sources import SOURCES
from csada.reading import read_json, write_json
from csada.training import fit
from csada.workflow.candidates import candidates, train_candidate
from csada.workflow.settings import kind_of, options_for
from csada.workflow.train import few_samples, train

RECORD = Path(__file__).parents[1] / "results" / "member.json"
SPLITS = {"breast_cancer": 20, "wine": 30, "digits": 6}
PROBLEMS = 4  # of a kind
BUDGETS = (0.0, 0.5)
ROWS = ("rule", "generic", "csada", "csada, uniform costs", "csada alone")


def split(name: str, seed: int) -> dict[str, Any]:
    """Budget -> kind -> row -> what was paid, how many more decisions are right than by the given model, how many there are."""
    torch.set_num_threads(1)
    source = SOURCES[name]
    splits = source.load(name, seed)
    truth, k = splits.validation.y.numpy(), len(splits.classes)
    given = train(splits, source.model, seed=seed, epochs=source.epochs)
    options = options_for("csada", kind_of(source.model, splits.shape), seed=10)
    options = few_samples(options, len(splits.train))

    def posterior(model: Any) -> Any:
        logits = predict_logits(model, splits, part="validation").logits.double().numpy()
        return softmax(logits / fit_temperature(logits, truth), axis=1)

    def csada(costs: CostMatrix) -> Any:
        return posterior(fit(given.network, splits, "csada", costs, **options).model)

    own = posterior(given.network)
    uniform = CostMatrix.uniform(k)
    mixup, fresh, _ = (
        posterior(train_candidate(given, splits, c)[0].model) for c in candidates(given, splits, uniform)
    )
    unaimed, top = csada(uniform), own.argmax(1)
    found: dict[str, Any] = {}
    for kind, every in problems(confusion_counts(truth, top, k), source.group).items():
        for costs in list(every.values())[:PROBLEMS]:
            aimed = csada(costs)
            averages = own, *((own + mixup + third) / 3 for third in (fresh, aimed, unaimed)), aimed
            rows = dict(zip(ROWS, averages, strict=True))
            for budget in BUDGETS:
                common: dict[str, Any] = {"budget": budget / 100, "reference": top, "refer": 0.0}
                decided = {r: held_out(np.log(np.maximum(p, 1e-300)), truth, costs, **common) for r, p in rows.items()}
                for row, answer in {"argmax": top, **decided}.items():
                    paid = found.setdefault(str(budget), {}).setdefault(kind, {}).setdefault(row, [0.0, 0, 0])
                    paid[0] += float(costs.values[truth, answer].sum() / mean_cost(costs))
                    paid[1] += int((answer == truth).sum() - (top == truth).sum())
                    paid[2] += len(truth)
    return found


def removed(own: list[dict[str, Any]], row: str, budget: str) -> float:
    """Cost removed in percent, mean over kinds. own: by split."""
    sums = [[sum(s[budget][kind][r][0] for s in own) for r in (row, "argmax")] for kind in own[0][budget]]
    return float(np.mean([100 * (1 - paid / base) for paid, base in sums if base]))


def more_than_generic(own: list[dict[str, Any]], row: str, budget: str) -> tuple[float, float, float]:
    """And its 95 % interval over splits."""
    generator = np.random.default_rng(0)
    draws = [[own[i] for i in generator.choice(len(own), len(own))] for _ in range(1000)]
    more, *others = (removed(some, row, budget) - removed(some, "generic", budget) for some in (own, *draws))
    low, high = np.quantile(others, [0.025, 0.975])
    return more, float(low), float(high)


def told(name: str, own: list[dict[str, Any]]) -> None:
    for budget in map(str, BUDGETS):
        for row in ROWS:
            _, right, asked = np.sum([s[budget][kind][row] for s in own for kind in s[budget]], axis=0)
            more = "{:+.1f} [{:.1f}, {:.1f}]".format(*more_than_generic(own, row, budget))
            line = f"{removed(own, row, budget):6.1f} %, {100 * right / asked:+.2f} points"
            print(f"{name}, budget {budget}: {row:22} {line}; against generic {more}", flush=True)


if __name__ == "__main__":
    record = read_json(RECORD, dict) if RECORD.exists() else {}
    for data in sys.argv[1:] or SPLITS:
        record[data] = []
        for seed in range(SPLITS[data]):
            record[data].append(split(data, seed))
            write_json(RECORD, record)
        told(data, record[data])
