"""Cost-weighted cross-entropy (Kukar & Kononenko, 1998):  w(y) * -log p_y, the mean over the samples.

w(y) is the expected cost of a mistake on class y, sum_z c(y, z) / (K - 1), divided by its mean over the classes: equal
costs give plain cross-entropy, and the learning rate keeps its meaning. A sample's own cost row has the same scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.methods.base import cost_rows, scores


@dataclass(frozen=True)
class CostWeighted:
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
        # the mean over the classes, not over the batch: a sample's weight must not depend on its neighbours
        scale = float(self.costs.values.sum(1).mean()) or 1.0
        weights = cost_rows(self.costs, y, costs, logits.dtype).sum(1) / scale
        return (weights * F.cross_entropy(logits, y, reduction="none")).mean()
