"""A bundle as one module: stored samples in, decisions out. What `predict` runs and what `export` writes.

scores = scale * model(normalised x) + bias, the scales and biases holding temperature, vector scaling and priors. What
follows repeats `csada.decisions.Decided` in PyTorch, in float64 and with the same tolerance.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from csada.costs import CostMatrix
from csada.data.augment import Normalization
from csada.decisions import Abstention, MinimumExpectedCost, from_plain, mean_cost, same_up_to
from csada.errors import InputError
from csada.models import bundles

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


def decide_in_torch(
    logits: Tensor, scale: Tensor, bias: Tensor, costs: Tensor, strength: Any, unit: Any, limit: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """class [N], its probability [N], expected cost of each class [N, K], refer [N], criterion of each class [N, K]."""
    scores = logits.double() * scale + bias
    p = torch.softmax(scores, 1)
    expected = p @ costs
    criterion = strength * expected + (1 - strength) * unit * (1 - p)
    tied = criterion <= same_up_to(criterion.amin(1, keepdim=True), unit)
    chosen = torch.where(tied, scores, -torch.inf).argmax(1, keepdim=True)
    refer = expected.gather(1, chosen) > limit
    return chosen[:, 0], p.gather(1, chosen)[:, 0], expected, refer[:, 0], criterion


class Deployed(nn.Module):
    """[N, ...] as stored, uint8 or float32 -> what `decide_in_torch` says of them.

    Where the bundle has no decision rule, the most probable class is chosen, and every mistake costs 1.
    """

    scale: Tensor
    bias: Tensor
    costs: Tensor
    factor: Tensor
    offset: Tensor

    def __init__(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.config = config
        classes = len(config["classes"])
        rule = (
            MinimumExpectedCost(CostMatrix.uniform(classes), strength=0.0)
            if config["decision"] is None
            else from_plain(config["decision"], tuple(map(str, config["classes"])))
        )
        self.limit = rule.limit if isinstance(rule, Abstention) else math.inf
        rule = rule.rule if isinstance(rule, Abstention) else rule
        self.strength, self.unit = rule.strength, mean_cost(rule.costs)
        for name, values in zip(("scale", "bias", "costs"), (*rule.affine, rule.costs.values), strict=True):
            self.register_buffer(name, torch.tensor(values))
        normalization = Normalization(**(config["normalization"] or {}))
        shape = (-1,) + (1,) * (len(config["input"]["shape"]) - 1)
        mean, std = (np.reshape(values, shape) for values in (normalization.mean, normalization.std))
        for name, values in (("factor", 1 / (normalization.scale * std)), ("offset", -mean / std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        logits = self.model(torch.addcmul(self.offset, x.float(), self.factor))
        return decide_in_torch(logits, self.scale, self.bias, self.costs, self.strength, self.unit, self.limit)


def load(folder: str | os.PathLike[str]) -> Deployed:
    """The bundle in `folder`, ready to decide; in eval mode, on the CPU."""
    folder = Path(folder)
    config = bundles.read_config(folder)
    given = config["input"]
    if given is None:
        raise InputError(
            f"{folder} does not say what its inputs look like; save the model again with csada train or csada fit"
        )
    if not (isinstance(given, dict) and len(given.get("shape", ())) in (1, 3) and given.get("dtype") in DTYPES):
        raise InputError(
            f"{folder}: input is {given!r}; it needs a shape of one number or three, and dtype {' or '.join(DTYPES)}"
        )
    return Deployed(bundles.load(folder), config).eval().requires_grad_(False)
