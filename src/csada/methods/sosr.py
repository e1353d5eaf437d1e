"""Smooth one-sided regression (CNN_SOSR; Chung, Lin & Yang, 2015): the network predicts what each class would cost.

    sum_k log(1 + exp(s_k (r_k(x) - c(y, k)))),     s_k = +1 at k = y, -1 elsewhere,     the mean over the samples

so r should not exceed the cost of the truth (zero), nor fall below the cost of any other class. The estimates r are a
linear layer on the logits, trained with the network; the prediction is the class of the smallest. The prepared model
returns -r, so that its argmax is that class and it serves wherever a classifier does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.methods.base import Loss, first_parameter, linear
from csada.models.modes import logits_of


class CostRegressor(nn.Module):
    """A network with a linear layer of cost estimates r on top. Returns -r: the largest score is the smallest cost."""

    static = True

    def __init__(self, net: nn.Module, estimates: nn.Linear) -> None:
        super().__init__()
        self.net, self.estimates = net, estimates

    def forward(self, x: Tensor) -> Tensor:
        r: Tensor = self.estimates(logits_of(self.net(x)))
        return -r


@dataclass(frozen=True)
class SOSR(Loss):
    static = True

    def prepare(self, model: nn.Module, data: Any, **_: Any) -> tuple[nn.Module, Any]:
        return with_estimates(model, len(self.costs)), data

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return sosr_loss(-logits, y, rows)


def with_estimates(model: nn.Module, classes: int) -> CostRegressor:
    """The layer starts as r = -logits: the prepared model predicts what the model it was given predicts.

    A random layer would throw away the ranking that a pre-trained network has learnt. Nothing is drawn at random, and a
    model that has the layer keeps it as it is.
    """
    if isinstance(model, CostRegressor):
        return model
    return CostRegressor(model, linear(-torch.eye(classes), first_parameter(model)))


def sosr_loss(r: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """The loss of cost estimates r [N, K], given the truths and the cost rows [N, K]."""
    sign = torch.full_like(rows, -1.0).scatter(1, y[:, None], 1.0)
    # softplus turns linear at its threshold; 20, the default, is early for double precision
    return F.softplus(sign * (r - rows), threshold=50.0).sum(1).mean()
