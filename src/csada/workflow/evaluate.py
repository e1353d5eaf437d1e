"""A saved classifier on any data."""

from __future__ import annotations

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data.splits import PARTS, Splits
from csada.decisions import MinimumExpectedCost, Rule, argmax
from csada.errors import InputError
from csada.evaluation import evaluate_scores
from csada.metrics import Evaluation

DECISIONS = ("own", "argmax", "rule")


def judge(
    classifier: Classifier,
    splits: Splits,
    costs: CostMatrix | None = None,
    part: str = "test",
    decision: str = "own",
    *,
    seen: str = "refuse",
) -> tuple[Evaluation, str, int]:
    """What it gets wrong on a part of the data ("all": on all), how it decided, and on how many of these it was trained.

    decision: its own, argmax, or the rule of least expected cost, calibrated on the data's validation part.
    """
    if decision not in DECISIONS:
        raise InputError(f"unknown decision {decision!r}; known: {', '.join(DECISIONS)}")
    table = classifier.costs if costs is None else costs
    if table is None:
        raise InputError("the classifier was trained without costs; give some")
    rule: Rule
    if decision == "own":
        rule, told = classifier.rule, "its own rule" if classifier.decision.strength else "the most probable class"
    elif decision == "argmax":
        rule, told = argmax, "the most probable class"
    else:
        calibration = classifier.scores(splits, "validation", seen=seen)
        rule, told = MinimumExpectedCost.calibrated(*calibration, table), "least expected cost"
    judged = evaluate_scores(classifier.scores(splits, part, seen=seen), table, rule)
    names = PARTS if part == "all" else (part,)
    kept = [name for name in names if name == "train" or seen == "keep"]
    known = classifier.adapt(splits, every_class=False)
    return judged, told, sum(int(classifier.known(known, name).sum()) for name in kept)
