"""From scores to decisions: calibration, rules, curves. The only place where a decision is made."""

from csada.decisions.arrays import as_array
from csada.decisions.calibration import CALIBRATIONS, VectorScaling, fit_temperature, fit_vector_scaling, prior_ratio
from csada.decisions.curves import CoverageCurve, cost_coverage_curve, threshold_for_budget
from csada.decisions.rules import (
    RULES,
    STRENGTHS,
    TIE,
    Abstention,
    Costs,
    CostsByTruth,
    Decided,
    Decision,
    Frontier,
    MinimumExpectedCost,
    Rule,
    ThresholdMoving,
    argmax,
    decide,
    frontier,
    mean_cost,
    same_up_to,
)

__all__ = [
    "CALIBRATIONS",
    "RULES",
    "STRENGTHS",
    "TIE",
    "Abstention",
    "Costs",
    "CostsByTruth",
    "CoverageCurve",
    "Decided",
    "Decision",
    "Frontier",
    "MinimumExpectedCost",
    "Rule",
    "ThresholdMoving",
    "VectorScaling",
    "argmax",
    "as_array",
    "cost_coverage_curve",
    "decide",
    "fit_temperature",
    "fit_vector_scaling",
    "frontier",
    "mean_cost",
    "prior_ratio",
    "same_up_to",
    "threshold_for_budget",
]
