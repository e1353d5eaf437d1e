"""csada: give it a trained classifier and what each mistake costs; it avoids the expensive mistakes, with the evidence.

The public names are loaded when they are first used, so that `import csada` and `csada --help` do not wait for PyTorch.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csada import data as data
    from csada import models as models
    from csada.attacks import AttackResult as AttackResult
    from csada.attacks import Outcome as Outcome
    from csada.attacks import attack as attack
    from csada.attacks import boundary_distance as boundary_distance
    from csada.classifier import Classifier as Classifier
    from csada.costs import CostMatrix as CostMatrix
    from csada.data.splits import Part as Part
    from csada.data.splits import Splits as Splits
    from csada.decisions import Abstention as Abstention
    from csada.decisions import CostsByTruth as CostsByTruth
    from csada.decisions import Limits as Limits
    from csada.decisions import MinimumExpectedCost as MinimumExpectedCost
    from csada.decisions import ThresholdMoving as ThresholdMoving
    from csada.errors import InputError as InputError
    from csada.errors import RunError as RunError
    from csada.evaluation import evaluate as evaluate
    from csada.evaluation import evaluate_scores as evaluate_scores
    from csada.evaluation import predict_logits as predict_logits
    from csada.methods import METHODS as METHODS
    from csada.metrics import Evaluation as Evaluation
    from csada.training import Fitted as Fitted
    from csada.training import fit as fit
    from csada.workflow.auto import auto as auto
    from csada.workflow.fit import improve as improve

__version__ = "0.1.0"

_NAMES = {  # of each module, in data-flow order
    "costs": ("CostMatrix",),
    "metrics": ("Evaluation",),
    "data.splits": ("Part", "Splits"),
    "decisions": ("MinimumExpectedCost", "ThresholdMoving", "Abstention", "CostsByTruth", "Limits"),
    "evaluation": ("evaluate", "evaluate_scores", "predict_logits"),
    "attacks": ("attack", "boundary_distance", "AttackResult", "Outcome"),
    "methods": ("METHODS",),
    "training": ("fit", "Fitted"),
    "classifier": ("Classifier",),
    "workflow.fit": ("improve",),
    "workflow.auto": ("auto",),
    "errors": ("InputError", "RunError"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_HOME, "data", "models"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"csada.{_HOME[name]}"), name)
    if importlib.util.find_spec(f"csada.{name}"):
        return importlib.import_module(f"csada.{name}")
    raise AttributeError(f"module 'csada' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
