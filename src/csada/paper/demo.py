"""The embedded default: handwritten digits, an overfitted CNN, and doses that must not be read too high.

Every number comes from the test split of its seed; the temperature is fitted on the validation split, and the settings
below were chosen on validation splits of seeds that the demo does not use. All seeds split the same 1,797 digits, so those
splits overlap the test splits here: the table shows what the methods do, it is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from csada.costs import CostMatrix
from csada.data.digits import load
from csada.decisions import MinimumExpectedCost
from csada.evaluation import evaluate, evaluate_scores, predict_logits
from csada.metrics import Evaluation
from csada.models import create
from csada.models.modes import borrowed_threads
from csada.training import fit

REASONS = {  # (truth, read as): (cost, why)
    ("1", "7"): (20, "1 mg given as 7 mg: a sevenfold overdose"),
    ("1", "8"): (20, "1 mg given as 8 mg: an eightfold overdose"),
    ("1", "9"): (20, "1 mg given as 9 mg: a ninefold overdose"),
    ("1", "4"): (10, "1 mg given as 4 mg: a fourfold overdose"),
    ("2", "8"): (10, "2 mg given as 8 mg: a fourfold overdose"),
    ("3", "9"): (8, "3 mg given as 9 mg: a threefold overdose"),
    ("8", "1"): (5, "8 mg given as 1 mg: the patient goes untreated"),
    ("9", "1"): (5, "9 mg given as 1 mg: the patient goes untreated"),
}
COSTS = CostMatrix.from_pairs(tuple("0123456789"), {pair: cost for pair, (cost, _) in REASONS.items()}, default=1)
ROWS = ("baseline", "baseline + rule", "CSADA", "CSADA + rule")
SHARES = (20, 30, 50)  # a small training set, so that the overfitted model still makes mistakes
FINE_TUNING: dict[str, Any] = {"lr": 0.001, "weight": 2.0, "tasks": 16, "step_size": 0.02, "steps": 5}


class Demo(NamedTuple):
    """One seed."""

    rows: dict[str, Evaluation]  # the four of the table, on the same test split
    training_accuracy: float  # of the baseline: 1.0, it interpolates


def run_demo(seeds: int = 8) -> Iterator[Demo]:
    for seed in range(seeds):
        splits = load(seed=seed, parts=SHARES)
        start = create("cnn", 10, channels=1, size=8, seed=seed)
        with borrowed_threads(1):
            baseline = fit(start, splits, "cross_entropy", COSTS, epochs=60, lr=0.05, batch_size=64, seed=seed).model
            tuned = fit(baseline, splits, "csada", COSTS, epochs=15, batch_size=64, seed=seed, **FINE_TUNING).model
        evaluations = []
        for model in (baseline, tuned):
            rule = MinimumExpectedCost.calibrated(*predict_logits(model, splits.validation), COSTS)
            scores = predict_logits(model, splits.test)
            evaluations += [evaluate_scores(scores, COSTS), evaluate_scores(scores, COSTS, rule)]
        rows = dict(zip(ROWS, evaluations, strict=True))
        yield Demo(rows, evaluate(baseline, splits.train, COSTS).accuracy)
