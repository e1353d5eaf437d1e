"""Cross-entropy: the baseline that every other method starts from, blind to costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.methods.base import scores


@dataclass(frozen=True)
class CrossEntropy:
    costs: CostMatrix
    static = True

    def prepare(self, model: nn.Module, data: Any, **_: Any) -> tuple[nn.Module, Any]:
        return model, data

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        costs: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return F.cross_entropy(scores(model, x), y)
