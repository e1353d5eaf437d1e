"""What csada asks of any `nn.Module`: where it lives, finite scores, and modes that are borrowed and given back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from csada.errors import InputError


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def best_precision(device: torch.device) -> str:
    """The default of training on that device, as `fit` names it: half precision on GPUs that compute in it."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "32"


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; a model without any counts as on the CPU."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def dtype_of(model: nn.Module) -> torch.dtype | None:
    """The type in which a model takes samples: that of its first floating-point parameter or buffer."""
    return next((t.dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), None)


def logits_of(output: Any) -> Tensor:
    """What a model returned, or the `logits` in it, as models of Transformers have it."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(found, Tensor):
        raise InputError(f"the model returned a {type(output).__name__}; a tensor is needed, alone or named logits")
    return found


@contextmanager
def borrowed_eval(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and every module's own flag back afterwards: a frozen batch norm stays frozen."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def borrowed_threads(n: int) -> Iterator[None]:
    """PyTorch on n threads: for small models one is faster than several, which would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training_mode(model: nn.Module, *, freeze_norm: bool) -> None:
    """Training mode; with freeze_norm every batch norm keeps using, and keeps, its running statistics."""
    model.train()
    if freeze_norm:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


def changed(module: nn.Module) -> bool:
    """Whether this one object does more than its class: it has hooks, or a forward of its own."""
    return "forward" in vars(module) or bool(module._forward_hooks or module._forward_pre_hooks)


def mixes_batch(model: nn.Module) -> bool:
    """Whether a sample's output depends on the others in its batch: batch norm in training mode."""
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


def check_logits(logits: Tensor, classes: int | None = None) -> None:
    """One finite score a class; waits for the device, so it is called where that does no harm."""
    if logits.ndim != 2:
        raise InputError(f"the model returned shape {tuple(logits.shape)}; (samples, classes) is needed")
    if classes is not None and logits.shape[1] != classes:
        raise InputError(f"the model scores {logits.shape[1]} classes but the costs name {classes}; they must agree")
    if not bool(torch.isfinite(logits).all()):
        i = int((~torch.isfinite(logits)).any(1).nonzero()[0])
        scores = logits[i].tolist()[:10]
        raise InputError(f"the model returned {scores} for sample {i}; check its weights and its inputs")


def check_labels(y: Tensor, classes: int) -> None:
    if y.is_floating_point() or y.ndim != 1:
        raise InputError(f"labels must be class numbers, one per sample; got {y.dtype} of shape {tuple(y.shape)}")
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
        bad = int(y[(y < 0) | (y >= classes)][0])
        raise InputError(f"label {bad} is out of range; the costs name {classes} classes, 0 to {classes - 1}")
