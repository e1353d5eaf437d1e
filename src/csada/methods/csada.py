"""CSADA: cross-entropy on the samples, plus lambda times cross-entropy on targeted adversarial examples of them.

    l_augmented = 1/N sum_i [ l(x_i, y_i) + lambda sum_z c~(y_i, z) l(x_i + delta_i^z, y_i) ]          (Algorithm 2: "full")

Attacking every sample towards every class is too expensive, so Algorithm 3 draws. An estimator is a way of drawing *tasks*
(sample i, target z) with coefficients a; all of them then give  sum_i w_i l(x_i, y_i) + lambda sum_t a_t l(x_t + delta_t, y_t):

    full         every pair of positive weight            a = c~(y_i, z) / N
    paper        one pair (y', z') ~ c~; class y' attacked  a = 1/N, and the samples not attacked count 1/N again (as printed)
    unbiased     the same, attacked samples alone           a = 1/N      unbiased for l_augmented
    class_mean   the same, averaged over the attacked       a = 1/#{y_i = y'}
    per_sample   M tasks ~ c~(y_i, z), with replacement     a = (sum_i,z c~(y_i, z) / N) / M      unbiased for l_augmented
    task_mean    the same, averaged over the tasks          a = 1/M      the default: lowest variance

All but `full` can be given a fixed number of tasks, the surplus of which counts nothing, for a step of static shapes.
Mind lambda: class_mean and task_mean average over what is attacked, so with C balanced classes their penalty is about C times
that of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from csada.attacks import Ascent, Bounds, Forward, ascend, pays_to_shrink
from csada.costs import CostMatrix
from csada.errors import InputError, check_known
from csada.methods.base import scores
from csada.models.folded import foldable, folded_forward
from csada.models.modes import borrowed_eval, changed, mixes_batch
from csada.models.residual import ResNet

PAIR_ESTIMATORS = ("paper", "unbiased", "class_mean")  # one pair per batch
TASK_ESTIMATORS = ("per_sample", "task_mean")  # M tasks per batch
BUCKET = 32  # in an eager step on a GPU, numbers of tasks that change from batch to batch are rounded up to a multiple
LEAST_ROOM = 8
ESTIMATORS = ("full", *PAIR_ESTIMATORS, *TASK_ESTIMATORS)


class Tasks(NamedTuple):
    """Which samples of a batch are attacked towards which classes, and what each adversarial loss counts."""

    sample: Tensor  # [T] index into the batch
    target: Tensor  # [T]
    coefficient: Tensor  # [T]
    again: Tensor | None = None  # [N] extra coefficients of the clean losses inside the penalty (estimator "paper")
    static: bool = False  # their number is the same in every batch

    def within(self, first: int, last: int) -> Tasks:
        """Those on samples first to last, numbered from there; what they count stays as it is in the whole batch."""
        here = ((self.sample >= first) & (self.sample < last)).nonzero()[:, 0]
        again = None if self.again is None else self.again[first:last]
        return Tasks(self.sample[here] - first, self.target[here], self.coefficient[here], again)

    def padded(self, multiple: int) -> Tasks:
        """The last task repeated, counting nothing, until their number is a multiple of `multiple`; none stay none."""
        missing = -len(self.sample) % multiple
        if missing == 0 or len(self.sample) == 0:
            return self
        sample, target = (torch.cat([v, v[-1:].expand(missing)]) for v in (self.sample, self.target))
        return Tasks(sample, target, F.pad(self.coefficient, (0, missing)), self.again)


@dataclass(frozen=True)
class CSADA:
    """Algorithms 2 and 3. `weight` is the paper's lambda, `step_size` its eta_2, `steps` its K, `tasks` our M."""

    costs: CostMatrix
    estimator: str = "task_mean"
    weight: float = 2.0
    tau: float = 1.0
    tasks: int = 64
    epsilon: float = 1.0
    step_size: float = 5e-4
    steps: int = 10
    norm: str = "linf"
    step: str = "gradient"
    bounds: Bounds | None = None
    static = True  # nothing in a step is decided by Python's own state

    def __post_init__(self) -> None:
        Ascent.of(self)  # refuses bad settings
        self.costs.weights(self.tau)  # refuses a bad tau
        check_known("estimator", self.estimator, ESTIMATORS)
        if not 0 <= self.weight < float("inf"):
            raise InputError(f"weight (lambda) must be zero or more, got {self.weight}")
        if self.tasks < 1:
            raise InputError(f"tasks must be at least 1, got {self.tasks}")

    def prepare(self, model: nn.Module, data: Any, **_: Any) -> tuple[nn.Module, Any]:
        return model, data

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        costs: Tensor | None = None,
        generator: Generator | None = None,
        capacity: int | None = None,
    ) -> Tensor:
        if costs is not None:
            raise InputError("csada attacks pairs of classes and cannot use costs that differ from sample to sample")
        return self.loss(model, x, y, self.draw(y, generator, capacity))

    def capacity(self, model: nn.Module, y: Tensor) -> int | None:
        """How many tasks leave room for whatever is drawn for this batch; None where their number cannot be fixed.

        For the estimators that draw one pair it is the size of the largest class that may be drawn, rounded up, and
        counting it waits for the device.
        """
        if self.estimator in TASK_ESTIMATORS:
            return self.tasks
        if self.estimator == "full" or mixes_batch(model):  # batch norm in training mode would see the surplus
            return None
        drawable = pair_weights(self.costs, self.tau, y.device).mass[y] > 0
        largest = int(((y == y[:, None]).sum(1) * drawable).max())
        return min(rounded_up(largest), len(y))

    def draw(self, y: Tensor, generator: Generator | None = None, capacity: int | None = None) -> Tasks | None:
        """This batch's tasks; None when nothing in it has weight.

        With `capacity`, as given by the method of that name, their number is fixed and nothing waits for the device.
        """
        if self.weight == 0:
            return None
        weights = pair_weights(self.costs, self.tau, y.device)
        if self.estimator == "full":
            return full_tasks(y, weights)
        if not weights.any_class:
            return None
        if self.estimator in PAIR_ESTIMATORS:
            pair = sample_cdf(weights.pairs.flatten().cumsum(0), (1,), generator)
            return pair_tasks(y, pair // len(weights.pairs), pair % len(weights.pairs), self.estimator, capacity)
        if not (weights.every_class or capacity is not None or bool(weights.mass[y].any())):
            return None
        return drawn_tasks(y, weights, self.tasks, self.estimator, generator)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, tasks: Tasks | None, share: float = 1.0) -> Tensor:
        """The loss for tasks that were drawn already.

        Where x is but a `share` of the batch, with its `tasks.within`, this is its part of the batch's loss: the parts
        of all shares add up to the whole.
        """
        if tasks is None or (len(tasks.sample) == 0 and tasks.again is None):
            return F.cross_entropy(scores(model, x), y) * share
        mixed = mixes_batch(model)
        if x.is_cuda and not mixed and not tasks.static:
            tasks = tasks.padded(BUCKET)
        index, target, coefficient, again, static = tasks
        attacked = self.attacked(model, x[index], y[index], target, static)
        if mixed:
            # batch norm in training mode must not mix the statistics of the two kinds
            clean = scores(model, x)
            adversarial = scores(model, attacked) if len(index) else x.new_zeros(0, len(self.costs))
        else:
            clean, adversarial = scores(model, torch.cat([x, attacked])).tensor_split([len(x)])
        natural = F.cross_entropy(clean, y, reduction="none")
        penalty = coefficient.to(natural.dtype) @ F.cross_entropy(adversarial, y[index], reduction="none")
        if again is not None:
            penalty = penalty + again.to(natural.dtype) @ natural
        return natural.mean() * share + self.weight * penalty

    def attacked(self, model: nn.Module, x: Tensor, y: Tensor, target: Tensor, static: bool = False) -> Tensor:
        """Algorithm 1 on a batch, with the model as it is now; `static`: on a GPU, without ever waiting for it."""
        if len(x) == 0:
            return x
        shrink = pays_to_shrink(x, self.steps) and (x.is_cpu or not static)
        with borrowed_eval(model):
            return ascend(attack_view(model, x), x, y, target, Ascent.of(self), shrink=shrink).adversarial


