"""What methods do before training: layers added, samples drawn again, labels changed, networks pre-trained."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from csada.costs import CostMatrix
from csada.data.splits import Part, Splits
from csada.errors import InputError
from csada.methods.auxcst import AuxCST, find_blocks
from csada.methods.csdnn import CSDNN
from csada.methods.metacost import MetaCost
from csada.methods.sampling import Costing, Oversampling, Undersampling
from csada.methods.sosr import SOSR, CostRegressor, sosr_loss
from csada.models import cnn, mlp, resnet

# class costs 1, 2, 4 (sums of the rows)
COSTS = CostMatrix([[0, 0.5, 0.5], [1.5, 0, 0.5], [4, 0, 0]])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def part_of(counts, costs=None):
    y = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    return Part(torch.arange(len(y), dtype=torch.float32)[:, None], y, costs=costs)


def counts_of(part):
    return torch.bincount(part.y, minlength=3).tolist()


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
    train, test = Part(x[:600], y[:600]), Part(x[600:1000], y[600:1000])
    return Splits(train, test, test, tuple(map(str, range(10))))


def descend(method, model, data, epochs, lr=0.01):
    """A plain loop, so that these tests say something about the methods alone."""
    part = data.train if isinstance(data, Splits) else data
    optimizer, order = torch.optim.Adam(model.parameters(), lr=lr), generator(1)
    for _ in range(epochs):
        for index in torch.randperm(len(part), generator=order).split(64):
            optimizer.zero_grad()
            method(model, part.x[index], part.y[index]).backward()
            optimizer.step()
    return model.eval()


def accuracy(model, part):
    with torch.no_grad():
        return float((model(part.x).argmax(1) == part.y).float().mean())


# ---- cost regression ----


def test_the_cost_layer_starts_with_the_model_s_own_predictions():
    net = mlp(5, 3, seed=1)
    x = torch.randn(20, 5, generator=generator())
    prepared, _ = SOSR(COSTS).prepare(net, None)
    torch.testing.assert_close(prepared(x), net(x))
    assert len(list(prepared.parameters())) == len(list(net.parameters())) + 2


def test_preparing_twice_adds_one_layer():
    data = (torch.randn(8, 5, generator=generator()), torch.arange(8) % 3)
    for method in (SOSR(COSTS), AuxCST(COSTS), CSDNN(COSTS, pretrain_epochs=1)):
        once, _ = method.prepare(mlp(5, 3), data)
        twice, _ = method.prepare(once, data)
        assert twice is once


def test_the_smallest_estimated_cost_wins():
    """Trained to convergence on constant inputs, each class's estimate respects its side of its cost."""
    costs = CostMatrix([[0, 2, 8], [1, 0, 1], [1, 1, 0]])
    model, _ = SOSR(costs).prepare(nn.Linear(1, 3), None)
    x, y = torch.ones(4, 1), torch.zeros(4, dtype=torch.long)
    descend(SOSR(costs), model, Part(x, y), epochs=200, lr=0.1)
    r = -model(x)[0]
    assert r[0] < 0 and r[1] > 2 and r[2] > 8
    assert int(model(x)[0].argmax()) == 0


def test_a_prepared_model_exports_as_one_graph():
    data = (torch.randn(8, 5, generator=generator()), torch.arange(8) % 3)
    for method in (SOSR(COSTS), AuxCST(COSTS), CSDNN(COSTS, pretrain_epochs=1)):
        model, _ = method.prepare(mlp(5, 3), data)
        model.eval()
        exported = torch.export.export(model, (data[0],)).module()
        torch.testing.assert_close(exported(data[0]), model(data[0]))


# ---- estimators at every block ----


