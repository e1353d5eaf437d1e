"""The last layer of any classifier, a new one in its place, and which layers learn. All change the model itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.models.initial import seeded


def head(model: nn.Module) -> str:
    """The name of the last Linear, the one that makes the logits ("fc" in csada's own models)."""
    names: list[str] = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        raise InputError(f"{type(model).__name__} has no Linear layer to serve as its head")
    return names[-1]


def replace_head(model: nn.Module, classes: int, seed: int = 0) -> nn.Module:
    """The model with a newly drawn last layer of `classes` outputs, where the old one lay."""
    if classes < 1:
        raise InputError(f"a head needs at least one class, got {classes}")
    name = head(model)
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    with seeded(seed):
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None, device="cpu")
    new = new.to(old.weight.device, old.weight.dtype).train(old.training)
    if not name:
        return new  # the model is nothing but its head
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)
    return model


def freeze(model: nn.Module, except_: str | Sequence[str] = ()) -> nn.Module:
    """No parameter learns but those of the layers named in `except_`: freeze(model, except_=head(model)).

    Batch norms keep updating their running statistics in train mode; that is a mode, not a gradient.
    """
    kept = (except_,) if isinstance(except_, str) else tuple(except_)
    known = dict(model.named_modules())
    for name in kept:
        if name not in known:
            raise InputError(f"{type(model).__name__} has no layer {name!r}{did_you_mean(name, known)}")
    model.requires_grad_(False)
    for name in kept:
        known[name].requires_grad_(True)
    return model


def unfreeze(model: nn.Module) -> nn.Module:
    """Every parameter learns."""
    return model.requires_grad_(True)
