"""What leaving the doubtful cases to a person would bring."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from csada.decisions.arrays import Floats, labelled
from csada.decisions.rules import MinimumExpectedCost, realised
from csada.errors import InputError


class CoverageCurve(NamedTuple):
    """The share of cases decided automatically, surest first, and the mean cost that these really had."""

    coverage: Floats
    cost: Floats


def cost_coverage_curve(logits: Any, labels: Any, rule: MinimumExpectedCost) -> CoverageCurve:
    """What the automatic share costs as doubtful cases are referred, in the order of their expected cost."""
    _, truth = labelled(logits, labels, rule.classes)
    decided = rule.decide(logits)
    order = np.argsort(decided.doubt, kind="stable")
    counts = np.arange(1, len(truth) + 1)
    return CoverageCurve(counts / len(truth), np.cumsum(realised(rule.costs, truth, decided.chosen)[order]) / counts)


def threshold_for_budget(logits: Any, rule: MinimumExpectedCost, budget: float) -> float:
    """The lowest referral cost under which at most the share `budget` of these (validation) cases is referred.

    `Abstention(rule, threshold)` then refers the costliest: the threshold is the price at which the budget is used up.
    """
    if not 0 <= budget <= 1:
        raise InputError(f"budget is the share of cases that may be referred, from 0 to 1; got {budget}")
    expected = np.sort(rule.decide(logits).doubt)[::-1]
    if len(expected) == 0:
        raise InputError("no logits to choose a threshold on; give those of the validation data")
    referred = math.floor(budget * len(expected) + 1e-9)
    return float(expected[referred]) if referred < len(expected) else 0.0
