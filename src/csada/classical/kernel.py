"""A kernel machine that gradients can pass: Nyström features of the RBF kernel, and a linear layer on them.

    phi(x) = K_LL^(-1/2) k(x, L),     k(x, l) = exp(-gamma |x - l|^2),     L: landmarks drawn from the training samples

so that phi(x) . phi(x') approximates k(x, x') and a linear classifier of phi is a kernel classifier of x.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from csada.errors import InputError
from csada.models.initial import seeded


class RBFFeatures(nn.Module):
    """[N, F] -> [N, landmarks]; nothing in it is trained."""

    landmarks: Tensor
    root: Tensor

    def __init__(self, landmarks: Tensor, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("landmarks", landmarks)
        values, vectors = torch.linalg.eigh(self.kernel(landmarks))
        # near-copies among the landmarks make eigenvalues of zero: those directions carry nothing
        inverse = torch.where(values > 1e-10 * values.max(), values.clamp_min(1e-30).rsqrt(), 0.0)
        self.register_buffer("root", vectors * inverse @ vectors.T)

    def kernel(self, x: Tensor) -> Tensor:
        squares = (x * x).sum(1, keepdim=True) + (self.landmarks * self.landmarks).sum(1) - 2 * x @ self.landmarks.T
        return torch.exp(-self.gamma * squares.clamp_min(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x) @ self.root


def kernel_module(
    X: Tensor, classes: int, n_components: int = 100, gamma: float | None = None, *, seed: int = 0
) -> nn.Sequential:
    """A kernel classifier with landmarks from X; gamma: 1 / features if None. Use: CSADAClassifier(kernel_module)."""
    X = torch.as_tensor(X).flatten(1).double()
    if n_components < 1 or len(X) == 0:
        raise InputError(f"{n_components} components from {len(X)} samples; at least one of each is needed")
    gamma = 1 / X.shape[1] if gamma is None else gamma
    if not 0 < gamma < float("inf"):
        raise InputError(f"gamma must be a positive number, got {gamma}")
    chosen = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:n_components]
    with seeded(seed):
        head = nn.Linear(len(chosen), classes, dtype=X.dtype)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), features=RBFFeatures(X[chosen], gamma), fc=head))
