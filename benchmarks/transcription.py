"""Algorithms 1 and 3 as one would first write them in PyTorch: the baseline that csada's speed is compared with.

The attack is batched, in single precision, with masks for the samples that have finished and without waiting for the
device. It asks for gradients of the perturbation alone, but judges every step by a forward pass of its own: 2K + 1 in all.
The M tasks of a batch are drawn as csada's `task_mean` draws them, so that both do the same work. Batch norm, where there
is any, is frozen by the caller.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def attack(
    model: nn.Module, x: Tensor, y: Tensor, target: Tensor, epsilon: float, step_size: float, steps: int
) -> Tensor:
    """Algorithm 1: the perturbations."""
    delta = torch.zeros_like(x)
    with torch.no_grad():
        active = model(x).argmax(1) == y
    for _ in range(steps):
        leaf = delta.clone().requires_grad_()
        log_p = F.log_softmax(model(x + leaf), 1).gather(1, target[:, None]).sum()
        (gradient,) = torch.autograd.grad(log_p, leaf)
        new = (delta + step_size * gradient).clamp(-epsilon, epsilon)
        with torch.no_grad():
            predicted = model(x + new).argmax(1)
        accepted = active & ((predicted == y) | (predicted == target))
        delta = torch.where(accepted.view(-1, *[1] * (x.ndim - 1)), new, delta)
        active = active & (predicted == y)
    return delta


def epoch(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    weights: Tensor,
    tasks: int,
    weight: float = 2.0,
    epsilon: float = 1.0,
    step_size: float = 5e-4,
    steps: int = 10,
) -> Tensor:
    """Algorithm 3, with M tasks per batch drawn by `weights` [C, C] in place of one pair; the last loss."""
    loss = torch.zeros(())
    for x, y in batches:
        pair = torch.multinomial(weights[y].flatten(), tasks, replacement=True)
        sample, target = pair // len(weights), pair % len(weights)
        delta = attack(model, x[sample], y[sample], target, epsilon, step_size, steps)
        optimizer.zero_grad()
        natural = F.cross_entropy(model(x), y)
        adversarial = F.cross_entropy(model(x[sample] + delta), y[sample])
        loss = natural + weight * adversarial
        loss.backward()
        optimizer.step()
    return loss.detach()
