"""Costs through the training set: costly samples more often, cheap ones less often, then plain cross-entropy.

A sample costs what a mistake on it may cost, C_i = sum_z c(y_i, z); a class, the mean over its samples. Resampling
happens once, in `prepare`, and sees which classes are costly, not which pairs. All draws come from the generator.

    oversampling    class k grows to N_base C_k / C_base samples; base: the class of smallest C / N (Zhou & Liu, 2005)
    undersampling   class k shrinks to that number; base: the class of largest C / N (dropped at random, without the
                    authors' preference for redundant samples)
    costing         a sample is kept with probability C_i / max C (Zadrozny, Langford & Abe, 2003; they average the
                    models of several draws, here a seed is one draw)

Two limits are ours. Oversampling grows the data to GROWTH times its size at most: where the costs ask for more, every
class gets the same share of what it should gain. No class disappears: undersampling and costing keep at least one
sample of each. Oversampling leaves a class without cost as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from csada.costs import CostMatrix
from csada.data.splits import Part
from csada.methods.base import Loss, Trainer, cost_rows, on_train, own_generator

GROWTH = 10  # times the size of the training set


@dataclass(frozen=True)
class Resampling(Loss, ABC):
    """The training part becomes the rows of it that a method draws."""

    def prepare(
        self, model: nn.Module, data: Any, *, train: Trainer | None = None, generator: Generator | None = None
    ) -> tuple[nn.Module, Any]:
        rng = own_generator(generator)
        return model, on_train(data, lambda part: part.take(self.rows(part, rng)), type(self).__name__.lower())

    @abstractmethod
    def rows(self, part: Part, rng: Generator) -> Tensor:
        """The numbers of the samples to train on."""


@dataclass(frozen=True)
class Oversampling(Resampling):
    static = True

    def rows(self, part: Part, rng: Generator) -> Tensor:
        wanted, counts = proportional_counts(part, self.costs, largest=False)
        gained = wanted - counts
        room = (GROWTH - 1) * len(part)
        chosen = [torch.arange(len(part))]
        for k, extra in enumerate((gained * min(1.0, room / max(float(gained.sum()), 1.0))).long().tolist()):
            if extra > 0:
                members = (part.y.cpu() == k).nonzero()[:, 0]
                draw = torch.randint(len(members), (extra,), generator=rng, device=rng.device)
                chosen.append(members[draw.cpu()])
        return torch.cat(chosen).sort().values


@dataclass(frozen=True)
class Undersampling(Resampling):
    static = True

    def rows(self, part: Part, rng: Generator) -> Tensor:
        wanted = proportional_counts(part, self.costs, largest=True)[0].long()
        shuffled = torch.randperm(len(part), generator=rng, device=rng.device).cpu()
        labels = part.y.cpu()[shuffled]
        chosen = [shuffled[labels == k][:count] for k, count in enumerate(wanted.tolist())]
        return torch.cat(chosen).sort().values


@dataclass(frozen=True)
class Costing(Resampling):
    static = True

    def rows(self, part: Part, rng: Generator) -> Tensor:
        cost, labels = sample_costs(part, self.costs), part.y.cpu()
        luck = torch.rand(len(part), generator=rng, device=rng.device, dtype=torch.float64).cpu()
        missed_by = luck * cost.max() - cost
        kept = (missed_by < 0) | (cost.max() == 0)
        for k in set(labels.tolist()):
            members = (labels == k).nonzero()[:, 0]
            kept[members[missed_by[members].argmin()]] = True  # the nearest one, where all would be rejected
        return kept.nonzero()[:, 0]


def sample_costs(part: Part, costs: CostMatrix) -> Tensor:
    """[N]: C_i, on the CPU."""
    own = None if part.costs is None else part.costs.cpu()
    return cost_rows(costs, part.y.cpu(), own, torch.float64).sum(1)


def proportional_counts(part: Part, costs: CostMatrix, *, largest: bool) -> tuple[Tensor, Tensor]:
    """([K] float64, [K]): samples of each class in proportion to its cost, and as they are now.

    With the base of the smallest cost per sample no class need shrink, with that of the largest none need grow.
    """
    labels = part.y.cpu()
    counts = torch.bincount(labels, minlength=len(costs))
    cost = torch.bincount(labels, sample_costs(part, costs), len(costs)) / counts.clamp_min(1)
    density = cost / counts  # a class without samples: infinite or NaN, and never the base
    candidates = density[(counts > 0) & (cost > 0)]
    if len(candidates) == 0:
        return counts, counts
    wanted = (cost / (candidates.max() if largest else candidates.min())).round()  # may be more than an integer holds
    if largest:
        return torch.minimum(wanted.clamp_min(1), counts), counts
    return torch.where(counts > 0, torch.maximum(wanted, counts), counts), counts
