"""Adversarial training without targets, the control that tells what aiming at costs adds.

    -log p_y(x)  +  lambda * -log p_y(x + delta),     delta maximising the cross-entropy of the truth within the ball

by K projected ascent steps on every sample, signed by default; steps=1 with step_size=epsilon is FGSM. Costs play no
part. The settings are CSADA's, so that the two can be run alike; Algorithm 1's rejection and early stop have no meaning
without a target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from csada.attacks import PROJECTIONS, Ascent, Bounds
from csada.errors import InputError
from csada.methods.base import Loss, scores
from csada.models.modes import borrowed_eval


@dataclass(frozen=True)
class PGDTraining(Loss):
    """`weight` is lambda. The defaults suit inputs of unit variance: epsilon is about 8/255 of CIFAR's pixel range."""

    weight: float = 1.0
    epsilon: float = 0.125
    step_size: float = 0.03
    steps: int = 10
    norm: str = "linf"
    step: str = "sign"
    bounds: Bounds | None = None
    random_start: bool = False
    static = True

    def __post_init__(self) -> None:
        Ascent.of(self)  # refuses bad settings
        if not 0 <= self.weight < float("inf"):
            raise InputError(f"weight (lambda) must be zero or more, got {self.weight}")

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        adversarial = self.attacked(model, x, y, generator)
        # two passes: batch norm in training mode must not mix the statistics of the two kinds
        natural, penalty = (F.cross_entropy(scores(model, points), y) for points in (x, adversarial))
        return natural + self.weight * penalty

    def attacked(self, model: nn.Module, x: Tensor, y: Tensor, generator: Generator | None = None) -> Tensor:
        """K forward and K backward passes with the model as it is now; no parameter's gradient is touched."""
        how, x = Ascent.of(self), x.detach()
        delta = torch.zeros_like(x)
        if self.random_start:
            if generator is None:
                raise InputError("random_start draws at random and needs a generator; pass generator=")
            delta.uniform_(-self.epsilon, self.epsilon, generator=generator)
            delta = PROJECTIONS[self.norm](delta, self.epsilon)
        with borrowed_eval(model):
            for _ in range(self.steps):
                point = how.placed(x, delta).requires_grad_()
                with torch.enable_grad():
                    # the sum over samples, not the mean: a sample's gradient must not depend on its batch
                    loss = F.cross_entropy(scores(model, point), y, reduction="sum")
                (gradient,) = torch.autograd.grad(loss, point)
                # from where the sample really is: what the bounds cut off is no part of delta
                delta = how.moved(point.detach() - x, gradient)
        return how.placed(x, delta)
