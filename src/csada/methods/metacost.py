"""MetaCost (Domingos, 1999): relabel every sample with the class of least expected cost, then train as usual.

    label_i = argmin_z  sum_y  p(y | x_i) c(y, z)

p is the mean softmax of a bagged ensemble: copies of the model, each trained on a bootstrap resample by the caller's
own trainer. A sample's own cost row stands in for its true class's row of the matrix; the new labels then carry the
costs, so the relabelled part has no cost rows. The original bags 50 trees; ten networks are dear enough.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.data.batches import batches
from csada.data.splits import Part
from csada.decisions import as_array, decide
from csada.errors import InputError
from csada.methods.base import Trainer, first_parameter, on_train, own_generator, scores


@dataclass(frozen=True)
class MetaCost:
    """out_of_bag: judge a sample only by members that were not trained on it (by all where there is none)."""

    costs: CostMatrix
    bags: int = 10
    out_of_bag: bool = False
    static = True

    def __post_init__(self) -> None:
        if self.bags < 1:
            raise InputError(f"bags must be at least 1, got {self.bags}")

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: torch.Generator | None = None
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

    def probabilities(self, model: nn.Module, part: Part, train: Trainer, rng: torch.Generator) -> Tensor:
        """[N, K]: the ensemble's mean softmax for every sample."""
        n = len(part)
        total = torch.zeros(n, len(self.costs), dtype=torch.float64)
        total_unseen = total.clone()
        members_unseen = torch.zeros(n, 1, dtype=torch.float64)
        for _ in range(self.bags):
            bag = torch.randint(n, (n,), generator=rng, device=rng.device).cpu()
            member = predict(train(copy.deepcopy(model), part.take(bag)), part)
            unseen = torch.ones(n, 1, dtype=torch.float64)
            unseen[bag] = 0
            total, total_unseen = total + member, total_unseen + unseen * member
            members_unseen += unseen
        mean = total / self.bags
        if not self.out_of_bag:
            return mean
        return torch.where(members_unseen > 0, total_unseen / members_unseen.clamp_min(1), mean)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        costs: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return F.cross_entropy(scores(model, x), y)


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
