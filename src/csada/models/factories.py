"""A network from what a file, a flag or a caller says of it: a name of MODELS, `timm:NAME`, `torchvision:NAME`, or
`package.module:factory`.

A factory is any function or class that gives an nn.Module; it is called with `classes`, `seed`, `channels`, `size` and
`features` where it takes them. What a stranger's file names is called only where the user says so: it is code that runs. Of
timm and torchvision only networks by their plain name are built, without weights, so these need no trust.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.models.initial import seeded
from csada.models.weights import check_fit, fill
from csada.models.zoo import MODELS, OWN, Factory, call, create
from csada.models.zoo import arguments_for as arguments_of_own

LAYERS = 1000  # in a list of a network of ours
LIBRARIES = {"timm": ("in_chans",), "torchvision": ()}  # and the arguments of a network that may be given


def load(spec: str, classes: int | None = None, *, seed: int = 0, **arguments: Any) -> nn.Module:
    """A new model from a name of MODELS or from `package.module:factory`; Classifier.load reads a trained one."""
    if spec in MODELS:
        if classes is None:
            raise InputError(f"say for how many classes: load({spec!r}, classes=10)")
        return create(spec, classes, seed=seed, **arguments)
    if ":" in spec:
        return _from_elsewhere(spec, classes, seed, arguments)
    raise InputError(f"{spec!r} is neither a model nor package.module:factory{did_you_mean(spec, MODELS)}")


def rebuild(
    architecture: str, classes: int, arguments: Mapping[str, Any], state: Mapping[str, Tensor], where: str, trust: bool
) -> nn.Module:
    """The network that a file describes, with the weights of `state`, in eval mode."""
    model = sketch(architecture, classes, arguments, where, trust)
    check_fit(model, state, where)  # shapes first: what does not fit must not fill the memory
    if any(each.is_meta for each in model.state_dict().values()):
        model = _build(architecture, classes, arguments, where, trust)
    fill(model, state, where)
    return model.eval()


def sketch(architecture: str, classes: int, arguments: Mapping[str, Any], where: str, trust: bool) -> nn.Module:
    """The network as described; our own take no memory, and a library's none where it can be built so."""
    library = architecture.partition(":")[0] in LIBRARIES
    try:
        with torch.device("meta") if library or architecture in OWN else nullcontext():
            return _build(architecture, classes, arguments, where, trust)
    except InputError:
        if not library:
            raise
    return _build(architecture, classes, arguments, where, trust)  # it looks at its own weights while it is built


def _build(architecture: str, classes: int, arguments: Mapping[str, Any], where: str, trust: bool) -> nn.Module:
    if architecture not in MODELS and ":" not in architecture:
        raise InputError(f"{where}: unknown architecture {architecture!r}{did_you_mean(architecture, MODELS)}")
    check_trust(architecture, trust, where)
    library = architecture.partition(":")[0] in LIBRARIES
    if architecture not in MODELS and not library:
        return _from_elsewhere(architecture, classes, 0, dict(arguments))
    try:
        if long := [name for name, each in arguments.items() if isinstance(each, list) and len(each) > LAYERS]:
            raise InputError(f"{long[0]} has more than {LAYERS} values")
        return load(architecture, classes, **arguments)
    except (TypeError, ValueError, RuntimeError, MemoryError, OverflowError) as error:
        reason, given = " ".join(str(error).split())[:200], f"{dict(arguments)!r:.200}"
        raise InputError(f"{where}: arguments {given} make no {architecture}: {reason}") from None


def runs_code(spec: str) -> bool:
    """Whether the network is made by a factory of somebody's own."""
    return ":" in spec and spec.partition(":")[0] not in LIBRARIES


def check_trust(spec: str, trust: bool, where: str) -> None:
    """Refuses what would run a stranger's code, unless the user allows it."""
    if runs_code(spec) and not trust:
        raise InputError(
            f"{where} names code to run, {spec!r}; if you trust its author, load it with trust=True (--trust)"
        )


def arguments_for(spec: str, shape: Sequence[int]) -> dict[str, Any]:
    """What `load` needs so that the network takes samples of this shape, as far as it can be told; runs a factory's module."""
    if ":" not in spec:
        return arguments_of_own(spec, shape)
    images = {"channels": shape[0], "in_chans": shape[0], "size": min(shape[1:])} if len(shape) == 3 else {}
    known = {"features": torch.Size(shape).numel(), **images}
    library = spec.partition(":")[0]
    accepted = LIBRARIES[library] if library in LIBRARIES else tuple(inspect.signature(_import(spec)).parameters)
    return {name: value for name, value in known.items() if name in accepted}


def _from_elsewhere(spec: str, classes: int | None, seed: int, arguments: dict[str, Any]) -> nn.Module:
    if spec.partition(":")[0] in LIBRARIES:
        if classes is None:
            raise InputError(f"say for how many classes: load({spec!r}, classes=10)")
        with seeded(seed):
            model = _from_library(spec, classes, arguments)
    else:
        factory = _import(spec)
        accepted, offered = inspect.signature(factory).parameters, {"classes": classes, "seed": seed}
        own = {key: value for key, value in offered.items() if key in accepted and value is not None}
        with seeded(seed):
            model = call(factory, spec, {**own, **arguments})
    if not isinstance(model, nn.Module):
        raise InputError(f"{spec} gave a {type(model).__name__}, not an nn.Module")
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if linear and classes is not None and linear[-1].out_features != classes:
        outputs = linear[-1].out_features
        raise InputError(f"{spec} gave {outputs} classes, not {classes}; let it take `classes`, or use replace_head")
    return model


def _from_library(spec: str, classes: int, arguments: dict[str, Any]) -> nn.Module:
    library, _, name = spec.partition(":")
    if unknown := set(arguments) - set(LIBRARIES[library]):  # they could name files to read, or fetch
        raise InputError(f"{spec}: unknown argument {min(unknown)!r}; known: {', '.join(LIBRARIES[library]) or 'none'}")
    try:
        found: Any = importlib.import_module(library)
    except (ImportError, RuntimeError, AttributeError) as error:  # compiled for another PyTorch
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{spec} needs {library}, which cannot be imported here: {reason}; pip install {library}"
        ) from None
    known: list[str] = found.list_models() if library == "timm" else found.models.list_models(module=found.models)
    if name not in known or not re.fullmatch(r"\w+", name):
        raise InputError(f"{library} has no network {name!r}{did_you_mean(name, known)}")
    if library == "timm":
        model: nn.Module = found.create_model(name, pretrained=False, num_classes=classes, **arguments)
        return model
    model = found.models.get_model(name, weights=None, num_classes=classes)
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
