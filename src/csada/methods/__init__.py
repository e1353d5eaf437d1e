"""Every method behind one call: `METHODS[name](costs, **options)` is a loss, `loss = method(model, x, y, generator=g)`."""

from typing import Any

from csada.methods.adjusted_penalty import AdjustedPenalty
from csada.methods.auxcst import AuxCST
from csada.methods.base import Method
from csada.methods.cost_weighted import CostWeighted
from csada.methods.cross_entropy import CrossEntropy
from csada.methods.csada import CSADA
from csada.methods.csdnn import CSDNN
from csada.methods.expected_cost import ExpectedCost
from csada.methods.metacost import MetaCost
from csada.methods.mixup import Mixup
from csada.methods.penalty import Penalty
from csada.methods.pgd_training import PGDTraining
from csada.methods.sampling import Costing, Oversampling, Undersampling
from csada.methods.sosr import SOSR

METHODS: dict[str, Any] = {
    "cross_entropy": CrossEntropy,
    "csada": CSADA,
    "penalty": Penalty,
    "adjusted_penalty": AdjustedPenalty,
    "sosr": SOSR,
    "csdnn": CSDNN,
    "auxcst": AuxCST,
    "cost_weighted": CostWeighted,
    "expected_cost": ExpectedCost,
    "oversampling": Oversampling,
    "undersampling": Undersampling,
    "costing": Costing,
    "metacost": MetaCost,
    "pgd_training": PGDTraining,
    "mixup": Mixup,
}

__all__ = ["METHODS", "Method"]
