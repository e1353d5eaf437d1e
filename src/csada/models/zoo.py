"""A model by its name. A model of your own: `MODELS["mine"] = factory`, a function of (classes, ..., seed)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.models.plain import cnn, mlp, scores
from csada.models.residual import resnet

Factory = Callable[..., nn.Module]

MODELS: dict[str, Factory] = {
    "resnet34": partial(resnet, 34),
    "resnet9": partial(resnet, 9),
    "cnn": cnn,
    "mlp": mlp,
    "linear": partial(mlp, hidden=()),
    "scores": scores,
}
OWN = frozenset(MODELS)


def create(name: str, classes: int, *, seed: int = 0, **arguments: Any) -> nn.Module:
    """A new, untrained model: create("resnet34", 10, channels=1) or create("cnn", 10, channels=1, size=8)."""
    return call(_factory(name), name, {"classes": classes, "seed": seed, **arguments})


def arguments_for(name: str, shape: Sequence[int]) -> dict[str, Any]:
    """What `create` needs so that the model takes samples of this shape: (channels, height, width) or (features,)."""
    known: dict[str, Any] = {"features": math.prod(shape)}
    if len(shape) == 3:
        known |= {"channels": shape[0], "size": min(shape[1:]), "stem": "small" if max(shape[1:]) <= 64 else "imagenet"}
    accepted = inspect.signature(_factory(name)).parameters
    if "size" in accepted and len(shape) == 3 and shape[1] != shape[2]:
        raise InputError(f"{name} takes square images, got {shape[1]} x {shape[2]}; set the size to resize them to")
    return {key: value for key, value in known.items() if key in accepted}


def _factory(name: str) -> Factory:
    if name not in MODELS:
        raise InputError(f"unknown model {name!r}{did_you_mean(name, MODELS)}")
    return MODELS[name]


def call(factory: Factory, name: str, arguments: dict[str, Any]) -> nn.Module:
    """factory(**arguments), where arguments that do not fit are an InputError, not a TypeError from within."""
    signature = inspect.signature(factory)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(f"model {name}: {error}; it takes {', '.join(signature.parameters)}") from None
    return factory(**arguments)
