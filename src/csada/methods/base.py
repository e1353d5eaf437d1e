"""What every method is: a small frozen value that turns a model and a batch into one scalar to descend on.

A new method is one file with one frozen dataclass, and one line in `METHODS`. Methods never inherit from each other;
those that are a formula of the logits share `Loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.data.batches import as_part
from csada.data.splits import Part, Splits
from csada.errors import InputError
from csada.models.modes import logits_of

# plain cross-entropy training with the caller's settings: (model, data) -> trained model
Trainer = Callable[[nn.Module, Any], nn.Module]


class Method(Protocol):
    """`prepare` runs once, before the optimiser is built; the call runs once per batch."""

    @property
    def costs(self) -> CostMatrix: ...

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: Generator | None = None
    ) -> tuple[nn.Module, Any]:
        """Extra heads, resampling, relabelling; most methods return both as they are."""
        ...

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        """One scalar. `costs`, where given, is [N, K]: these samples' own costs instead of the matrix's rows."""
        ...


@dataclass(frozen=True)
class Loss:
    """A method that is a formula of the logits and the cost rows: `loss`, which is cross-entropy unless said otherwise."""

    costs: CostMatrix

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: Generator | None = None
    ) -> tuple[nn.Module, Any]:
        return model, data

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        logits = scores(model, x)
        return self.loss(logits, y, cost_rows(self.costs, y, costs, logits.dtype))

    def loss(self, logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """The mean over the samples, given logits and cost rows [N, K]."""
        return F.cross_entropy(logits, y)


def cost_rows(matrix: CostMatrix, y: Tensor, costs: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[N, K]: what each prediction would cost for each sample of the batch."""
    if costs is not None:
        return costs.to(y.device, dtype)
    return cost_table(matrix, y.device, dtype)[y]


@lru_cache(maxsize=64)
def cost_table(matrix: CostMatrix, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The matrix as a tensor, copied to a device once."""
    return torch.tensor(matrix.values, dtype=dtype, device=device)


def scores(model: nn.Module, x: Tensor) -> Tensor:
    """The model's logits in single precision or better: losses take logarithms of what comes of them."""
    return at_least_single(logits_of(model(x)))


def at_least_single(values: Tensor) -> Tensor:
    return values.float() if values.dtype.itemsize < 4 else values


def log_one_minus_p(logits: Tensor) -> Tensor:
    """[N, K]: log(1 - p_z) for every class, finite and with finite gradients even at p_z = 1.

    For the likeliest class it is a difference of two logsumexp, over the other classes and over all. Every other class
    has p <= 1/2, where log1p(-p) is exact; so no sample needs a table of K x K.
    """
    top = logits.argmax(1, keepdim=True)
    of_top = logits.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True) - logits.logsumexp(1, keepdim=True)
    # the top's p is replaced before the logarithm, not after: log1p(-1) would send NaN back through the choice
    return torch.log1p(-logits.softmax(1).scatter(1, top, 0.0)).scatter(1, top, of_top)


def on_train(data: Any, change: Callable[[Part], Part], method: str) -> Any:
    """The data with its training part changed; validation and test stay as they are."""
    part = as_part(data)
    if not isinstance(part, Part):
        kind = type(data).__name__
        raise InputError(f"{method} changes the training data and needs tensors: give (x, y) or Splits, not a {kind}")
    return replace(data, train=change(part)) if isinstance(data, Splits) else change(part)


def own_generator(generator: Generator | None, device: torch.device | str | None = None) -> Generator:
    """The generator, or one seeded with 0; on another device, one seeded by a draw from it. Never the global state."""
    generator = Generator().manual_seed(0) if generator is None else generator
    if device is None or generator.device == torch.device(device):
        return generator
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    return Generator(device).manual_seed(int(seed))


def drawn_linear(inputs: int, outputs: int, generator: Generator, like: Tensor, gain: float = 1.0) -> nn.Linear:
    """A Linear with Glorot's uniform weights."""
    uniform = torch.rand(outputs, inputs, generator=generator, device=generator.device)
    return linear((2 * uniform - 1) * (gain * math.sqrt(6 / (inputs + outputs))), like)


def linear(weight: Tensor, like: Tensor) -> nn.Linear:
    """A Linear of these weights, on the device and of the type of `like`; nothing is drawn from the global random state."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta", dtype=like.dtype).to_empty(device=like.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return layer


def first_parameter(model: nn.Module) -> Tensor:
    """Tells the device and the type of a model."""
    return next(model.parameters(), torch.empty(0))
