"""Run a model over data once, decide, and count."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from csada.costs import CostMatrix
from csada.data.batches import Data, as_part, batches
from csada.data.splits import Part
from csada.decisions import RULES, Abstention, CostsByTruth, Rule, as_array
from csada.errors import InputError
from csada.metrics import Evaluation, check_table
from csada.models.modes import borrowed_eval, check_labels, check_logits, device_of, dtype_of, logits_of

VALUES = 2**24  # of the samples of a batch, at most: 64 MB, of which the first layers of a ResNet make a few GB


class Scores(NamedTuple):
    """A model's outputs on some data, in the data's order, on the CPU."""

    logits: Tensor  # [N, K] float32
    labels: Tensor  # [N]


def predict_logits(model: nn.Module, data: Data, *, batch_size: int = 1024, part: str = "test") -> Scores:
    """Scores of every sample, in order, without augmentation; `part` is used when data is a Splits.

    batch_size: at most. A batch of large images has fewer, so that all its values are no more than VALUES.
    """
    device, data = device_of(model), as_part(data, part)
    if isinstance(data, Part):
        batch_size = min(batch_size, _fitting(data.x))
    logits, labels = [], []
    with borrowed_eval(model), torch.inference_mode():
        for x, y, _ in batches(data, batch_size, device, dtype=dtype_of(model)).epoch():
            logits += [logits_of(model(some)).float() for some in torch.split(x, _fitting(x))]
            labels.append(y)
        return Scores(torch.cat(logits).cpu(), torch.cat(labels).cpu())


def _fitting(x: Tensor) -> int:
    """How many samples like those of x [N, ...] make a batch."""
    return max(VALUES // max(x.shape[1:].numel(), 1), 1)


def evaluate(
    model: nn.Module,
    data: Data,
    costs: CostMatrix | ArrayLike,
    decision: str | Rule = "argmax",
    *,
    example_costs: Any = None,
    batch_size: int = 1024,
    part: str = "test",
) -> Evaluation:
    """What the model, with that decision rule, gets wrong on the data and what it costs.

    Where costs differ from sample to sample, they are a table [N, K] of what predicting each class costs for that very
    sample: the data's own (`Part.costs`), or `example_costs`, or `costs` itself. A square `costs` is always by pair.
    A DataLoader must then draw its samples in order.
    """
    of_rule = getattr(getattr(decision, "rule", decision), "costs", None)
    if (example_costs is not None or _is_table(costs) or isinstance(of_rule, CostsByTruth)) and not _in_order(data):
        raise InputError(
            "the data loader may draw the samples in another order than their costs; give (x, y), a Dataset or a "
            "DataLoader without shuffle and samplers"
        )
    scores = predict_logits(model, data, batch_size=batch_size, part=part)
    if example_costs is None and not _is_table(costs):
        example_costs = getattr(as_part(data, part), "costs", None)
    return evaluate_scores(scores, costs, decision, example_costs=example_costs)


def evaluate_scores(
    scores: Scores, costs: CostMatrix | ArrayLike, decision: str | Rule = "argmax", *, example_costs: Any = None
) -> Evaluation:
    """The same from scores that were computed before: several rules need only one pass of the model."""
    check_logits(scores.logits)
    shape = (len(scores.labels), scores.logits.shape[1])
    check_labels(scores.labels, shape[1])
    if _is_table(costs):
        costs, example_costs = _pair_means(costs, scores.labels, shape), costs
    elif not isinstance(costs, CostMatrix):
        costs = CostMatrix(as_array(costs))
    check_logits(scores.logits, len(costs))
    if isinstance(decision, str):
        if decision not in RULES:
            raise InputError(
                f"unknown decision {decision!r}; known: {', '.join(RULES)}, or any rule such as MinimumExpectedCost"
            )
        decision = RULES[decision]
    return Evaluation.of(
        np.asarray(scores.labels),
        np.asarray(decision(scores.logits)),
        costs,
        example_costs=None if example_costs is None else as_array(example_costs),
        automatic=np.asarray(decision.rule(scores.logits)) if isinstance(decision, Abstention) else None,
    )


def _is_table(costs: CostMatrix | ArrayLike) -> bool:
    """Not by pair: any array that is not square."""
    if isinstance(costs, CostMatrix):
        return False
    shape = np.shape(as_array(costs))
    return len(shape) != 2 or shape[0] != shape[1]


def _in_order(data: Data) -> bool:
    """Whether the samples surely come as they are stored; a stream's own order cannot be known."""
    if not isinstance(data, DataLoader):
        return True
    # a batch sampler of the user's own goes before the loader's sampler
    return type(data.sampler) is SequentialSampler and (
        data.batch_sampler is None
        or (type(data.batch_sampler) is BatchSampler and data.batch_sampler.sampler is data.sampler)
    )


def _pair_means(table: Any, labels: Tensor, shape: tuple[int, int]) -> CostMatrix:
    """c(y, z) as the mean over the samples of class y: what ranks the pairs when only a table was given."""
    values = as_array(table)
    if values.shape != shape:
        n, k = shape
        raise InputError(
            f"costs of shape {values.shape} for {n} samples of {k} classes; give ({k}, {k}), truth by prediction, or "
            f"({n}, {k}), what predicting each class costs for each sample"
        )
    check_table(values, "example costs")
    one_hot = np.eye(shape[1])[np.asarray(labels)]
    means = one_hot.T @ values / np.maximum(one_hot.sum(0), 1)[:, None]
    np.fill_diagonal(means, 0.0)
    return CostMatrix(means)
