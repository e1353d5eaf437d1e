"""Cost-weighted cross-entropy (Kukar & Kononenko, 1998):  w(y) * -log p_y, the mean over the samples.

w(y) is the expected cost of a mistake on class y, sum_z c(y, z) / (K - 1), divided by its mean over the classes: equal
costs give plain cross-entropy, and the learning rate keeps its meaning. A sample's own cost row has the same scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from csada.methods.base import Loss


@dataclass(frozen=True)
class CostWeighted(Loss):
    static = True

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        # the mean over the classes, not over the batch: a sample's weight must not depend on its neighbours
        scale = float(self.costs.values.sum(1).mean()) or 1.0
        return (rows.sum(1) / scale * F.cross_entropy(logits, y, reduction="none")).mean()
