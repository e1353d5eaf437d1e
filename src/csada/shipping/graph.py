"""A classifier as one module: stored samples in, decisions out. What `export` writes.

scores = model(normalised x) @ weights + bias, weights and biases holding temperature, scaling and priors. What
follows repeats `csada.decisions.Decided` in PyTorch, in float64 and with the same tolerance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from csada.data.augment import Normalization
from csada.decisions import Abstention, MinimumExpectedCost, mean_cost, same_up_to
from csada.sample import Sample


def decide_in_torch(
    logits: Tensor,
    weights: Tensor,
    bias: Tensor,
    costs: Tensor,
    strength: Any,
    unit: Any,
    limit: Any,
    added: Tensor | None,
) -> tuple[Tensor, ...]:
    """OUTPUTS of csada.shipping.onnx_file."""
    scores = logits.double() @ weights + bias
    p = torch.softmax(scores, 1)
    expected = p @ costs
    charged = 0.0 if added is None else p @ added
    criterion = strength * expected + (1 - strength) * unit * (1 - p) + charged
    tied = criterion <= same_up_to(criterion.amin(1, keepdim=True), unit)
    chosen = torch.where(tied, scores, -torch.inf).argmax(1, keepdim=True)
    cost = expected.gather(1, chosen)[:, 0]
    doubt = (expected + charged).gather(1, chosen)[:, 0]
    return chosen[:, 0], p.gather(1, chosen)[:, 0], cost, doubt > limit, p, expected, criterion


class Deployed(nn.Module):
    """[N, ...] as stored, uint8 or float32 -> what `decide_in_torch` says of them."""

    weights: Tensor
    bias: Tensor
    costs: Tensor
    added: Tensor | None
    factor: Tensor
    offset: Tensor
    fill: Tensor

    def __init__(
        self, model: nn.Module, sample: Sample, normalization: Normalization, rule: MinimumExpectedCost | Abstention
    ) -> None:
        super().__init__()
        self.model, self.sample = model, sample
        self.limit = rule.limit if isinstance(rule, Abstention) else math.inf
        rule = rule.rule if isinstance(rule, Abstention) else rule
        self.strength, self.unit = rule.strength, mean_cost(rule.costs)
        names = ("weights", "bias", "costs", "added")
        for name, values in zip(names, (*rule.affine, rule.costs.values, rule.multipliers), strict=True):
            self.register_buffer(name, None if values is None else torch.tensor(values, dtype=torch.float64))
        shape = (-1,) + (1,) * (len(sample.shape) - 1)
        mean, std = (np.reshape(values, shape) for values in (normalization.mean, normalization.std))
        for name, values in (("factor", 1 / (normalization.scale * std)), ("offset", -mean / std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))
        self.register_buffer("fill", torch.tensor(normalization.fill, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.float()
        if len(self.fill):
            x = torch.where(x.isnan(), self.fill, x)
        logits = self.model(torch.addcmul(self.offset, x, self.factor))
        numbers = self.strength, self.unit, self.limit
        return decide_in_torch(logits, self.weights, self.bias, self.costs, *numbers, self.added)
