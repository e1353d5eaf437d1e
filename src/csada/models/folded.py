"""A ResNet as the attack sees it: batch norm folded into the convolutions, weights cast once for all K steps.

In eval mode a batch norm is an affine map of a channel, so  bn(conv(x)) = conv'(x) + b'  with  w' = w * g / sqrt(v + eps).
On a GPU convolution, bias, short way and ReLU are then one kernel forward, and backward goes to the input alone. Equal to
the model up to rounding; made anew after each update of the weights, which costs far less than one forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.models.residual import BasicBlock, ResNet

Pair = tuple[int, int]


class Folded(NamedTuple):
    weight: Tensor
    bias: Tensor
    stride: Pair
    padding: Pair


def fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> Folded:
    assert norm.running_mean is not None and norm.running_var is not None
    factor = norm.weight.detach() * torch.rsqrt(norm.running_var + norm.eps)
    weight = (convolution.weight.detach() * factor[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
    bias = (norm.bias.detach() - norm.running_mean * factor).to(dtype)
    return Folded(weight, bias, convolution.stride, convolution.padding)  # type: ignore[arg-type]


def fold_short(block: BasicBlock, dtype: torch.dtype) -> Folded | None:
    return None if block.downsample is None else fold(*block.downsample, dtype)  # type: ignore[misc, call-arg]


def folded_forward(model: ResNet, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The model's eval-mode forward in `dtype`, with the weights as they are now."""
    stem = fold(model.conv1, model.bn1, dtype)
    blocks = [
        (fold(b.conv1, b.bn1, dtype), fold(b.conv2, b.bn2, dtype), fold_short(b, dtype))
        for layer in (model.layer1, model.layer2, model.layer3, model.layer4)
        for b in layer
        if isinstance(b, BasicBlock)
    ]
    head = model.fc.weight.detach().to(dtype), model.fc.bias.detach().to(dtype)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype, memory_format=torch.channels_last)
            x = model.maxpool(convolve(x, stem))
            for first, second, short in blocks:
                way = x if short is None else F.conv2d(x, short.weight, short.bias, short.stride, short.padding)
                x = convolve(convolve(x, first), second, way)
            return F.linear(x.mean((2, 3)), *head).float()

    return forward


def convolve(x: Tensor, folded: Folded, way: Tensor | None = None) -> Tensor:
    """relu(conv(x) + bias + way)."""
    if x.is_cuda:
        out: Tensor = FusedConvolution.apply(x, *folded, way)  # type: ignore[no-untyped-call]
        return out
    out = F.conv2d(x, *folded)
    return F.relu(out if way is None else out + way)


class FusedConvolution(torch.autograd.Function):
    """relu(conv(x) + bias + way) as one cuDNN kernel, differentiable in x and way."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: Pair, padding: Pair, way: Tensor | None
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
        gradient = torch.ops.aten.threshold_backward(gradients[0], out, 0)
        to_x = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, (True, False, False)
        )[0]
        return to_x, None, None, None, None, gradient if ctx.needs_input_grad[5] else None
