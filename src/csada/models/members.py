"""Several networks, and several views of a sample, as one network:

    scores(x) = log  sum_mv  w_m * softmax(f_m(view_v(x)) / T_m) / sum_mv w_m

The mean is taken over probabilities, each member's at its own temperature, and in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from csada.data.augment import VIEWS, Augmentation, View, allowed_views
from csada.errors import InputError
from csada.models.modes import borrowed_eval, device_of, dtype_of, logits_of
from csada.sample import Sample


@dataclass(frozen=True)
class Member:
    """A network and how it is built again: a name of csada.models.MODELS or `package.module:factory`, and its arguments.

    temperature: divides its scores, so that its probabilities are calibrated. weight: its share of the mean; a member that
    was chosen twice counts twice.
    """

    model: nn.Module
    architecture: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self.temperature, self.weight)

    @property
    def name(self) -> str:
        return self.architecture or type(self.model).__name__


def check_numbers(temperature: float, weight: float) -> None:
    for name, value in (("temperature", temperature), ("weight", weight)):
        if not 0 < value < math.inf:
            raise InputError(f"a member's {name} is {value}; a number above zero is needed")


class Ensemble(nn.Module):
    """Members and views as one network: normalised samples in, log of the mean probabilities out."""

    static = True  # as far as its members are

    def __init__(self, members: Sequence[Member], views: Sequence[View]) -> None:
        super().__init__()
        self.models = nn.ModuleList(member.model for member in members)
        self.numbers, self.views = [(member.temperature, member.weight) for member in members], tuple(views)

    def forward(self, x: Tensor) -> Tensor:
        total = sum(weight for _, weight in self.numbers for _ in self.views)
        logs = [
            torch.log_softmax(logits_of(model(VIEWS[view](x).to(dtype_of(model) or x.dtype))).double() / temperature, 1)
            + math.log(weight / total)
            for model, (temperature, weight) in zip(self.models, self.numbers, strict=True)
            for view in self.views
        ]
        return torch.logsumexp(torch.stack(logs), 0).float()


def as_network(members: Sequence[Member], views: Sequence[View]) -> nn.Module:
    """One network for them all; a single one as it is stays itself."""
    if len(members) == 1 and members[0].temperature == 1 and tuple(views) == ("identity",):
        return members[0].model
    return Ensemble(members, views)


def check_members(members: Sequence[Member], sample: Sample, classes: int) -> None:
    """Every member scores that many classes of such a sample; tried with one of zeros."""
    for number, member in enumerate(members, 1):
        x = torch.zeros(1, *sample.shape, dtype=dtype_of(member.model), device=device_of(members[0].model))
        try:
            with borrowed_eval(member.model), torch.inference_mode():
                logits = logits_of(member.model(x))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"member {number} does not take samples of {sample}: {reason}") from None
        if (outputs := logits.shape[-1]) != classes:
            raise InputError(f"member {number} scores {outputs} classes; {classes} are needed")


def check_views(views: Sequence[str], allowed: Sequence[View], sample: Sample, what: str) -> None:
    """All known, all different, possible, and none that might change a label; `what` names the samples."""
    if not views or len(set(views)) < len(views) or set(views) - set(VIEWS):
        given = ", ".join(views) or "none"
        raise InputError(f"views are {given}; one or more are needed, all different; known: {', '.join(VIEWS)}")
    possible = allowed_views(Augmentation(flip=True, right_angles=True), sample.shape)
    if refused := [view for view in (*views, *allowed) if view not in possible]:
        raise InputError(f"samples of {sample} have no view {refused[0]}; possible: {', '.join(possible)}")
    if refused := [view for view in views if view not in ("identity", *allowed)]:
        done = "mirrored" if refused[0] == "mirror" else "turned by right angles"
        raise InputError(
            f"{what} were not {done} in training: a sample that is {done} may be of another class; "
            f"allowed views: {', '.join(allowed)}"
        )
