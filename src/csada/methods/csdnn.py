"""CSDNN (Chung, Lin & Yang, 2015): a sigmoid network pre-trained layer by layer as cost-aware auto-encoders.

Each layer h = sigmoid(W x + b) first learns alone, those below fixed, to give back its input and to estimate the costs:

    (1 - beta) * 1/2 |x - (W' h + b')|^2  +  beta * SOSR(V h + v)

(W' is W transposed); then the whole network is fine-tuned with the SOSR loss. We differ from the authors in three
points: squared reconstruction error, because normalised inputs leave [0, 1]; no corruption of the inputs; the final
cost estimates start as the last layer's V.

The network is fully connected and its own: of the model that is handed in, only the device is used. It returns the
estimates negated, so that the largest score is the smallest cost, and it is saved as an `mlp` with activation "sigmoid".
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from csada.data.batches import batches
from csada.errors import InputError
from csada.methods.base import Loss, Trainer, cost_rows, drawn_linear, first_parameter, own_generator
from csada.methods.sosr import sosr_loss
from csada.models.initial import seeded

BATCH_SIZE = 128
SIGMOID_GAIN = 4.0  # a sigmoid's slope is at most 1/4


class SigmoidNet(nn.Sequential):
    """Flatten, then pairs of a linear layer and a sigmoid, then the negated estimates; named as in `models.mlp`."""

    static = True


@dataclass(frozen=True)
class CSDNN(Loss):
    """hidden: the widths of the sigmoid layers. beta: 0 pre-trains plain auto-encoders, 1 cost estimators alone."""

    hidden: tuple[int, ...] = (64, 64)
    beta: float = 0.25
    pretrain_epochs: int = 10
    pretrain_lr: float = 1e-2
    static = True

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden must name at least one width, all positive, got {self.hidden}")
        if not 0 <= self.beta <= 1:
            raise InputError(f"beta must lie between 0 and 1, got {self.beta}")

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: Generator | None = None
    ) -> tuple[nn.Module, Any]:
        if isinstance(model, SigmoidNet):
            return model, data
        like = first_parameter(model)
        rng = own_generator(generator)
        source = batches(data, BATCH_SIZE, like.device, shuffle=True, dtype=like.dtype)
        order = own_generator(rng, like.device)
        with seeded(order.initial_seed()), torch.enable_grad():  # a DataLoader draws from the global state
            width = next(source.epoch()).x[0].numel()
            net = SigmoidNet(OrderedDict(flatten=nn.Flatten()))
            for i, hidden in enumerate(self.hidden, start=1):
                layer = drawn_linear(width, hidden, rng, like, SIGMOID_GAIN)
                estimates = drawn_linear(hidden, len(self.costs), rng, like)
                back = torch.zeros(width, device=like.device, dtype=like.dtype, requires_grad=True)
                optimizer = torch.optim.Adam([*layer.parameters(), back, *estimates.parameters()], lr=self.pretrain_lr)
                for _ in range(self.pretrain_epochs):
                    for x, y, costs in source.epoch(order):
                        optimizer.zero_grad()
                        below = net(x).detach()
                        rows = cost_rows(self.costs, y, costs, like.dtype)
                        loss = self.layer_loss(below, y, rows, layer, back, estimates)
                        loss.backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
                net.add_module(f"linear{i}", layer)
                net.add_module(f"sigmoid{i}", nn.Sigmoid())
                width = hidden
        with torch.no_grad():
            for values in estimates.parameters():
                values.neg_()
        net.add_module("fc", estimates)
        return net, data

    def layer_loss(
        self, x: Tensor, y: Tensor, rows: Tensor, layer: nn.Linear, back: Tensor, estimates: nn.Linear
    ) -> Tensor:
        """What one layer learns to lower on its own; x is what the layers below make of the samples."""
        h = layer(x).sigmoid()
        reconstruction = (x - F.linear(h, layer.weight.t(), back)).square().sum(1).mean() / 2
        return (1 - self.beta) * reconstruction + self.beta * sosr_loss(estimates(h), y, rows)

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return sosr_loss(-logits, y, rows)
