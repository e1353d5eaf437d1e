"""Mixup (Zhang et al., 2018): cross-entropy on mixtures of two samples, with both labels.

    a l(x, y_i) + (1 - a) l(x, y_j),     x = a x_i + (1 - a) x_j,     a ~ Beta(alpha, alpha),     the mean over the samples

Every sample i is mixed once. Its partner j is any sample of the batch, or with partners="cost" one of the classes that i must
not be labelled as, after SelMix (Ramasubramanian et al., 2024): class z with probability proportional to c(y_i, z) q(z | y_i),
where q is the `confusion`. A class whose mistakes are expected to cost most is always mixed so, the others in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.errors import InputError, check_known
from csada.methods.base import Loss, scores
from csada.methods.csada import sample_cdf

QUANTILES = 1024  # of the distribution of a, between which is interpolated

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Mixup(Loss):
    """confusion: [K, K], rows are the truth: the mean calibrated probabilities of held-out samples of each class."""

    alpha: float = 1.0
    partners: Literal["any", "cost"] = "any"
    confusion: Rows | None = None
    static = True

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_known("partners", self.partners, ("any", "cost"))
        if (self.confusion is not None) != (self.partners == "cost"):
            raise InputError("partners='cost' and confusion= go together: give both, or neither")
        if self.confusion is not None:
            q, k = np.asarray(self.confusion, np.float64), len(self.costs)
            if q.shape != (k, k) or not (np.isfinite(q) & (q >= 0)).all():
                raise InputError(f"confusion of shape {q.shape}; ({k}, {k}) is needed, finite and zero or more")
            object.__setattr__(self, "confusion", tuple(map(tuple, q.tolist())))

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, costs: Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        a = coefficients(self.alpha, len(y), y.device, generator)
        partner = permutation(y, generator) if self.confusion is None else self.aimed(y, generator)
        logits = scores(model, mixed(x, partner, a))
        own, other = (F.cross_entropy(logits, label, reduction="none") for label in (y, y[partner]))
        return torch.lerp(other, own, a.to(own.dtype)).mean()

    def aimed(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        """[N]: partners by cost x confusion; where the batch lacks the classes, any."""
        assert self.confusion is not None
        share = partner_shares(self.costs, self.confusion, y.device)
        of_class = (y == y[:, None]).sum(1)
        return sample_cdf((share[y][:, y] / of_class).cumsum(1), (len(y), 1), generator)[:, 0]


def check_alpha(alpha: float) -> None:
    if not 0 < alpha < float("inf"):
        raise InputError(f"alpha must be positive, got {alpha}")


def mixed(x: Tensor, partner: Tensor, a: Tensor) -> Tensor:
    """a x_i + (1 - a) x_j."""
    if not x.is_floating_point():
        raise InputError(f"samples of {x.dtype} cannot be mixed; images and rows of numbers can")
    return torch.lerp(x[partner], x, a.to(x.dtype).reshape(-1, *(1,) * (x.ndim - 1)))


def permutation(y: Tensor, generator: Generator | None) -> Tensor:
    """[N]: the batch in another order; unlike randperm a CUDA graph may hold it."""
    return torch.rand(len(y), device=y.device, generator=generator).argsort()


def coefficients(alpha: float, n: int, device: torch.device, generator: Generator | None) -> Tensor:
    """[n]: drawn from Beta(alpha, alpha), by its quantiles: PyTorch's own Beta takes no generator."""
    table = quantiles(alpha, device)
    place = torch.rand(n, device=device, generator=generator) * QUANTILES
    below = place.long()
    return torch.lerp(table[below], table[below + 1], place - below)


@lru_cache(maxsize=16)
def quantiles(alpha: float, device: torch.device) -> Tensor:
    values = betaincinv(alpha, alpha, np.linspace(0, 1, QUANTILES + 1))
    return torch.tensor(values, dtype=torch.float32, device=device)


@lru_cache(maxsize=64)
def partner_shares(costs: CostMatrix, confusion: Rows, device: torch.device) -> Tensor:
    """[K, K]: how often a sample of each class should have a partner of each class; rows sum to 1."""
    share = costs.values * np.asarray(confusion)
    share = share / (share.sum(1).max() or 1.0)
    any_class = (1 - share.sum(1, keepdims=True)) / len(share)
    return torch.tensor(share + any_class, device=device)