def test_blocks_are_found_in_the_models_csada_makes():
    assert find_blocks(resnet(9, 3)) == ("layer1", "layer2", "layer3", "layer4")
    assert find_blocks(mlp(5, 3, hidden=(4, 4))) == ("relu1", "relu2")
    assert find_blocks(cnn(1, 8, 3, batch_norm=True)) == ("relu1", "pool2", "flatten")
    assert find_blocks(nn.Sequential(mlp(5, 3))) == ("0.relu1",)
    with pytest.raises(InputError, match="found no hidden blocks in Linear; name them"):
        find_blocks(nn.Linear(5, 3))


def test_every_estimator_adds_its_loss_and_none_stays_behind():
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    x, y = torch.randn(7, 5, generator=generator()), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    method = AuxCST(COSTS, alpha=0.5, blocks=("0", "3"))
    model, _ = method.prepare(net, (x, y), generator=generator())
    rows = torch.tensor(COSTS.values, dtype=torch.float32)[y]
    expected = sosr_loss(-model(x), y, rows)
    for head, h in zip(model.heads, (net[0](x), net[:4](x)), strict=True):
        expected = expected + 0.5 * sosr_loss(head(h), y, rows)
    loss = method(model, x, y)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    doubled = method(model, x, y, costs=2 * rows)
    assert doubled > loss


def test_estimators_are_found_inside_a_wrapper():
    """Several devices and mixed precision wrap the model once more."""
    data = (torch.randn(6, 5, generator=generator()), torch.arange(6) % 3)
    method = AuxCST(COSTS)
    model, _ = method.prepare(mlp(5, 3), data)
    assert torch.equal(method(nn.Sequential(model), *data), method(model, *data))


def test_a_block_that_does_not_exist_is_named():
    data = (torch.randn(6, 5), torch.arange(6) % 3)
    with pytest.raises(InputError, match="no block 'layer9'; known: flatten, linear1, relu1, fc"):
        AuxCST(COSTS, blocks=("layer9",)).prepare(mlp(5, 3), data)
    with pytest.raises(InputError, match="call prepare"):
        AuxCST(COSTS)(mlp(5, 3), *data)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_estimators_fit_a_residual_network(precision):
    x, y = torch.randn(4, 3, 8, 8, generator=generator(), dtype=precision), torch.tensor([0, 1, 2, 0])
    net = resnet(9, 3).to(precision).train()
    method = AuxCST(COSTS)
    model, _ = method.prepare(net, (x, y))
    assert all(m.training for m in net.modules())  # the look at the sizes gave every mode back
    assert [head.in_features for head in model.heads] == [64, 128, 256, 512]
    method(model, x, y).backward()


def test_auxcst_learns_digits(digits):
    costs = CostMatrix.pareto(10, seed=0)
    method = AuxCST(costs)
    model, data = method.prepare(mlp(64, 10, seed=0), digits, generator=generator())
    descend(method, model, data, epochs=12)
    assert accuracy(model, digits.test) > 0.75


# ---- a network of its own ----


def test_csdnn_learns_digits(digits):
    costs = CostMatrix.pareto(10, seed=0)
    method = CSDNN(costs, hidden=(48, 32), pretrain_epochs=8)
    model, data = method.prepare(mlp(64, 10), digits, generator=generator())
    widths = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert widths == [48, 32, 10]
    descend(method, model, data, epochs=20)
    assert accuracy(model, digits.test) > 0.75


def test_pretraining_lowers_what_a_layer_learns_from(digits):
    """The pre-trained first layer gives back its input better than an untrained one, whatever the costs."""
    costs = CostMatrix.pareto(10, seed=0)
    x = digits.train.x.flatten(1)
    errors = []
    for epochs in (0, 8):
        model, _ = CSDNN(costs, hidden=(48,), beta=0.0, pretrain_epochs=epochs).prepare(mlp(64, 10), digits)
        weight, bias = (p.detach() for p in model[1].parameters())
        rest = x - (x @ weight.T + bias).sigmoid() @ weight
        errors.append(float((rest - rest.mean(0)).square().sum(1).mean()))  # the best offset taken off
    assert errors[1] < 0.5 * errors[0]


