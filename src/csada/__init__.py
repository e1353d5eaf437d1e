"""csada: give it a trained classifier and what each mistake costs; it avoids the expensive mistakes, with the evidence.

The public names are loaded when they are first used, so that `import csada` and `csada --help` do not wait for PyTorch.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csada import data, models
    from csada.attacks import AttackResult, Outcome, attack, boundary_distance
    from csada.classifier import Classifier
    from csada.costs import CostMatrix
    from csada.data.splits import Part, Splits
    from csada.decisions import Abstention, CostsByTruth, Limits, MinimumExpectedCost, ThresholdMoving
    from csada.errors import InputError, RunError
    from csada.evaluation import evaluate, evaluate_scores, predict_logits
    from csada.methods import METHODS
    from csada.metrics import Evaluation
    from csada.training import Fitted, fit
    from csada.workflow.auto import auto
    from csada.workflow.fit import improve

__version__ = "0.1.0"

_HOME = {  # in data-flow order
    "CostMatrix": "costs",
    "Evaluation": "metrics",
    "Part": "data.splits",
    "Splits": "data.splits",
    "MinimumExpectedCost": "decisions",
    "ThresholdMoving": "decisions",
    "Abstention": "decisions",
    "CostsByTruth": "decisions",
    "Limits": "decisions",
    "evaluate": "evaluation",
    "evaluate_scores": "evaluation",
    "predict_logits": "evaluation",
    "attack": "attacks",
    "boundary_distance": "attacks",
    "AttackResult": "attacks",
    "Outcome": "attacks",
    "METHODS": "methods",
    "fit": "training",
    "Fitted": "training",
    "Classifier": "classifier",
    "improve": "workflow.fit",
    "auto": "workflow.auto",
    "InputError": "errors",
    "RunError": "errors",
}

__all__ = [  # noqa: RUF022 - in data-flow order
    "CostMatrix",
    "Evaluation",
    "Part",
    "Splits",
    "MinimumExpectedCost",
    "ThresholdMoving",
    "Abstention",
    "CostsByTruth",
    "Limits",
    "evaluate",
    "evaluate_scores",
    "predict_logits",
    "attack",
    "boundary_distance",
    "AttackResult",
    "Outcome",
    "METHODS",
    "fit",
    "Fitted",
    "Classifier",
    "improve",
    "auto",
    "InputError",
    "RunError",
    "data",
    "models",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"csada.{_HOME[name]}"), name)
    if importlib.util.find_spec(f"csada.{name}"):
        return importlib.import_module(f"csada.{name}")
    raise AttributeError(f"module 'csada' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
