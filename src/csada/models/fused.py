"""relu(batch norm(x) + way) with a batch norm that learns, as few passes over memory as it can be done with.

For bf16 in channels-last order PyTorch has a kernel each for the statistics, the normalisation, the sum and the ReLU, and as
many on the way back. Here they are two on either way, and a small one between them that adds up what the blocks found. Sums
are taken in a fixed order, so a run repeats to the bit.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.models.modes import changed

log = logging.getLogger("csada")


def norm_relu(norm: nn.Module, x: Tensor, way: Tensor | None = None) -> Tensor:
    """relu(norm(x) + way): by the fused kernels where they give what the layers give, else by the layers."""
    if fits(norm, x) and (way is None or (way.dtype == x.dtype and in_order(way))) and available(x.device):
        from csada.models.triton_kernels import NormReLU

        out: Tensor = NormReLU.apply(x, way, norm.weight, norm.bias, norm)  # type: ignore[no-untyped-call]
        return out
    out = norm(x)
    return F.relu(out if way is None else out.add_(way), inplace=True)


def fits(norm: nn.Module, x: Tensor) -> bool:
    if not (x.is_cuda and x.dtype == torch.bfloat16 and type(norm) is nn.BatchNorm2d and norm.training):
        return False
    learns = norm.affine and norm.track_running_stats and norm.momentum is not None
    power = x.shape[1] >= 16 and x.shape[1].bit_count() == 1
    return learns and power and not changed(norm) and in_order(x)


def in_order(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@lru_cache(maxsize=8)
def available(device: torch.device) -> bool:
    """Whether Triton is installed and can build kernels here: it needs a C compiler."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from csada.models.triton_kernels import NormReLU

        with torch.inference_mode(False), torch.enable_grad():
            norm = nn.BatchNorm2d(16, device=device)
            x = torch.zeros(1, 16, 4, 4, dtype=torch.bfloat16, device=device).to(memory_format=torch.channels_last)
            out = NormReLU.apply(x.requires_grad_(), None, norm.weight, norm.bias, norm)  # type: ignore[no-untyped-call]
            out.sum().backward()
    except Exception as error:  # whatever Triton raises: a slower run is better than none
        log.warning("batch norm runs unfused: Triton cannot build kernels here (%s)", str(error).splitlines()[0])
        return False
    return True