def test_csdnn_is_the_same_for_the_same_seed_and_takes_any_data(digits):
    costs = CostMatrix.pareto(10, seed=0)
    method = CSDNN(costs, hidden=(8,), pretrain_epochs=1)
    part = digits.train

    def states(data, seeds=(0, 0)):
        return [method.prepare(mlp(64, 10), data, generator=generator(s))[0].state_dict() for s in seeds]

    loader = DataLoader(TensorDataset(part.x, part.y), batch_size=50, shuffle=True)
    for data in (digits, (part.x, part.y), loader):
        first, second = states(data)
        assert all(torch.equal(first[name], second[name]) for name in first)
    first, other = states(part, (0, 1))
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"hidden": ()}, "hidden must name at least one width"),
        ({"beta": 1.5}, "beta must lie between 0 and 1, got 1.5"),
    ],
)
def test_csdnn_refuses_what_it_cannot_build(option, message):
    with pytest.raises(InputError, match=message):
        CSDNN(COSTS, **option)


# ---- resampling ----


def test_oversampling_replicates_in_proportion_to_cost():
    """Costs 1, 2, 4 and 40, 40, 100 samples: class 0 is the base (1/40), so 40, 80, 160."""
    part = part_of([40, 40, 100])
    _, grown = Oversampling(COSTS).prepare(None, part, generator=generator())
    assert counts_of(grown) == [40, 80, 160]
    assert set(grown.x.flatten().tolist()) == set(part.x.flatten().tolist())  # nobody is lost
    assert torch.equal(part.y[grown.x.flatten().long()], grown.y)  # everybody keeps the own label


def test_oversampling_never_shrinks_a_class():
    """A dear class that has few samples is not the base, even if a cheap one is large."""
    _, grown = Oversampling(COSTS).prepare(None, part_of([400, 10, 10]), generator=generator())
    assert counts_of(grown) == [400, 800, 1600]


@pytest.mark.parametrize("ratio", [1e4, 1e18, 1e300])
def test_oversampling_grows_to_ten_times_the_data_at_most(ratio):
    """What is added is still in proportion: costs ratio : 2 ratio, so one part to two."""
    part = part_of([20, 20, 20])
    costs = CostMatrix([[0, 1, 0], [ratio, 0, 0], [ratio, ratio, 0]])
    draws = [Oversampling(costs).prepare(None, part, generator=generator(s))[1] for s in (0, 0, 1)]
    first, second, third = counts_of(draws[0])
    assert first == 20 and 595 < len(draws[0]) <= 600
    assert (third - 20) / (second - 20) == pytest.approx(2, abs=0.05)
    assert set(draws[0].x.flatten().tolist()) == set(part.x.flatten().tolist())
    assert torch.equal(draws[0].x, draws[1].x) and not torch.equal(draws[0].x, draws[2].x)


@pytest.mark.parametrize("make", [Undersampling, Costing])
@pytest.mark.parametrize("cheap", [0.0, 1e-18, 1.0])
def test_no_class_disappears_however_little_it_costs(make, cheap):
    part = part_of([50, 3, 10])
    costs = CostMatrix([[0, cheap, 0], [cheap, 0, 0], [1e18, 0, 0]])
    draws = [make(costs).prepare(None, part, generator=generator(s))[1] for s in range(20)]
    assert all(counts_of(draw) == [1, 1, 10] for draw in draws)
    assert len({tuple(draw.x.flatten().tolist()) for draw in draws}) > 5  # which one stays is drawn


def test_undersampling_drops_in_proportion_to_cost():
    """Costs 1, 2, 4 and 100, 100, 40 samples: class 2 is the base (4/40), so 10, 20, 40."""
    part = part_of([100, 100, 40])
    _, shrunk = Undersampling(COSTS).prepare(None, part, generator=generator())
    assert counts_of(shrunk) == [10, 20, 40]
    assert len(set(shrunk.x.flatten().tolist())) == 70  # without replacement
    assert torch.equal(part.y[shrunk.x.flatten().long()], shrunk.y)


