"""A frozen backbone and a head on its features, as one network: samples in, logits out.

The head is trained on features that are computed once. What training changes in a sample, such as an attack, it then
changes in the features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from csada.errors import InputError
from csada.models.factories import check_trust, load
from csada.models.layers import freeze, head
from csada.models.modes import logits_of
from csada.models.zoo import create

NAME = "features"  # in MODELS
HEADS = ("linear", "mlp")


class Featured(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, top: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.backbone, self.top = freeze(backbone).eval(), top
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        factor, offset = (1 / self.std).float(), (-self.mean / self.std).float()  # as Normalization does
        found: Tensor = self.top(torch.addcmul(offset, logits_of(self.backbone(x)), factor))
        return found

    def train(self, mode: bool = True) -> Featured:
        super().train(mode)
        self.backbone.eval()
        return self


def without_head(model: nn.Module) -> tuple[nn.Module, int]:
    """A copy whose last Linear is gone, and the number of features that it gives."""
    body, name = copy.deepcopy(model), head(model)
    last = body.get_submodule(name)
    assert isinstance(last, nn.Linear)
    if not name:
        return nn.Identity(), last.in_features
    parent, _, child = name.rpartition(".")
    setattr(body.get_submodule(parent), child, nn.Identity())
    return body, last.in_features


def featured(
    classes: int, backbone: str, arguments: Mapping[str, Any], top: str, width: int, *, seed: int = 0
) -> nn.Module:
    """backbone: a name of MODELS, timm:NAME or torchvision:NAME, and its arguments. top: linear or mlp, on `width` features."""
    if top not in HEADS or backbone in (NAME, "scores"):
        raise InputError(f"no head {top!r} on features of {backbone!r}; known heads: {', '.join(HEADS)}")
    check_trust(backbone, False, "the backbone")
    body, found = without_head(load(backbone, 2, **dict(arguments)))
    if found != width:
        raise InputError(f"{backbone} gives {found} features, not {width}")
    return Featured(body, create(top, classes, seed=seed, features=width), [0.0] * width, [1.0] * width)