def attack_view(model: nn.Module, x: Tensor) -> Forward:
    """The model as K forwards and backwards in eval mode see it: under bf16 on a GPU our ResNets have a faster form."""
    kind = x.device.type
    own = type(model).forward is ResNet.forward and not changed(model)  # else what was changed must be seen
    if isinstance(model, ResNet) and own and foldable(model) and kind == "cuda" and torch.is_autocast_enabled(kind):
        with torch.no_grad():  # folded once, for gradients to the samples alone
            return folded_forward(model, torch.get_autocast_dtype(kind))
    return lambda points: scores(model, points)


class PairWeights(NamedTuple):
    """c~ and what is drawn with it, on a device."""

    pairs: Tensor  # [C, C]
    mass: Tensor  # [C] sum over targets
    cdf: Tensor  # [C, C] cumulative over targets
    any_class: bool  # has positive weight
    every_class: bool  # has positive weight: then no batch is without


@lru_cache(maxsize=64)
def pair_weights(costs: CostMatrix, tau: float, device: torch.device) -> PairWeights:
    pairs = torch.tensor(costs.weights(tau))
    mass = pairs.sum(1)
    weighted = mass > 0
    return PairWeights(
        pairs.to(device), mass.to(device), pairs.cumsum(1).to(device), bool(weighted.any()), bool(weighted.all())
    )