def test_costing_keeps_samples_in_proportion_to_cost():
    part = part_of([4000, 4000, 400])
    _, kept = Costing(COSTS).prepare(None, part, generator=generator())
    first, second, third = counts_of(kept)
    assert third == 400  # the dearest are certain
    assert abs(first - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75) and abs(second - 2000) < 5 * np.sqrt(4000 * 0.25)


def test_a_sample_s_own_costs_decide_whether_it_is_kept():
    own = torch.zeros(30, 3)
    own[::3, 1] = 5.0
    part = part_of([30, 0, 0], costs=own)
    _, kept = Costing(COSTS).prepare(None, part, generator=generator())
    assert kept.x.flatten().tolist() == list(range(0, 30, 3))
    assert torch.equal(kept.costs, own[::3])


def test_own_costs_make_the_cost_of_a_class():
    """Class 0's samples cost 1 and 3, so 2 on average: twice class 1's."""
    own = torch.cat([torch.tensor([[0.0, 1, 0], [0, 3, 0]]).repeat(5, 1), torch.tensor([[1.0, 0, 0]]).repeat(10, 1)])
    _, grown = Oversampling(COSTS).prepare(None, part_of([10, 10, 0], costs=own), generator=generator())
    assert counts_of(grown) == [20, 10, 0]
    assert len(grown.costs) == 30


@pytest.mark.parametrize("make", [Oversampling, Undersampling, Costing])
def test_without_costs_nothing_is_resampled(make):
    part = part_of([5, 6, 7])
    _, same = make(CostMatrix.uniform(3, 0.0)).prepare(None, part, generator=generator())
    assert torch.equal(same.x, part.x)


def test_a_class_without_cost_does_not_disappear():
    costs = CostMatrix.single_pair(3, 2, 0)
    _, grown = Oversampling(costs).prepare(None, part_of([20, 20, 10]), generator=generator())
    assert counts_of(grown) == [20, 20, 10]
    _, shrunk = Undersampling(costs).prepare(None, part_of([20, 20, 10]), generator=generator())
    assert counts_of(shrunk) == [1, 1, 10]


@pytest.mark.parametrize("make", [Oversampling, Undersampling, Costing])
def test_only_the_training_part_is_resampled_and_a_seed_repeats_it(make):
    part = part_of([30, 30, 30])
    splits = Splits(part, part, part, ("a", "b", "c"))
    draws = [make(COSTS).prepare(None, splits, generator=generator(seed))[1] for seed in (0, 0, 1)]
    assert len(draws[0].train) != 90 and draws[0].validation is part and draws[0].test is part
    assert torch.equal(draws[0].train.x, draws[1].train.x)
    assert not torch.equal(draws[0].train.x, draws[2].train.x)


@pytest.mark.parametrize("make", [Oversampling, Undersampling, Costing, MetaCost])
def test_data_that_cannot_be_changed_is_refused(make):
    loader = DataLoader(TensorDataset(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)))
    with pytest.raises(InputError, match=r"needs tensors: give \(x, y\) or Splits, not a DataLoader"):
        make(COSTS).prepare(nn.Linear(1, 3), loader, train=lambda model, data: model)


# ---- relabelling ----


class Oracle(nn.Module):
    """Says log p for the sample whose number is its input: an ensemble member with known probabilities."""

    def __init__(self, p):
        super().__init__()
        self.log_p = torch.as_tensor(p).log()

    def forward(self, x):
        return self.log_p[x[:, 0].long()]


def members(n, count):
    rng = np.random.default_rng(0)
    return [rng.dirichlet(np.ones(3), size=n) for _ in range(count)]


