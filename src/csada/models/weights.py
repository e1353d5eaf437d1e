"""Tensors from a file into a model: all are compared first, so a model is either loaded whole or left as it was."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from csada.errors import InputError
from csada.models import layers
from csada.reading import read_bytes

HUB = "hub:"  # hub:timm/resnet34.a1_in1k is a repository on the Hugging Face hub
WEIGHTS = "model.safetensors"
# What reading tensors raises. torch.load has no error of its own: what is wrong in a file shows as whatever the unpickler, the
# zip reader or a tensor's constructor stumbles over.
DAMAGED = (
    *(OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, MemoryError),
    *(ImportError, AssertionError, SafetensorError, pickle.UnpicklingError, zipfile.BadZipFile),
)


def load_weights(
    model: nn.Module, path: str | os.PathLike[str], *, head: Literal["replace", "keep"] = "replace", seed: int = 0
) -> nn.Module:
    """Weights made elsewhere, such as ImageNet's, into `model`: a .safetensors file, a torch file, or `hub:owner/name`.

    A last layer for another number of classes (or none) leaves the model with a newly drawn one; `head="keep"` makes
    that an error. A first convolution for three channels fits a model for one: its weights are summed, which is what
    three equal channels would give.
    """
    if head not in ("replace", "keep"):
        raise InputError(f"head must be 'replace' or 'keep', got {head!r}")
    state = read(_fetch(path) if str(path).startswith(HUB) else Path(path))
    _sum_channels(model, state)
    name = layers.head(model)
    last = model.get_submodule(name)
    assert isinstance(last, nn.Linear)
    given = state.get(_within(name, "weight"))
    unfit = given is None or (
        given.ndim == 2 and given.shape[1] == last.in_features and given.shape != last.weight.shape
    )
    if head == "keep" or not unfit:
        fill(model, state, path)
        return model
    state |= last.state_dict(prefix=_within(name, ""))  # a stopgap that fits, until the new layer is drawn
    fill(model, state, path)
    return layers.replace_head(model, last.out_features, seed)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file, on the CPU; nothing in the file is ever executed."""
    if path.is_dir():
        path = path / WEIGHTS
    if not path.is_file():
        raise InputError(f"no weights at {path}; give a .safetensors file, a torch file or {HUB}owner/name")
    content = read_bytes(path, "weights")
    try:
        state = load(content) if path.suffix == ".safetensors" else unpickled(content)
    except DAMAGED as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"cannot read the weights {path}: {reason}; the file is damaged or holds no plain tensors"
        ) from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(k, str) and is_plain(v) for k, v in state.items()):
        raise InputError(
            f"{path} holds no table of tensors (dense ones of real numbers, each with a name); save it with "
            "torch.save(model.state_dict(), ...)"
        )
    return dict(state)


def unpickled(content: bytes | memoryview, device: torch.device | str = "cpu") -> Any:
    """What torch.save wrote, or one of DAMAGED; nothing in it is ever executed, and it takes no more memory than the file."""
    file = io.BytesIO(content)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if sum(each.file_size for each in archive.infolist()) > len(content):
                raise InputError("it is compressed, and torch.save compresses nothing")
    file.seek(0)
    with warnings.catch_warnings(action="ignore"):  # about kinds of tensors that nobody asks for
        return torch.load(file, map_location=device, weights_only=True)


def is_plain(value: object) -> bool:
    """A dense tensor of real numbers, of which there is something to copy."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not (value.is_nested or value.is_quantized or value.is_complex() or value.is_meta)
    )


def as_bytes(model: nn.Module) -> bytes:
    """Every parameter and buffer, as one safetensors file holds them."""
    state = model.state_dict().items()
    return save_tensors({k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in state})


def fill(model: nn.Module, state: Mapping[str, Tensor], source: str | os.PathLike[str]) -> None:
    """Copy every tensor to its place; an error names what differs, and then nothing was copied."""
    check_fit(model, state, source)
    model.load_state_dict({**model.state_dict(), **state})


def check_fit(model: nn.Module, state: Mapping[str, Tensor], source: str | os.PathLike[str]) -> None:
    if differences := misfits(model, state):
        raise InputError(f"{os.fspath(source)} does not fit this {type(model).__name__}: {differences}")


def misfits(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Which parameters a state lacks, has too many of or has in another shape; empty when it fits."""
    own = model.state_dict()
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]  # old files lack the counter
    unexpected = [k for k in state if k not in own]
    shapes = [
        f"{k} is {tuple(state[k].shape)} and should be {tuple(own[k].shape)}"
        for k in own
        if k in state and own[k].shape != state[k].shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("shapes", shapes))
    return "; ".join(f"{kind}: {_some(names)}" for kind, names in kinds if names)


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _within(module: str, part: str) -> str:
    return f"{module}.{part}" if module else part


def _sum_channels(model: nn.Module, state: dict[str, Tensor]) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):  # the first one sees the image
            own, given = module.weight.shape, state.get(_within(name, "weight"))
            if given is not None and own[1:2] == (1,) and given.shape == (own[0], 3, *own[2:]):
                state[_within(name, "weight")] = given.sum(1, keepdim=True)
            return


def _fetch(name: str | os.PathLike[str]) -> Path:
    """The weights of a repository on the hub, downloaded or from the local cache."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise InputError(f"{name} needs huggingface_hub: pip install 'csada[hub]'") from None
    try:
        return Path(hf_hub_download(str(name).removeprefix(HUB), WEIGHTS))
    except (OSError, ValueError) as error:  # the hub's own errors derive from these
        raise InputError(f"cannot fetch {name}: {str(error).strip().splitlines()[0]}") from None
