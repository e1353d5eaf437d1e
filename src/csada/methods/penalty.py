"""The extreme objective, equation (3):  - sum_z c(y, z) log(1 - p_z), the mean over the samples.

With a single pair of cost 1 it is the paper's; with a whole matrix every pair counts by its cost. It asks only that the
expensive classes be unlikely, never that the truth be likely, so it makes sense on a trained model alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from csada.methods.base import Loss, log_one_minus_p


@dataclass(frozen=True)
class Penalty(Loss):
    static = True

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return -(rows * log_one_minus_p(logits)).sum(1).mean()
