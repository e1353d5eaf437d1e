"""A trained model as a folder: model.safetensors (the weights) and model.json (what else it takes to use it).

model.json holds the architecture, its arguments, the class names in the order of the logits, what an input looks like and
how it is normalised, how scores become decisions, free metadata, and the hash of the weights. The weights carry the
hash of all that but the metadata. So a damaged, edited or half-copied folder is noticed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.files import whole
from csada.models.initial import seeded
from csada.models.weights import WEIGHTS, check_fit, fill, misfits, read
from csada.models.zoo import MODELS, OWN, Factory, call, create

CONFIG = "model.json"
FORMAT = 1
EMPTY: dict[str, Any] = {"arguments": {}, "normalization": None, "input": None, "decision": None, "metadata": {}}


def save(model: nn.Module, path: str | os.PathLike[str], *, config: Mapping[str, Any]) -> Path:
    """Write the folder `path`; `load` gives the model back. An older bundle there is replaced, other files stay.

    config: `architecture` (a name of MODELS or `package.module:factory`) and `classes` (their names) are needed;
    `arguments` (what the architecture was created with), `normalization`, `input` (shape and dtype of a sample as it
    is stored, and the columns of a table), `decision` (decisions.to_plain) and `metadata` are plain values.
    """
    path = Path(path)
    _check(config, "config")
    with torch.device("meta") if config["architecture"] in OWN else nullcontext():
        sketch = _build(config, "config", trust=True)
    if differences := misfits(sketch, model.state_dict()):  # it could not be loaded again
        raise InputError(f"config describes another model than the one to save: {differences}")
    try:
        plain = json.loads(json.dumps(dict(config), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"config must hold plain values that JSON can write: {error}") from None
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a model is saved as a folder")
    state = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in model.state_dict().items()}
    with whole(path / CONFIG) as text, whole(path / WEIGHTS) as weights:  # the last gets its name first
        save_file(state, weights, {"config": _digest(plain)})
        record = {"format": FORMAT, **plain, "sha256": _sha256(weights)}
        text.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was saved beside the weights: the keys of CHECKS, those that were not given as None or empty."""
    return _read(Path(path))[0]


def load(
    spec: str | os.PathLike[str], classes: int | None = None, *, seed: int = 0, trust: bool = False, **arguments: Any
) -> nn.Module:
    """A model from a name of MODELS, from `package.module:factory`, or from a folder written by `save` (in eval mode).

    A factory is any function or class that gives an nn.Module; it is called with `classes` and `seed` where it takes
    them. `trust=True` lets a folder name such a factory: calling what a stranger's file names would run their code.
    """
    if isinstance(spec, str) and spec in MODELS:
        if classes is None:
            raise InputError(f"say for how many classes: load({spec!r}, classes=10)")
        return create(spec, classes, seed=seed, **arguments)
    if Path(spec).exists() or not isinstance(spec, str):
        if arguments:
            raise InputError(f"{spec} carries its own arguments; leave out {', '.join(arguments)}")
        return _load_bundle(Path(spec), classes, trust)
    if ":" in spec:
        return _load_factory(spec, classes, seed, arguments)
    hint = did_you_mean(spec, MODELS)
    raise InputError(f"{spec!r} is neither a model, nor a folder, nor package.module:factory{hint}")


def _load_bundle(path: Path, classes: int | None, trust: bool) -> nn.Module:
    config, digest = _read(path)
    names = config["classes"]
    if classes is not None and classes != len(names):
        raise InputError(f"{path} has {len(names)} classes, not {classes}; load it without classes, then replace_head")
    state = read(path)
    if digest != _sha256(path / WEIGHTS):
        raise InputError(f"{path / WEIGHTS} is damaged: it is not the file that {CONFIG} describes; copy both again")
    if config["architecture"] in OWN:
        with torch.device("meta"):  # shapes first: what does not fit must not fill the memory
            check_fit(_build(config, str(path / CONFIG), trust), state, path)
    model = _build(config, str(path / CONFIG), trust)
    fill(model, state, path)
    with safe_open(path / WEIGHTS, "pt") as file:
        known = (file.metadata() or {}).get("config")
    if known not in (None, _digest(config)):
        raise InputError(
            f"{path / CONFIG} is not the one that was saved with {WEIGHTS}: copy both again, or save the model anew"
        )
    return model.eval()


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    """The config and the hash that the weights must have."""
    file = path / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"{path} is no saved model: it has no readable {CONFIG}") from None
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}") from None
    if not isinstance(config, dict) or config.pop("format", None) != FORMAT:
        raise InputError(f"{file} is not of format {FORMAT}, the one this version of csada reads")
    digest = config.pop("sha256", None)
    _check(config, str(file))
    return {**EMPTY, **config}, digest


def _check(config: Mapping[str, Any], where: str) -> None:
    for key in config:
        if key not in CHECKS:
            raise InputError(f"{where}: unknown key {key!r}; known keys: {', '.join(CHECKS)}")
    for key, (valid, wanted) in CHECKS.items():
        if not valid(value := {**EMPTY, **config}.get(key)):
            raise InputError(f"{where}: {key} is {value!r}; {wanted}")


def _table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _list(value: Any, kind: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, kind) for v in value)


def _normalization(value: Any) -> bool:
    if not (_table(value) and value.keys() == {"mean", "std", "scale"} and isinstance(value["scale"], int | float)):
        return False
    mean, std = value["mean"], value["std"]
    numbers = _list(mean, int | float) and _list(std, int | float) and len(mean) == len(std)
    return numbers and all(0 < v < math.inf for v in (*std, value["scale"])) and all(map(math.isfinite, mean))


def _input(value: Any) -> bool:
    return _table(value) and _list(value.get("shape"), int) and min(value["shape"]) > 0


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "architecture": (lambda v: isinstance(v, str), "name a model or package.module:factory"),
    "arguments": (_table, "give a table of names and values"),
    "classes": (lambda v: _list(v, str) and len(set(v)) == len(v), "list a name for each class, all different"),
    "normalization": (lambda v: v is None or _normalization(v), "give mean, std and scale, the last two positive"),
    "input": (lambda v: v is None or _input(v), "give the shape and the dtype of a sample"),
    "decision": (lambda v: v is None or _table(v), "give a table, as csada.decisions.to_plain makes it"),
    "metadata": (_table, "give a table of names and values"),
}


def _digest(config: Mapping[str, Any]) -> str:
    """The hash of all that decides what a prediction is."""
    text = json.dumps({**EMPTY, **config, "metadata": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _build(config: Mapping[str, Any], where: str, trust: bool) -> nn.Module:
    name, classes, arguments = config["architecture"], len(config["classes"]), dict(config.get("arguments", {}))
    if name in MODELS:
        try:
            return create(name, classes, **arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{where}: arguments {arguments} make no {name}: {error}") from None
    if ":" not in name:
        raise InputError(f"{where}: unknown architecture {name!r}{did_you_mean(name, MODELS)}")
    if not trust:
        raise InputError(
            f"{where} names code to run, {name!r}; if you trust its author, load it with trust=True, or --trust"
        )
    return _load_factory(name, classes, 0, arguments)


def _load_factory(spec: str, classes: int | None, seed: int, arguments: dict[str, Any]) -> nn.Module:
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
