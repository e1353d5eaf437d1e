"""Distillation (Hinton et al., 2015) on mixed samples: one network learns what several say together.

    T^2 * - sum_k q_k log p_k(x),     q = mean over teachers and views of softmax(logits(x) / T),     p = softmax(student / T)

x is a mixture a x_i + (1 - a) x_j as in mixup, and no label is used. On the training samples as they are, interpolating
teachers say little more than the labels do; between samples they say what they know. It takes networks, so it has no name in
METHODS: `fit(student, data, Distillation(costs, Teachers([...])))`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from csada.costs import CostMatrix
from csada.data.splits import hashed
from csada.errors import InputError
from csada.methods.base import first_parameter, scores
from csada.methods.mixup import check_alpha, coefficients, mixed, permutation

View = Literal["identity", "mirror"]


class Teachers(nn.Module):
    """Frozen copies of networks in evaluation mode; forward gives the mean of their probabilities over all views."""

    static = True

    def __init__(self, members: Sequence[nn.Module], views: Sequence[View] = ("identity",)) -> None:
        super().__init__()
        if not members or not views or not set(views) <= {"identity", "mirror"}:
            raise InputError(f"{len(members)} teachers and views {', '.join(views)}; known views: identity, mirror")
        self.members = nn.ModuleList(copy.deepcopy(member) for member in members).eval().requires_grad_(False)
        self.views = tuple(views)

    def forward(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        seen = torch.cat([x.flip(-1) if view == "mirror" else x for view in self.views])
        each = [(scores(member, seen) / temperature).softmax(1) for member in self.members]
        return torch.stack(each).mean(0).reshape(len(self.views), len(x), -1).mean(0)

    def extra_repr(self) -> str:
        """With the weights' hash: a checkpoint belongs to its teachers, and knows a method as it prints."""
        values = (v.cpu().contiguous().flatten().view(torch.uint8).numpy() for v in self.state_dict().values())
        return f"views={self.views}, weights={hashed([hashed(values)]).hex()}"


@dataclass(frozen=True)
class Distillation:
    """Give `fit` the student to start from: one of the teachers, say."""

    costs: CostMatrix
    teachers: Teachers
    temperature: float = 1.0
    alpha: float = 1.0
    static = True

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"temperature must be positive, got {self.temperature}")

    def prepare(self, model: nn.Module, data: Any, **_: Any) -> tuple[nn.Module, Any]:
        self.teachers.to(first_parameter(model).device)
        return model, data

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        x = mixed(x, permutation(y, generator), coefficients(self.alpha, len(y), y.device, generator))
        with torch.no_grad():
            target = self.teachers(x, self.temperature)
        student = (scores(model, x) / self.temperature).log_softmax(1)
        loss: Tensor = -(target * student).sum(1).mean() * self.temperature**2
        return loss
