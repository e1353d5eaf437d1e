"""Expected cost, equation (2):  sum_z c(y, z) p_z, the mean over the samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from csada.methods.base import Loss


@dataclass(frozen=True)
class ExpectedCost(Loss):
    static = True

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return (rows * logits.softmax(1)).sum(1).mean()
