"""The costs as torchmetrics: counts gathered batch by batch, summed over processes, read by the formulas of `metrics`.

update(preds, target) takes logits [N, K], decided by argmax, or class numbers [N]: for another decision rule, rule(logits).
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.models.modes import check_labels, check_logits


class Confusion(Metric):
    """What the metrics share: the state confusion[y, z] = how often truth y was predicted z."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    confusion: Tensor

    def __init__(self, costs: CostMatrix, **options: Any) -> None:
        super().__init__(**options)
        self.costs = costs
        n = len(costs)
        self.add_state("confusion", torch.zeros(n, n, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        n = len(self.costs)
        if preds.is_floating_point():
            check_logits(preds, n)
            preds = preds.argmax(1)
        # 64 bits before anything is computed: a small type cannot number n * n cells
        preds, target = preds.long(), target if target.is_floating_point() else target.long()
        check_labels(preds, n)
        check_labels(target, n)
        if len(preds) != len(target):
            raise InputError(f"{len(target)} truths but {len(preds)} predictions; give one prediction per truth")
        self.confusion += torch.bincount(target * n + preds, minlength=n * n).view(n, n)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """One value, or a list of them as a curve; (figure, axes)."""
        return self._plot(val, ax)

    def _total(self) -> Tensor:
        # single precision: not every device has double
        values = torch.tensor(self.costs.values, dtype=torch.float32, device=self.confusion.device)
        return (self.confusion * values).sum()


class TotalCost(Confusion):
    """What all predictions cost together."""

    def compute(self) -> Tensor:
        return self._total()


class MeanCost(Confusion):
    """The mean cost of a prediction; with unit costs it is the error rate."""

    def compute(self) -> Tensor:
        return self._total() / self.confusion.sum().clamp(min=1)


class PairwiseErrorRate(Confusion):
    """[K, K]: the share of the samples of class y that were predicted as z; NaN in the row of a class without samples."""

    def compute(self) -> Tensor:
        return self.confusion / self.confusion.sum(1, keepdim=True)

    def plot(self, val: Tensor | None = None, ax: Any = None) -> Any:
        """A heat map of the errors in %, with the classes' names; (figure, axes)."""
        rates = 100 * (self.compute() if val is None else val).cpu().numpy()
        errors = np.where(np.eye(len(rates), dtype=bool), np.nan, rates)  # the diagonal would drown them
        figure, ax = plt.subplots(constrained_layout=True) if ax is None else (ax.get_figure(), ax)
        image = ax.imshow(errors, cmap="Reds", vmin=0)
        figure.colorbar(image, ax=ax, label="error rate in %")
        ax.set_xlabel("predicted")
        ax.set_ylabel("truth")
        ax.set_xticks(range(len(rates)), self.costs.classes, rotation=45, ha="right")
        ax.set_yticks(range(len(rates)), self.costs.classes)
        return figure, ax
