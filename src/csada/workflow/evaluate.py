"""A saved classifier on any data."""

from __future__ import annotations

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data.splits import PARTS, Splits
from csada.data.splits import seen as overlap
from csada.decisions import MinimumExpectedCost, Rule, argmax
from csada.errors import InputError, check_known
from csada.evaluation import evaluate_scores
from csada.metrics import Evaluation


def part_for(classifier: Classifier, splits: Splits, decision: str = "own") -> tuple[str, str]:
    """All of the data where none of them was trained on, else the test part; and why."""
    if not len(classifier.trained_on):
        return "test", "what the model was trained on is not known"
    if any(overlap(ids, classifier.trained_on).any() for ids in splits.ids):
        return "test", "the model was trained on others of these data"
    if decision == "rule":
        return "test", "the rule is calibrated on the validation part"
    return "all", "the model has seen none of these data"


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
    check_known("decision", decision, ("own", "argmax", "rule"))
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
