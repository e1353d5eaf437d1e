"""A model over data: costs that belong to single samples meet the samples they belong to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from csada import Abstention, CostMatrix, CostsByTruth, InputError, MinimumExpectedCost, evaluate

X, Y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
TABLE = torch.arange(36.0).view(12, 3)
SAMPLES = TensorDataset(X, Y)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))

    def __len__(self):
        return len(X)


RULE = MinimumExpectedCost(CostsByTruth(TABLE))
BY = {
    "costs": {"costs": TABLE},
    "example_costs": {"costs": CostMatrix.uniform(3), "example_costs": TABLE},
    "rule": {"costs": CostMatrix.pareto(3), "decision": RULE},
    "referring rule": {"costs": CostMatrix.pareto(3), "decision": Abstention(RULE, 1.0)},
}
by_every_way = pytest.mark.parametrize("by", BY.values(), ids=list(BY))


@by_every_way
@pytest.mark.parametrize(
    "data",
    [
        SAMPLES,
        DataLoader(SAMPLES, batch_size=5),
        DataLoader([(X[:7], Y[:7]), (X[7:], Y[7:])], batch_size=None),
    ],
    ids=["dataset", "loader", "batches"],
)
def test_a_loader_in_order_pays_what_the_tensors_pay(data, by):
    assert evaluate(nn.Identity(), data, **by).total_cost == evaluate(nn.Identity(), (X, Y), **by).total_cost > 0


@by_every_way
@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(SAMPLES, batch_size=5, shuffle=True),
        DataLoader(SAMPLES, batch_size=5, sampler=list(range(11, -1, -1))),
        DataLoader(SAMPLES, batch_sampler=BatchSampler(RandomSampler(SAMPLES), 5, drop_last=False)),
        DataLoader(SAMPLES, batch_sampler=[list(range(6, 12)), list(range(6))]),
        DataLoader(Stream(), batch_size=5),
    ],
    ids=["shuffle", "sampler", "batch_sampler", "batches", "stream"],
)
def test_a_loader_in_an_order_of_its_own_is_refused_where_costs_belong_to_samples(loader, by):
    with pytest.raises(
        InputError, match="the data loader may draw the samples in another order than their costs; give"
    ):
        evaluate(nn.Identity(), loader, **by)
    assert evaluate(nn.Identity(), loader, CostMatrix.uniform(3)).samples == 12
