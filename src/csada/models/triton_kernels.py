# mypy: ignore-errors
"""The kernels of `fused`: x is a matrix [rows, channels] of bf16, a row for each pixel; sums and statistics are float32.

y = relu(xhat * w + b + way),   xhat = (x - mean) * rstd
g = gradient where y > 0;   db = sum g;   dw = sum g * xhat;   dx = w * rstd * (g - db / rows - xhat * dw / rows)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ROWS, COLUMNS, WARPS = 64, 64, 8  # of a block
BLOCKS = 528  # four for each multiprocessor of a large GPU


@triton.jit
def _tile(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    return rows[:, None], tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def sum_samples(x, sums, n, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of x and x squared, less the first row: large means then take no digits from the variance."""
    first = tl.load(x + tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.float32)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        rows, columns = _tile(block, ROWS, COLUMNS)
        here = rows < n
        value = tl.load(x + rows * c + columns[None, :], mask=here, other=0).to(tl.float32) - first
        value = tl.where(here, value, 0.0)
        total += value
        squares += value * value
    at = tl.program_id(0) * c + tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + at, tl.sum(total, 0))
    tl.store(sums + tl.num_programs(0) * c + at, tl.sum(squares, 0))


@triton.jit
def add_up(sums, blocks, c, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    first = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, blocks, ROWS):
        rows = start + tl.arange(0, ROWS)[:, None]
        at = sums + rows * c + columns[None, :]
        first += tl.load(at, mask=rows < blocks, other=0)
        second += tl.load(at + blocks * c, mask=rows < blocks, other=0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def statistics(
    x,
    sums,
    mean,
    rstd,
    running_mean,
    running_var,
    blocks,
    n,
    c,
    momentum,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total, squares = add_up(sums, blocks, c, columns, ROWS, COLUMNS)
    shift = total / n
    variance = tl.maximum(squares / n - shift * shift, 0.0)
    middle = shift + tl.load(x + columns).to(tl.float32)
    tl.store(mean + columns, middle)
    tl.store(rstd + columns, 1.0 / tl.sqrt(variance + eps))
    old_mean, old_var = tl.load(running_mean + columns), tl.load(running_var + columns)
    unbiased = variance * (n / tl.maximum(n - 1.0, 1.0))
    tl.store(running_mean + columns, old_mean + momentum * (middle - old_mean))
    tl.store(running_var + columns, old_var + momentum * (unbiased - old_var))


@triton.jit
def normalise(x, way, y, weight, bias, mean, rstd, n, c, WAY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = _tile(tl.program_id(0), ROWS, COLUMNS)
    here, at = rows < n, rows * c + columns[None, :]
    factor = tl.load(weight + columns) * tl.load(rstd + columns)
    offset = tl.load(bias + columns) - tl.load(mean + columns) * factor
    value = tl.load(x + at, mask=here, other=0).to(tl.float32) * factor[None, :] + offset[None, :]
    if WAY:
        value += tl.load(way + at, mask=here, other=0).to(tl.float32)
    tl.store(y + at, tl.maximum(value, 0.0).to(tl.bfloat16), mask=here)


@triton.jit
def sum_gradients(gradient, x, y, g, mean, rstd, sums, n, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    middle, scale = tl.load(mean + columns)[None, :], tl.load(rstd + columns)[None, :]
    to_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        rows, _ = _tile(block, ROWS, COLUMNS)
        here, at = rows < n, rows * c + columns[None, :]
        passed = tl.load(y + at, mask=here, other=0).to(tl.float32) > 0
        value = tl.where(passed, tl.load(gradient + at, mask=here, other=0).to(tl.float32), 0.0)
        tl.store(g + at, value.to(tl.bfloat16), mask=here)
        to_bias += value
        to_weight += value * (tl.load(x + at, mask=here, other=0).to(tl.float32) - middle) * scale
    at = tl.program_id(0) * c + columns
    tl.store(sums + at, tl.sum(to_bias, 0))
    tl.store(sums + tl.num_programs(0) * c + at, tl.sum(to_weight, 0))


@triton.jit
def parameters(sums, to_weight, to_bias, blocks, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    bias, weight = add_up(sums, blocks, c, columns, ROWS, COLUMNS)
    tl.store(to_bias + columns, bias)
    tl.store(to_weight + columns, weight)


@triton.jit
def descend(g, x, to_x, weight, mean, rstd, to_weight, to_bias, n, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = _tile(tl.program_id(0), ROWS, COLUMNS)
    here, at = rows < n, rows * c + columns[None, :]
    scale = tl.load(rstd + columns)
    factor = tl.load(weight + columns) * scale
    slope = tl.load(to_weight + columns) / n * scale
    shared = tl.load(to_bias + columns) / n - tl.load(mean + columns) * slope
    value = tl.load(g + at, mask=here, other=0).to(tl.float32) - shared[None, :]
    value -= tl.load(x + at, mask=here, other=0).to(tl.float32) * slope[None, :]
    tl.store(to_x + at, (value * factor[None, :]).to(tl.bfloat16), mask=here)


class NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Tensor | None, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        n, c = x.numel() // x.shape[1], x.shape[1]
        size = {"ROWS": ROWS, "COLUMNS": min(c, COLUMNS), "num_warps": WARPS}
        tiles, wide = triton.cdiv(n, ROWS), c // size["COLUMNS"]
        blocks = min(tiles, max(BLOCKS // wide, 1))
        sums = torch.empty(2, blocks, c, device=x.device)
        mean, rstd = torch.empty(2, c, device=x.device)
        y = torch.empty_like(x)
        sum_samples[blocks, wide](x, sums, n, c, **size)
        statistics[(c // 16,)](
            x, sums, mean, rstd, norm.running_mean, norm.running_var, blocks, n, c, norm.momentum, norm.eps, 64, 16
        )
        normalise[tiles, wide](x, way, y, weight, bias, mean, rstd, n, c, way is not None, **size)
        norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        ctx.save_for_backward(x, y, weight, mean, rstd)
        ctx.size, ctx.grid = size, (blocks, tiles, wide)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, mean, rstd = ctx.saved_tensors
        (blocks, tiles, wide), c = ctx.grid, x.shape[1]
        n = x.numel() // c
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        g, to_x = torch.empty_like(x), torch.empty_like(x)
        sums = torch.empty(2, blocks, c, device=x.device)
        to_weight, to_bias = torch.empty(2, c, device=x.device)
        sum_gradients[blocks, wide](gradient, x, y, g, mean, rstd, sums, n, c, **ctx.size)
        parameters[(c // 16,)](sums, to_weight, to_bias, blocks, c, 64, 16)
        descend[tiles, wide](g, x, to_x, weight, mean, rstd, to_weight, to_bias, n, c, **ctx.size)
        return to_x, g if ctx.needs_input_grad[1] else None, to_weight, to_bias, None
