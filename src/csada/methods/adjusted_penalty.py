"""Adjusted Penalty (AP):  -log p_y  -  alpha sum_z c(y, z) log(1 - p_z), the mean over the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.methods.base import cost_rows, log_one_minus_p, scores


@dataclass(frozen=True)
class AdjustedPenalty:
    costs: CostMatrix
    alpha: float = 5.0
    static = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise InputError(f"alpha must be finite and zero or more, got {self.alpha}")

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
        return F.cross_entropy(logits, y) - self.alpha * (rows * log_one_minus_p(logits)).sum(1).mean()
