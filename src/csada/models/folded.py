"""A ResNet whose batch norms do not learn: each is folded into its convolution.

In eval mode a batch norm is an affine map of a channel, so  bn(conv(x)) = conv'(x) + b'  with  w' = w * g / sqrt(v + eps).
On a GPU convolution, bias, short way and ReLU are then one kernel, and the frozen batch norm's own kernels, a quarter of a
step, are gone. Folding is differentiable, so g and the bias still learn; equal to the plain forward up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.models.modes import changed

if TYPE_CHECKING:
    from csada.models.residual import ResNet

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
    modules = [m for m in model.modules() if m is not model and id(m) not in called]
    return all(map(plain, modules)) and len({m.eps for m in modules if isinstance(m, nn.BatchNorm2d)}) == 1


def plain(module: nn.Module) -> bool:
    if changed(module):
        return False
    if type(module) is nn.Conv2d:
        whole = module.groups == 1 and module.dilation == (1, 1)
        return whole and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if type(module) is nn.BatchNorm2d:
        return module.affine and module.track_running_stats
    return type(module) is nn.Sequential or "folds" in vars(type(module))


def fold(layers: Sequence[tuple[nn.Conv2d, nn.BatchNorm2d]], dtype: torch.dtype) -> list[Folded]:
    """All at once: what is per channel is one long vector, where small batches would wait for hundreds of small kernels."""
    norms = [norm for _, norm in layers]
    means: Any = [n.running_mean if c.bias is None else n.running_mean - c.bias for c, n in layers]  # type: ignore[operator]
    variances: Any = [norm.running_var for norm in norms]
    factors = torch.cat([n.weight for n in norms]) * torch.rsqrt(torch.cat(variances) + norms[0].eps)
    biases = (torch.cat([n.bias for n in norms]) - torch.cat(means) * factors).to(dtype)
    widths = [norm.num_features for norm in norms]
    folded = []
    for (convolution, _), factor, bias in zip(
        layers, factors.split_with_sizes(widths), biases.split_with_sizes(widths), strict=True
    ):
        weight = (convolution.weight * factor[:, None, None, None]).to(dtype, memory_format=torch.channels_last)
        folded.append(Folded(weight, bias, convolution.stride, convolution.padding))  # type: ignore[arg-type]
    return folded


def folded_forward(model: ResNet, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The model's eval-mode forward in `dtype`, with the weights as they are now; fold once, call as often as needed."""
    layers: list[Any] = [(model.conv1, model.bn1)]
    shorts: list[bool] = []
    block: Any
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in layer:
            layers += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
            shorts.append(block.downsample is not None)
            if block.downsample is not None:
                layers.append(tuple(block.downsample))
    stem, *rest = fold(layers, dtype)
    left = iter(rest)
    blocks = [(next(left), next(left), next(left) if short else None) for short in shorts]
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
