"""The small models: a multilayer perceptron for tables and the toy, and a CNN that learns digits in seconds on a CPU.

Both are nn.Sequential with named layers; the last one is `fc`, as in the ResNets. And no network at all, for scores that
another program has computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from csada.errors import InputError
from csada.models.initial import he_convolutions, seeded

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}


def mlp(
    features: int, classes: int, hidden: Sequence[int] = (50,), activation: str = "relu", *, seed: int = 0
) -> nn.Sequential:
    """Linear layers with ReLU or sigmoids between them; images are flattened. No hidden layer makes it a linear model."""
    if activation not in ACTIVATIONS:
        raise InputError(f"unknown activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    widths = [features, *hidden]
    if min(*widths, classes) < 1:
        raise InputError(f"an MLP needs positive widths, got features {features}, hidden {hidden}, classes {classes}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    with seeded(seed):
        for i, (width_in, width) in enumerate(zip(widths, hidden, strict=False), start=1):
            layers[f"linear{i}"] = nn.Linear(width_in, width)
            layers[f"{activation}{i}"] = ACTIVATIONS[activation]()
        layers["fc"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)


def cnn(
    channels: int,
    size: int,
    classes: int,
    width: int = 16,
    dropout: float = 0.0,
    batch_norm: bool = False,
    *,
    seed: int = 0,
) -> nn.Sequential:
    """3x3 convolutions of width, 2 width and 4 width, halving twice, for images of size x size (8 to 32 pixels)."""
    if min(channels, classes, width) < 1 or size < 4:
        raise InputError(
            "a CNN needs at least one channel, class and width, and images of at least 4 pixels a side; got "
            f"channels {channels}, classes {classes}, width {width}, size {size}"
        )
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1, got {dropout}")
    widths = (channels, width, 2 * width, 4 * width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with seeded(seed):
        for i in (1, 2, 3):
            layers[f"conv{i}"] = nn.Conv2d(widths[i - 1], widths[i], 3, padding=1, bias=not batch_norm)
            if batch_norm:
                layers[f"bn{i}"] = nn.BatchNorm2d(widths[i])
            layers[f"relu{i}"] = nn.ReLU()
            if i > 1:
                layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers["flatten"] = nn.Flatten()
        if dropout:
            layers["dropout"] = nn.Dropout(dropout)
        layers["fc"] = nn.Linear(widths[3] * (size // 4) ** 2, classes)
        model = nn.Sequential(layers)
        he_convolutions(model)
    return model


def scores(classes: int, floor: float | None = None, *, seed: int = 0) -> nn.Module:
    """Samples that are scores already: logits as they are, or with a `floor` probabilities, of which the logarithm is taken.

    floor: a probability below it, such as 0, counts as this much. Nothing is drawn and nothing learns.
    """
    if classes < 2 or (floor is not None and not 0 < floor < 1):
        raise InputError(
            f"scores of {classes} classes with floor {floor}; two classes and a floor from 0 to 1 are needed"
        )
    return Scored(floor)


class Scored(nn.Module):
    def __init__(self, floor: float | None) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, x: Tensor) -> Tensor:
        return x if self.floor is None else torch.log(x.double().clamp(min=self.floor)).float()  # rounded once
