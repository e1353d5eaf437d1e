"""Every method of METHODS keeps the same promises; the next one is covered the day it is added."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import csada
from csada.data.splits import Part

COSTS = csada.CostMatrix.pareto(3, seed=1)


def problem(n=24):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=g)
    y = torch.arange(n) % 3
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, x, y


def train(model, part):
    return model


def prepared(name, **options):
    model, x, y = problem()
    method = csada.METHODS[name](COSTS, **options)
    model, data = method.prepare(model, Part(x, y), train=train, generator=torch.Generator().manual_seed(0))
    return method, model, data.x[:16], data.y[:16]


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.fixture(params=list(csada.METHODS))
def name(request):
    return request.param


def test_gives_one_finite_number_whose_gradient_reaches_the_parameters(name):
    method, model, x, y = prepared(name)
    loss = method(model, x, y, generator=torch.Generator().manual_seed(1))
    assert loss.shape == () and torch.isfinite(loss)
    assert any(g.any() for g in gradients(model, loss)) and all(
        torch.isfinite(g).all()
        for g in gradients(model, method(model, x, y, generator=torch.Generator().manual_seed(1)))
    )


def test_same_seed_same_bits_and_no_global_random_state_touched(name):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    losses = []
    for _ in range(2):
        method, model, x, y = prepared(name)
        losses.append(method(model, x, y, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(*losses)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_leaves_modes_as_they_were(name):
    method, model, x, y = prepared(name)
    model.train()
    method(model, x, y, generator=torch.Generator().manual_seed(1))
    assert all(m.training for m in model.modules())


def test_the_prepared_model_still_scores_the_classes(name):
    _, model, x, _ = prepared(name)
    assert model(x).shape == (len(x), 3)


def test_is_a_frozen_value(name):
    method = csada.METHODS[name](COSTS)
    assert method.costs is COSTS and copy.copy(method) == method
    with pytest.raises(AttributeError):
        method.costs = None


def test_fits_through_the_one_call(name):
    model, x, y = problem()
    before = copy.deepcopy(model.state_dict())
    fitted = csada.fit(model, (x, y), name, COSTS, epochs=2, lr=0.01, batch_size=8)
    assert [line["epoch"] for line in fitted.history] == [1, 2]
    assert csada.evaluate(fitted.model, (x, y), COSTS).confusion.sum() == len(y)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())  # the caller's model stays as it is


class Named(nn.Module):
    """As models of Transformers are: the logits are one of several outputs."""

    def __init__(self, net, wrap):
        super().__init__()
        self.net, self.wrap = net, wrap

    def forward(self, x):
        return self.wrap(self.net(x))


def test_logits_may_have_a_name(name):
    model, x, y = problem()
    run = lambda net: csada.fit(net, (x, y), name, COSTS, epochs=1, lr=0.01, batch_size=8).model  # noqa: E731
    expected = csada.predict_logits(run(model), (x, y)).logits
    for wrap in (lambda logits: {"logits": logits}, lambda logits: SimpleNamespace(logits=logits)):
        named = run(Named(model, wrap))
        assert torch.equal(csada.predict_logits(named, (x, y)).logits, expected)
        assert csada.evaluate(named, (x, y), COSTS).confusion.sum() == len(y)


@pytest.mark.parametrize("name", ["csada", "adjusted_penalty"])
def test_zero_costs_reduce_to_cross_entropy(name):
    model, x, y = problem()
    loss = csada.METHODS[name](csada.CostMatrix(np.zeros((3, 3))))(model, x, y)
    assert torch.allclose(loss, F.cross_entropy(model(x), y), rtol=1e-6)
