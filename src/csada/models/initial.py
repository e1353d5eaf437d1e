"""First weights that depend on a seed and on nothing else, and leave the global random state as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from csada.errors import InputError

LARGEST_SEED = (1 << 64) - 1  # what PyTorch's generators take


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers drawn on the CPU inside come from `seed`; the generator is given back as it was."""
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}")
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the GPUs too, and nobody restores those
        torch.default_generator.manual_seed(seed)
        yield


def he_convolutions(model: nn.Module) -> None:
    """He's normal initialisation for convolutions that a ReLU follows; biases start at zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
