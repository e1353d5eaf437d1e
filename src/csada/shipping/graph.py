"""A bundle as one module: stored samples in, decisions out. What `predict` runs and what `export` writes.

p = softmax(scale * model(normalised x) + bias), the scales and biases holding temperature, vector scaling and priors;
the class is the one of least expected cost, by the rule of `csada.decisions`, in float32.
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
from csada.decisions import Abstention, MinimumExpectedCost, from_plain
from csada.errors import InputError
from csada.models import bundles

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}
TIE = 1e-6  # relative: closer scores are the same number, added up in another order


class Deployed(nn.Module):
    """[N, ...] as stored, uint8 or float32 -> class [N], its probability [N], expected cost of each class [N, K], refer [N].

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
        self.referral_cost = rule.referral_cost if isinstance(rule, Abstention) else math.inf
        rule = rule.rule if isinstance(rule, Abstention) else rule
        scale, bias = (np.ones(classes), np.zeros(classes)) if rule.vector is None else map(np.array, rule.vector)
        if rule.priors is not None:
            with np.errstate(divide="ignore"):  # a class that does not occur: log 0 = -inf is right
                bias = bias + np.log(rule.priors)
        costs = rule.costs.values
        self.strength = min(rule.strength, 1 - 1e-12)  # a trace of uniform costs, as in csada.decisions
        self.uniform = (1 - self.strength) * (float((costs / (costs.size - classes)).sum()) or 1.0)
        normalization = Normalization(**(config["normalization"] or {}))
        shape = (-1,) + (1,) * (len(config["input"]["shape"]) - 1)
        mean, std = (np.reshape(values, shape) for values in (normalization.mean, normalization.std))
        for name, values in {
            "scale": scale / rule.temperature,
            "bias": bias,
            "costs": costs,
            "factor": 1 / (normalization.scale * std),
            "offset": -mean / std,
        }.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))

    def judge(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, K] each: probabilities, expected costs, and the scores of which the least decides."""
        logits = self.model(torch.addcmul(self.offset, x.float(), self.factor))
        p = torch.softmax(logits * self.scale + self.bias, 1)
        expected = p @ self.costs
        return p, expected, self.strength * expected - self.uniform * p

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p, expected, score = self.judge(x)
        # Rounding swallows the trace of uniform costs where the others are not zero: the likelier of equals is looked up.
        least = score.amin(1, keepdim=True)
        chosen = torch.where(score <= least + TIE * least.abs(), p, -1.0).argmax(1, keepdim=True)
        refer = expected.gather(1, chosen) > self.referral_cost
        return chosen[:, 0], p.gather(1, chosen)[:, 0], expected, refer[:, 0]


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
