"""AuxCST (Chung, Yang & Lin, 2020): every block of the network estimates the costs, not only its end.

    SOSR(r(x))  +  alpha sum_b SOSR(r_b(x))

r is SOSR's layer on the logits, and r_b a linear layer on block b's activations, averaged over positions where they
have any. The blocks' estimators serve training alone: the prepared model returns -r, and no hook stays on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from csada.costs import CostMatrix
from csada.data.batches import batches
from csada.errors import InputError
from csada.methods.base import Trainer, at_least_single, cost_rows, drawn_linear, first_parameter, own_generator, scores
from csada.methods.sosr import CostRegressor, sosr_loss, with_estimates
from csada.models.initial import seeded
from csada.models.modes import borrowed_eval


class AuxiliaryCosts(nn.Module):
    """A cost regressor, and beside it one linear cost estimator per block."""

    static = True

    def __init__(self, model: CostRegressor, blocks: Sequence[str], heads: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.model, self.blocks, self.heads = model, tuple(blocks), nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        negated_costs: Tensor = self.model(x)
        return negated_costs


@dataclass(frozen=True)
class AuxCST:
    """blocks: names of the modules to watch (as `named_modules` gives them); none: those of `find_blocks`."""

    costs: CostMatrix
    alpha: float = 0.1
    blocks: tuple[str, ...] = ()
    static = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise InputError(f"alpha must be zero or more, got {self.alpha}")

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: Generator | None = None
    ) -> tuple[nn.Module, Any]:
        if isinstance(model, AuxiliaryCosts):
            return model, data
        regressor = with_estimates(model, len(self.costs))
        blocks = tuple(self.blocks) or find_blocks(regressor.net)
        like, rng = first_parameter(model), own_generator(generator)
        with seeded(0):  # a DataLoader draws from the global state, even in order
            x = next(batches(data, 2, like.device, dtype=like.dtype).epoch()).x
        with torch.no_grad(), borrowed_eval(regressor), watched(regressor.net, blocks) as seen:
            regressor(x)
        heads = [drawn_linear(seen[name].shape[1], len(self.costs), rng, like) for name in blocks]
        return AuxiliaryCosts(regressor, blocks, heads), data

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        # the wrapper may itself be wrapped, for several devices or for mixed precision
        prepared = next((m for m in model.modules() if isinstance(m, AuxiliaryCosts)), None)
        if prepared is None:
            raise InputError("auxcst needs its estimators: call prepare(model, data) first and train what it returns")
        with watched(prepared.model.net, prepared.blocks) as seen:
            final = scores(model, x)
        rows = cost_rows(self.costs, y, costs, final.dtype)
        loss = sosr_loss(-final, y, rows)
        for name, head in zip(prepared.blocks, prepared.heads, strict=True):
            estimates = at_least_single(head(seen[name].to(rows.dtype)))
            loss = loss + self.alpha * sosr_loss(estimates, y, rows)
        return loss


def find_blocks(net: nn.Module) -> tuple[str, ...]:
    """The stages layer1, layer2, ... of a ResNet; else the parts of the network that learn, but the last.

    In an nn.Sequential a part ends just before the next one that learns, so that its normalisation and its activation
    function belong to it.
    """
    prefix = ""
    while len(children := list(net.named_children())) == 1:  # a network inside a shell
        prefix, net = f"{prefix}{children[0][0]}.", children[0][1]
    learning = [i for i, (_, child) in enumerate(children) if any(p.ndim > 1 for p in child.parameters())]
    stages = [name for name, _ in children if name.startswith("layer") and name[5:].isdigit()]
    ends = [i - 1 for i in learning[1:]] if isinstance(net, nn.Sequential) else learning[:-1]
    if not (blocks := stages or [children[i][0] for i in ends]):
        raise InputError(f"found no hidden blocks in {type(net).__name__}; name them: blocks=('...',)")
    return tuple(prefix + name for name in blocks)


@contextmanager
def watched(net: nn.Module, blocks: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """What the named blocks gave in the last forward pass, [N, width] each."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise InputError(f"block {name!r} returns {type(output).__name__}; name blocks that return one tensor")
        # a copy where nothing is averaged: an activation in place would change it under the estimator's gradient
        seen[name] = output.flatten(2).mean(2) if output.ndim > 2 else output.clone()

    modules = dict(net.named_modules())
    if unknown := [name for name in blocks if name not in modules]:
        raise InputError(f"the network has no block {unknown[0]!r}; known: {', '.join(list(modules)[1:21])}")
    handles = [modules[name].register_forward_hook(partial(keep, name)) for name in blocks]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
