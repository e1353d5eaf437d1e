"""Expected cost, equation (2):  sum_z c(y, z) p_z, the mean over the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from csada.costs import CostMatrix
from csada.methods.base import cost_rows, scores


@dataclass(frozen=True)
class ExpectedCost:
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
        logits = scores(model, x)
        rows = cost_rows(self.costs, y, costs, logits.dtype)
        return (rows * logits.softmax(1)).sum(1).mean()
