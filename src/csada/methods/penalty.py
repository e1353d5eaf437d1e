"""The extreme objective, equation (3):  - sum_z c(y, z) log(1 - p_z), the mean over the samples.

With a single pair of cost 1 it is the paper's; with a whole matrix every pair counts by its cost. It asks only that the
expensive classes be unlikely, never that the truth be likely, so it makes sense on a trained model alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from csada.costs import CostMatrix
from csada.methods.base import cost_rows, log_one_minus_p, scores


@dataclass(frozen=True)
class Penalty:
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
        return -(rows * log_one_minus_p(logits)).sum(1).mean()