def full_tasks(y: Tensor, weights: PairWeights) -> Tasks | None:
    index, target = weights.pairs[y].nonzero(as_tuple=True)
    return Tasks(index, target, weights.pairs[y[index], target] / len(y)) if len(index) else None


def pair_tasks(y: Tensor, truth: Tensor, target: Tensor, estimator: str, capacity: int | None = None) -> Tasks | None:
    """The samples of class `truth` attacked towards `target`; with `capacity` so many tasks, some counting nothing."""
    chosen = y == truth
    attacked = chosen.sum()
    if (tasks := int(attacked) if capacity is None else capacity) == 0 and estimator != "paper":
        return None
    index = (~chosen).byte().argsort(stable=True)[:tasks]  # the chosen come first
    share = 1 / len(y) if estimator != "class_mean" else 1 / attacked.clamp_min(1).double()
    again = (~chosen).double() / len(y) if estimator == "paper" else None
    return Tasks(index, target.expand(tasks), chosen[index].double() * share, again, capacity is not None)


def rounded_up(n: int) -> int:
    """To 8, 12, 16, 24, 32, 48, ...: few sizes, of which little is surplus."""
    size = LEAST_ROOM
    while size < n:
        size += size // 2 if size.bit_count() == 1 else size // 3
    return size


def drawn_tasks(y: Tensor, weights: PairWeights, tasks: int, estimator: str, generator: Generator | None) -> Tasks:
    """`tasks` pairs (sample, target) with probability proportional to c~(y_i, z): the sample first, then its target."""
    mass = weights.mass[y]
    sample = sample_cdf(mass.cumsum(0), (tasks,), generator)
    target = sample_cdf(weights.cdf[y[sample]], (tasks, 1), generator)[:, 0]
    scale = (mass.sum() > 0).to(mass.dtype) if estimator == "task_mean" else mass.mean()
    return Tasks(sample, target, (scale / tasks).expand(tasks), static=True)


def sample_cdf(cdf: Tensor, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
    """Indices drawn in proportion to the steps of a cumulative sum along its last axis; one of weight zero never comes."""
    total = cdf[..., -1:]
    u = torch.rand(shape, dtype=cdf.dtype, device=cdf.device, generator=generator) * total
    drawn = torch.searchsorted(cdf, torch.minimum(u, total.nextafter(torch.zeros_like(total))), right=True)
    return drawn.clamp_max(cdf.shape[-1] - 1)  # where nothing has weight: any index, for a task that counts nothing
