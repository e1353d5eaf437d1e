"""Adjusted Penalty (AP):  -log p_y  -  alpha sum_z c(y, z) log(1 - p_z), the mean over the samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from csada.errors import InputError
from csada.methods.base import Loss, log_one_minus_p


@dataclass(frozen=True)
class AdjustedPenalty(Loss):
    alpha: float = 5.0
    static = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise InputError(f"alpha must be finite and zero or more, got {self.alpha}")

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits, y) - self.alpha * (rows * log_one_minus_p(logits)).sum(1).mean()
