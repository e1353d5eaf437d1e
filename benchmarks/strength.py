"""The strength of the decision rule: chosen by least counted cost, and as `within_budget` does, on repeated splits.

python benchmarks/strength.py [--repetitions 100] [--out results/strength.json]

Both choose on validation, within the same accuracy budget, and are judged on test. Cost: of the test part, in percent of
argmax's. Lost: points of test accuracy, mean and standard deviation over the splits. Off: share of the splits on which
the strength came out as 0.
"""

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import softmax
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from csada.costs import CostMatrix
from csada.decisions import MinimumExpectedCost, argmax, frontier
from csada.metrics import Evaluation
from csada.reading import write_json

TUMOURS = CostMatrix([[0, 20], [1, 0]])
WINES = CostMatrix([[0, 10, 1], [1, 0, 1], [1, 5, 0]])
BUDGETS = (0.0, 0.005, 0.02)


def counted(logits, labels, costs, budget):
    """The rival: the strength of least counted cost among those that lose no more by count; of equals the lowest."""
    rule = MinimumExpectedCost.calibrated(logits, labels, costs)
    curve = frontier(logits, labels, rule)
    allowed = curve.accuracy >= (argmax(logits) == labels).mean() - budget - 1e-12
    return replace(rule, strength=curve.strength[np.argmin(np.where(allowed, curve.mean_cost, np.inf))])


def drawn(seed, classes, n, test=10_000):
    """Known posteriors, and logits that are twice too sure."""
    logits = np.random.default_rng(seed).normal(0, 2, (n + test, classes))
    u = np.random.default_rng(seed + 10_000).random((n + test, 1))
    labels = (softmax(logits, axis=1).cumsum(1) > u).argmax(1)
    return (2 * logits[:n], labels[:n]), (2 * logits[n:], labels[n:]), CostMatrix.pareto(classes, seed=seed)


def split(seed, load, model, validation, test, costs=None):
    x, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    parts = order[:validation], order[validation : validation + test], order[validation + test :]
    fitted = make_pipeline(StandardScaler(), model).fit(x[parts[2]], y[parts[2]])
    found = ((np.log(np.maximum(fitted.predict_proba(x[i]), 1e-12)), y[i]) for i in parts[:2])
    return *found, costs or CostMatrix.pareto(y.max() + 1, seed=seed)


def linear():
    return LogisticRegression(max_iter=500)


def network(seed):
    return MLPClassifier((32,), max_iter=150, random_state=seed)


PROBLEMS = {
    "known posteriors, 4 classes, 60 samples": lambda seed: drawn(seed, 4, 60),
    "known posteriors, 4 classes, 300 samples": lambda seed: drawn(seed, 4, 300),
    "known posteriors, 10 classes, 2,000 samples": lambda seed: drawn(seed, 10, 2_000),
    "breast cancer 20 : 1, logistic regression, 68": lambda seed: split(
        seed, load_breast_cancer, linear(), 68, 200, TUMOURS
    ),
    "breast cancer 20 : 1, mlp, 68": lambda seed: split(seed, load_breast_cancer, network(seed), 68, 200, TUMOURS),
    "wine, logistic regression, 40": lambda seed: split(seed, load_wine, linear(), 40, 90, WINES),
    "digits, Pareto costs, logistic regression, 300": lambda seed: split(seed, load_digits, linear(), 300, 1_000),
}


def measured(make, repetitions):
    found = {}
    for seed in range(repetitions):
        validation, (logits, labels), costs = make(seed)
        before = Evaluation.of(labels, argmax(logits), costs)
        for budget in BUDGETS:
            for name, choice in (("counted", counted), ("within_budget", MinimumExpectedCost.within_budget)):
                rule = choice(*validation, costs, budget)
                after = Evaluation.of(labels, rule(logits), costs)
                row = (after.mean_cost, before.mean_cost, before.accuracy - after.accuracy, rule.strength == 0)
                found.setdefault((budget, name), []).append(row)
    return [
        {
            "budget": 100 * budget,
            "choice": name,
            "cost": round(100 * np.sum(rows, 0)[0] / np.sum(rows, 0)[1], 1),
            "lost": round(100 * np.mean(rows, 0)[2], 2),
            "lost_sd": round(100 * np.std(rows, 0)[2], 2),
            "off": round(np.mean(rows, 0)[3], 2),
        }
        for (budget, name), rows in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "results" / "strength.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # networks that have not converged
    record = {"repetitions": given.repetitions, "problems": {}}
    for problem, make in PROBLEMS.items():
        record["problems"][problem] = rows = measured(make, given.repetitions)
        print(problem)
        for row in rows:
            print("  ", *(f"{key} {value}" for key, value in row.items()), flush=True)
    write_json(given.out, record)
