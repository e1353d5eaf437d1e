"""What leaving the doubtful cases to a person would bring."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from csada.decisions.arrays import Floats, labelled
from csada.decisions.rules import MinimumExpectedCost, realised
from csada.errors import InputError


class CoverageCurve(NamedTuple):
    """The share of cases decided automatically, surest first; the mean cost that these really had; and the mean cost that
    the others would have had: leaving these to a person pays where that person costs less. NaN where there are none.
    """

    coverage: Floats
    cost: Floats
    worth: Floats


def cost_coverage_curve(logits: Any, labels: Any, rule: MinimumExpectedCost) -> CoverageCurve:
    """What the automatic share costs as doubtful cases are referred, in the order of their expected cost."""
    _, truth = labelled(logits, labels, rule.classes)
    decided = rule.decide(logits)
    order = np.argsort(decided.doubt, kind="stable")
    counts, paid = np.arange(1, len(truth) + 1), realised(rule.costs, truth, decided.chosen)[order]
    spent, others = np.cumsum(paid), len(truth) - counts
    worth = np.divide(paid.sum() - spent, others, out=np.full(len(truth), np.nan), where=others > 0)
    return CoverageCurve(counts / len(truth), spent / counts, worth)


def threshold_for_budget(logits: Any, rule: MinimumExpectedCost, budget: float) -> float:
    """The lowest threshold with which `Abstention(rule, threshold)` refers at most the share `budget` of these (validation)
    cases: those that are expected to cost most.
    """
    if not 0 <= budget <= 1:
        raise InputError(f"budget is the share of cases that may be referred, from 0 to 1; got {budget}")
    expected = np.sort(rule.decide(logits).doubt)[::-1]
    if len(expected) == 0:
        raise InputError("no logits to choose a threshold on; give those of the validation data")
    referred = math.floor(budget * len(expected) + 1e-9)
    return float(expected[referred]) if referred < len(expected) else 0.0
