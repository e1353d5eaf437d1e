"""Distillation (Hinton et al., 2015) on mixed samples: one network learns what several say together.

    T^2 * - sum_k q_k log p_k(x),     q = softmax(teacher(x) / T),     p = softmax(student(x) / T)

x is a mixture a x_i + (1 - a) x_j as in mixup, and no label is used. On the training samples as they are, an interpolating
teacher says little more than the labels do; between samples it says what it knows. It takes a network, so it has no name in
METHODS: `fit(student, data, Distillation(costs, Teacher(classifier.network)))`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from csada.costs import CostMatrix
from csada.data.splits import hashed
from csada.errors import InputError
from csada.methods.base import first_parameter, scores
from csada.methods.mixup import check_alpha, coefficients, mixed, permutation


class Teacher(nn.Module):
    """A frozen copy of a network in evaluation mode, such as `Classifier.network`; forward gives its probabilities."""

    static = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    def forward(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        return (scores(self.network, x) / temperature).softmax(1)

    def extra_repr(self) -> str:
        """The weights' hash: a checkpoint belongs to its teacher, and knows a method as it prints."""
        values = (v.cpu().contiguous().flatten().view(torch.uint8).numpy() for v in self.state_dict().values())
        return f"weights={hashed([hashed(values)]).hex()}"


@dataclass(frozen=True)
class Distillation:
    """Give `fit` the student to start from: a member of the teacher, say."""

    costs: CostMatrix
    teacher: Teacher
    temperature: float = 1.0
    alpha: float = 1.0
    static = True

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"temperature must be positive, got {self.temperature}")

    def prepare(self, model: nn.Module, data: Any, **_: Any) -> tuple[nn.Module, Any]:
        self.teacher.to(first_parameter(model).device)
        return model, data

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        x = mixed(x, permutation(y, generator), coefficients(self.alpha, len(y), y.device, generator))
        with torch.no_grad():
            target = self.teacher(x, self.temperature)
        student = (scores(model, x) / self.temperature).log_softmax(1)
        loss: Tensor = -(target * student).sum(1).mean() * self.temperature**2
        return loss
