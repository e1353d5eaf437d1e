"""A ResNet whose batch norms do not learn: each is folded into its convolution.

In eval mode a batch norm is an affine map of a channel, so  bn(conv(x)) = conv'(x) + b'  with  w' = w * g / sqrt(v + eps).
On a GPU convolution, bias, short way and ReLU are then one kernel, and the frozen batch norm's own kernels, a quarter of a
step, are gone. Folding is differentiable, so g and the bias still learn; equal to the plain forward up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.models.modes import changed

if TYPE_CHECKING:
    from csada.models.residual import BasicBlock, ResNet

Two = tuple[int, int]


class Folded(NamedTuple):
    weight: Tensor
    bias: Tensor
    stride: Two
    padding: Two


def foldable(model: ResNet) -> bool:
    """Whether folding gives what the layers give: not where one was replaced by another kind, hooked or parametrised.

    The pooling and the last layer may be any: those are called.
    """
    called = {id(module) for layer in (model.maxpool, model.fc) for module in layer.modules()}
    return all(map(plain, (m for m in model.modules() if m is not model and id(m) not in called)))


def plain(module: nn.Module) -> bool:
    if changed(module):
        return False
    if type(module) is nn.Conv2d:
        whole = module.groups == 1 and module.dilation == (1, 1)
        return whole and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if type(module) is nn.BatchNorm2d:
        return module.affine and module.track_running_stats
    return type(module) is nn.Sequential or "folds" in vars(type(module))


def fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> Folded:
    assert norm.running_mean is not None and norm.running_var is not None
    factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    weight = (convolution.weight * factor[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
    mean = norm.running_mean if convolution.bias is None else norm.running_mean - convolution.bias
    bias = (norm.bias - mean * factor).to(dtype)
    return Folded(weight, bias, convolution.stride, convolution.padding)  # type: ignore[arg-type]


def fold_short(block: BasicBlock, dtype: torch.dtype) -> Folded | None:
    return None if block.downsample is None else fold(*block.downsample, dtype)  # type: ignore[misc, call-arg]


def folded_forward(model: ResNet, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The model's eval-mode forward in `dtype`, with the weights as they are now; fold once, call as often as needed."""
    stem = fold(model.conv1, model.bn1, dtype)
    blocks: Any = [
        (fold(b.conv1, b.bn1, dtype), fold(b.conv2, b.bn2, dtype), fold_short(b, dtype))  # type: ignore[arg-type]
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4)
        for b in layer
    ]
    head: Any = None  # of another kind: called as it is
    if type(model.fc) is nn.Linear and model.fc.bias is not None and not changed(model.fc):
        head = model.fc.weight.to(dtype), model.fc.bias.to(dtype)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype, memory_format=torch.channels_last)
            x = model.maxpool(convolve(x, stem))
            for first, second, short in blocks:
                way = x if short is None else F.conv2d(x, *short)
                x = convolve(convolve(x, first), second, way)
            x = x.mean((2, 3))
            if head is not None:
                return F.linear(x, *head)
        logits: Tensor = model.fc(x)
        return logits

    return forward


def convolve(x: Tensor, folded: Folded, way: Tensor | None = None) -> Tensor:
    """relu(conv(x) + bias + way)."""
    if x.is_cuda:
        out: Tensor = FusedConvolution.apply(x, *folded, way)  # type: ignore[no-untyped-call]
        return out
    out = F.conv2d(x, *folded)
    return F.relu(out if way is None else out + way)


class FusedConvolution(torch.autograd.Function):
    """relu(conv(x) + bias + way) as one cuDNN kernel; backward computes only the gradients that are asked for."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: Two, padding: Two, way: Tensor | None
    ) -> Tensor:
        if way is None:
            out = torch.cudnn_convolution_relu(x, weight, bias, stride, padding, (1, 1), 1)
        else:
            out = torch.cudnn_convolution_add_relu(x, weight, way, 1.0, bias, stride, padding, (1, 1), 1)
        ctx.save_for_backward(x, weight, out)
        ctx.stride, ctx.padding = stride, padding
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        to_x, to_weight, to_bias, _, _, to_way = ctx.needs_input_grad
        gradient = torch.ops.aten.threshold_backward(gradients[0], out, 0)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, (to_x, to_weight, False)
        )
        grad_bias = gradient.sum((0, 2, 3)) if to_bias else None
        return grad_x, grad_weight, grad_bias, None, None, gradient if to_way else None
