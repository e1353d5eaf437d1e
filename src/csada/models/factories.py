"""A network from what a file, a flag or a caller says of it: a name of MODELS, or `package.module:factory`.

A factory is any function or class that gives an nn.Module; it is called with `classes` and `seed` where it takes them. What a
stranger's file names is called only where the user says so: it is code that runs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.models.initial import seeded
from csada.models.weights import check_fit, fill
from csada.models.zoo import MODELS, OWN, Factory, call, create


def load(spec: str, classes: int | None = None, *, seed: int = 0, **arguments: Any) -> nn.Module:
    """A new model from a name of MODELS or from `package.module:factory`; Classifier.load reads a trained one."""
    if spec in MODELS:
        if classes is None:
            raise InputError(f"say for how many classes: load({spec!r}, classes=10)")
        return create(spec, classes, seed=seed, **arguments)
    if ":" in spec:
        return _from_factory(spec, classes, seed, arguments)
    raise InputError(f"{spec!r} is neither a model nor package.module:factory{did_you_mean(spec, MODELS)}")


def rebuild(
    architecture: str, classes: int, arguments: Mapping[str, Any], state: Mapping[str, Tensor], where: str, trust: bool
) -> nn.Module:
    """The network that a file describes, with the weights of `state`, in eval mode."""
    if architecture in OWN:  # shapes first: what does not fit must not fill the memory
        check_fit(sketch(architecture, classes, arguments, where, trust), state, where)
    model = _build(architecture, classes, arguments, where, trust)
    fill(model, state, where)
    return model.eval()


def sketch(architecture: str, classes: int, arguments: Mapping[str, Any], where: str, trust: bool) -> nn.Module:
    """The network as described; our own take no memory."""
    with torch.device("meta") if architecture in OWN else nullcontext():
        return _build(architecture, classes, arguments, where, trust)


def _build(architecture: str, classes: int, arguments: Mapping[str, Any], where: str, trust: bool) -> nn.Module:
    if architecture in MODELS:
        try:
            return create(architecture, classes, **arguments)
        except (TypeError, ValueError, RuntimeError, MemoryError, OverflowError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{where}: arguments {dict(arguments)} make no {architecture}: {reason}") from None
    if ":" not in architecture:
        raise InputError(f"{where}: unknown architecture {architecture!r}{did_you_mean(architecture, MODELS)}")
    if not trust:
        raise InputError(
            f"{where} names code to run, {architecture!r}; if you trust its author, load it with trust=True (--trust)"
        )
    return _from_factory(architecture, classes, 0, dict(arguments))


def _from_factory(spec: str, classes: int | None, seed: int, arguments: dict[str, Any]) -> nn.Module:
    factory = _import(spec)
    offered = {"classes": classes, "seed": seed}
    accepted = inspect.signature(factory).parameters
    offered = {key: value for key, value in offered.items() if key in accepted and value is not None}
    with seeded(seed):
        model = call(factory, spec, {**offered, **arguments})
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} gave a {type(model).__name__}, not an nn.Module")
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if linear and classes is not None and linear[-1].out_features != classes:
        outputs = linear[-1].out_features
        raise InputError(f"{spec} gave {outputs} classes, not {classes}; let it take `classes`, or use replace_head")
    return model


def _import(spec: str) -> Factory:
    module, _, name = spec.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        inspect.signature(found)  # nothing without one can be called with the right arguments
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import {spec!r}: {error}; is its folder on PYTHONPATH?") from None
    except (AttributeError, ValueError, TypeError) as error:
        raise InputError(f"cannot import {spec!r}: {error}; the form is package.module:factory") from None
    factory: Factory = found
    return factory
