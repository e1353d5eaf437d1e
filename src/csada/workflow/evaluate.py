"""A saved classifier on any data."""

from __future__ import annotations

from typing import NamedTuple

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data.splits import PARTS, Splits
from csada.data.splits import seen as overlap
from csada.decisions import MinimumExpectedCost, Rule, argmax
from csada.errors import InputError
from csada.evaluation import evaluate_scores
from csada.metrics import Evaluation

DECISIONS = ("own", "argmax", "rule")


class Chosen(NamedTuple):
    part: str
    why: str


def part_for(classifier: Classifier, splits: Splits, decision: str = "own") -> Chosen:
    """All of the data where none of them was trained on, else the test part."""
    if not len(classifier.trained_on):
        return Chosen("test", "what the model was trained on is not known")
    if any(overlap(ids, classifier.trained_on).any() for ids in splits.ids):
        return Chosen("test", "the model was trained on others of these data")
    if decision == "rule":
        return Chosen("test", "the rule is calibrated on the validation part")
    return Chosen("all", "the model has seen none of these data")


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