@pytest.mark.parametrize("own_costs", [False, True])
@pytest.mark.parametrize("out_of_bag", [False, True])
def test_metacost_relabels_by_least_expected_cost(own_costs, out_of_bag):
    n, bags = 12, 4
    own = torch.tensor(np.random.default_rng(5).uniform(0, 6, (n, 3))) if own_costs else None
    part = part_of([4, 4, 4], costs=own)
    ensemble, seen = members(n, bags), []

    def train(model, data):
        seen.append(set(data.x.flatten().long().tolist()))
        assert len(data) == n and data.x.shape == part.x.shape
        return Oracle(ensemble[len(seen) - 1])

    model = nn.Linear(1, 3)
    same, relabelled = MetaCost(COSTS, bags=bags, out_of_bag=out_of_bag).prepare(
        model, part, train=train, generator=generator()
    )
    assert same is model and len(seen) == bags and relabelled.costs is None and torch.equal(relabelled.x, part.x)
    judged_by_some = 0
    for i in range(n):
        judges = [m for m in range(bags) if not (out_of_bag and i in seen[m])] or list(range(bags))
        judged_by_some += len(judges) < bags
        p = [np.mean([ensemble[m][i][y] for m in judges]) for y in range(3)]
        expected = [0.0, 0.0, 0.0]
        for z in range(3):
            for y in range(3):
                paid = own[i, z] if own_costs and y == int(part.y[i]) else COSTS.values[y, z]
                expected[z] += p[y] * float(paid)
        assert int(relabelled.y[i]) == int(np.argmin(expected))
    assert (judged_by_some > 0) == out_of_bag


def test_metacost_moves_doubtful_samples_to_the_cheap_side():
    """Two classes that overlap; calling 1 a 0 is dear, so the labels of the doubtful become 1."""
    costs = CostMatrix([[0, 1], [9, 0]])
    p = np.array([[0.95, 0.05], [0.85, 0.15], [0.4, 0.6]])
    part = Part(torch.arange(3.0)[:, None], torch.tensor([0, 0, 1]))
    _, relabelled = MetaCost(costs, bags=2).prepare(nn.Linear(1, 2), part, train=lambda model, data: Oracle(p))
    assert relabelled.y.tolist() == [0, 1, 1]


def test_metacost_trains_copies_and_only_changes_the_training_labels(digits):
    small = replace(digits, train=digits.train.take(torch.arange(200)))
    model = mlp(64, 10)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def train(member, data):
        assert member is not model
        return descend(lambda m, x, y: F.cross_entropy(m(x), y), member, data, epochs=5)

    _, data = MetaCost(CostMatrix.uniform(10), bags=3).prepare(model, small, train=train, generator=generator())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert data.test is small.test
    kept = float((data.train.y == small.train.y).float().mean())
    assert kept > 0.9  # equal costs: the likeliest class, mostly the truth


def test_metacost_needs_a_trainer_and_a_bag():
    with pytest.raises(InputError, match="pass train="):
        MetaCost(COSTS).prepare(nn.Linear(1, 3), part_of([2, 2, 2]))
    with pytest.raises(InputError, match="bags must be at least 1, got 0"):
        MetaCost(COSTS, bags=0)


# ---- every method that prepares ----


@pytest.mark.parametrize("given", [True, False], ids=["generator", "no generator"])
@pytest.mark.parametrize(
    ("make", "loader"),
    [(make, False) for make in (SOSR, AuxCST, CSDNN, Oversampling, Undersampling, Costing, MetaCost)]
    + [(make, True) for make in (SOSR, AuxCST, CSDNN)],
)
def test_global_random_state_stays_as_it_was(make, loader, given):
    data = (torch.randn(12, 5, generator=generator()), torch.arange(12) % 3)
    if loader:
        data = DataLoader(TensorDataset(*data), batch_size=4, shuffle=True)
    model = mlp(5, 3)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    make(COSTS).prepare(model, data, train=lambda member, _: member, generator=generator() if given else None)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1]) and states[2] == random.getstate()  # noqa: NPY002


def test_a_cost_regressor_predicts_through_its_layer():
    """-r: the largest score is the smallest cost."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
        layer.bias.zero_()
    model = CostRegressor(nn.Identity(), layer)
    assert model(torch.tensor([[3.0, 1.0]])).argmax(1).tolist() == [1]
