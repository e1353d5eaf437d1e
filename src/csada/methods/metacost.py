"""MetaCost (Domingos, 1999): relabel every sample with the class of least expected cost, then train as usual.

    label_i = argmin_z  sum_y  p(y | x_i) c(y, z)

p is the mean softmax of a bagged ensemble: copies of the model, each trained on a bootstrap resample by the caller's
own trainer. A sample's own cost row stands in for its true class's row of the matrix; the new labels then carry the
costs, so the relabelled part has no cost rows. The original bags 50 trees; ten networks take time enough.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from csada.costs import CostMatrix
from csada.data.batches import batches
from csada.data.splits import Part
from csada.decisions import as_array, decide
from csada.errors import InputError
from csada.methods.base import Loss, Trainer, first_parameter, on_train, own_generator, scores

Array = NDArray[Any]


@dataclass(frozen=True)
class MetaCost(Loss):
    """out_of_bag: judge a sample only by members that were not trained on it (by all where there is none)."""

    bags: int = 10
    out_of_bag: bool = False
    static = True

    def __post_init__(self) -> None:
        if self.bags < 1:
            raise InputError(f"bags must be at least 1, got {self.bags}")

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: Generator | None = None
    ) -> tuple[nn.Module, Any]:
        if train is None:
            raise InputError(
                "metacost trains an ensemble first; pass train=, a function (model, data) -> trained model"
            )
        rng = own_generator(generator)

        def relabel(part: Part) -> Part:
            p = self.probabilities(model, part, train, rng)
            return replace(part, y=relabelled(p, part, self.costs).to(part.y.device), costs=None)

        return model, on_train(data, relabel, "metacost")

    def probabilities(self, model: nn.Module, part: Part, train: Trainer, rng: Generator) -> Tensor:
        """[N, K]: the ensemble's mean softmax for every sample."""

        def member() -> tuple[Array, Array]:
            bag = torch.randint(len(part), (len(part),), generator=rng, device=rng.device).cpu()
            return bag.numpy(), predict(train(copy.deepcopy(model), part.take(bag)), part).numpy()

        return torch.from_numpy(bagged((member() for _ in range(self.bags)), self.out_of_bag))


def bagged(members: Iterable[tuple[Array, Array]], out_of_bag: bool) -> Array:
    """[N, K]: the mean probabilities of all members, each given as (its training rows, its probabilities [N, K])."""
    total = unseen_total = unseen_members = np.zeros((1, 1))
    count = 0
    for bag, p in members:
        unseen = np.bincount(bag, minlength=len(p))[:, None] == 0
        total, unseen_total, unseen_members = total + p, unseen_total + unseen * p, unseen_members + unseen
        count += 1
    mean = total / count
    return np.where(unseen_members > 0, unseen_total / np.maximum(unseen_members, 1), mean) if out_of_bag else mean


@torch.no_grad()
def predict(model: nn.Module, part: Part) -> Tensor:
    """[N, K]: the softmax of every sample, in order and not augmented, on the CPU."""
    model.eval()
    like = first_parameter(model)
    source = batches(part, 512, like.device, dtype=like.dtype)
    parts = [scores(model, batch.x).double().softmax(1).cpu() for batch in source.epoch()]
    return torch.cat(parts)


def relabelled(p: Tensor, part: Part, costs: CostMatrix) -> Tensor:
    """[N]: the class of least expected cost, as everywhere in csada (`decisions`)."""
    decided = decide(p, costs)
    if part.costs is not None:
        y = part.y.cpu().numpy()
        own = p.numpy()[np.arange(len(y)), y, None] * (as_array(part.costs) - costs.values[y])
        decided = replace(decided, expected_costs=decided.expected_costs + own)
    return torch.from_numpy(decided.chosen)
