"""The estimators of l_augmented: which are unbiased, which are not and by how much, and when CSADA is cross-entropy."""

import numpy as np
import pytest
import torch
from strategies import conv, mlp
from torch.nn import functional as F

import csada
from csada.methods.csada import (
    CSADA,
    ESTIMATORS,
    PAIR_ESTIMATORS,
    Tasks,
    drawn_tasks,
    pair_tasks,
    pair_weights,
    sample_cdf,
)

COSTS = csada.CostMatrix([[0, 4.0, 1.0, 0], [2.0, 0, 0, 1.0], [0, 3.0, 0, 5.0], [0, 0, 0, 0]])
ATTACK = {"epsilon": 0.5, "step_size": 0.05, "steps": 3, "weight": 2.5, "tau": 2.0}


def problem():
    model = mlp(seed=1)
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 4
    assert set(y.tolist()) == {0, 1, 2, 3}
    return model, x, y


def gradient(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def augmented(model, x, y, method):
    """l_augmented as the paper prints it, one sample and one target at a time."""
    weights = method.costs.weights(method.tau)
    total = 0
    for i in range(len(x)):
        total = total + F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        for z in range(4):
            if weights[y[i], z] > 0:
                r = csada.attack(model, x[i : i + 1], int(y[i]), z, method.epsilon, method.step_size, method.steps)
                loss = F.cross_entropy(model(r.adversarial), y[i : i + 1])
                total = total + method.weight * weights[y[i], z] * loss
    return total / len(x)


def relative(a, b):
    return float((a - b).norm() / b.norm())


def test_full_is_l_augmented():
    model, x, y = problem()
    method = CSADA(COSTS, estimator="full", **ATTACK)
    expected = augmented(model, x, y, method)
    loss = method(model, x, y)
    assert abs((loss - expected).item()) < 1e-12
    assert relative(gradient(model, loss), gradient(model, expected)) < 1e-9


def average_over_pairs(model, x, y, method):
    weights = method.costs.weights(method.tau)
    mean = 0
    for truth, target in np.argwhere(weights > 0):
        tasks = pair_tasks(y, torch.tensor([truth]), torch.tensor([target]), method.estimator)
        loss = F.cross_entropy(model(x), y) if tasks is None else method.loss(model, x, y, tasks)
        mean = mean + weights[truth, target] * gradient(model, loss)
    return mean


def test_unbiased_averages_to_l_augmented_over_all_pairs():
    model, x, y = problem()
    method = CSADA(COSTS, estimator="unbiased", **ATTACK)
    expected = gradient(model, augmented(model, x, y, method))
    assert relative(average_over_pairs(model, x, y, method), expected) < 1e-9


def test_paper_has_exactly_the_extra_term():
    """E[l_stochastic] = l_augmented + lambda/N sum_i (1 - sum_z c~(y_i, z)) l(x_i, y_i): samples not attacked stay in."""
    model, x, y = problem()
    method = CSADA(COSTS, estimator="paper", **ATTACK)
    share = torch.tensor(1 - COSTS.weights(method.tau).sum(1))[y]
    extra = method.weight / len(y) * (share * F.cross_entropy(model(x), y, reduction="none")).sum()
    expected = gradient(model, augmented(model, x, y, method) + extra)
    printed = average_over_pairs(model, x, y, method)
    assert relative(printed, expected) < 1e-9
    assert relative(printed, gradient(model, augmented(model, x, y, method))) > 0.1


def test_class_mean_averages_over_the_attacked():
    model, x, y = problem()
    method = CSADA(COSTS, estimator="class_mean", **ATTACK)
    chosen = y == 2
    r = csada.attack(model, x[chosen], 2, 3, method.epsilon, method.step_size, method.steps)
    expected = F.cross_entropy(model(x), y) + method.weight * F.cross_entropy(model(r.adversarial), y[chosen])
    loss = method.loss(model, x, y, pair_tasks(y, torch.tensor([2]), torch.tensor([3]), "class_mean"))
    assert abs((loss - expected).item()) < 1e-12


@pytest.mark.parametrize("estimator", PAIR_ESTIMATORS)
@pytest.mark.parametrize("truth", [0, 2, 3])
def test_room_beyond_the_attacked_counts_nothing(estimator, truth):
    """A fixed number of tasks gives the loss and the gradient of the attacked samples alone, also when there are none."""
    model, x, y = problem()
    if truth == 3:  # in no sample of the batch
        y[y == 3] = 1
    pair, attacked = (torch.tensor([truth]), torch.tensor([1])), int((y == truth).sum())
    method = CSADA(COSTS, estimator=estimator, **ATTACK)
    expected = method.loss(model, x, y, pair_tasks(y, *pair, estimator))
    slope = gradient(model, expected)
    for capacity in {attacked, attacked + 3, len(y)} - {0}:
        tasks = pair_tasks(y, *pair, estimator, capacity)
        assert len(tasks.sample) == capacity
        loss = method.loss(model, x, y, tasks)
        assert abs((loss - expected).item()) < 1e-12
        assert relative(gradient(model, loss), slope) < 1e-12


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_step_of_fixed_shape_draws_the_same_and_gives_the_same(estimator):
    model, x, y = problem()
    method = CSADA(COSTS, estimator=estimator, tasks=5, **ATTACK)
    capacity = method.capacity(model, y)
    assert (capacity is None) == (estimator == "full")
    for seed in range(6):
        free, fixed = (
            method(model, x, y, generator=torch.Generator().manual_seed(seed), **more)
            for more in ({}, {} if capacity is None else {"capacity": capacity})
        )
        assert abs((free - fixed).item()) < 1e-12
        assert relative(gradient(model, fixed), gradient(model, free)) < 1e-12


@pytest.mark.parametrize("n", [1, 7, 32, 500])
def test_every_attackable_class_of_a_batch_has_room(n):
    method, model = CSADA(COSTS, estimator="paper"), mlp()
    seen = set()
    for seed in range(30):
        y = torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))
        most = int(torch.bincount(y, minlength=4)[:3].max())  # class 3 is never attacked
        room = method.capacity(model, y)
        assert most <= room <= n
        seen.add(room)
    assert len(seen) <= 4  # few shapes, each of which is captured once
    assert method.capacity(conv().train(), y) is None  # batch norm would see the surplus


def enumerate_tasks(model, x, y, method):
    """The average of a method with one task per batch over every task it can draw, by their exact probabilities."""
    weights = torch.tensor(COSTS.weights(method.tau))
    mass = weights[y].sum()
    mean = 0
    for i, z in weights[y].nonzero().tolist():
        scale = mass / len(y) if method.estimator == "per_sample" else torch.ones(())
        tasks = Tasks(torch.tensor([i]), torch.tensor([z]), scale.view(1))
        mean = mean + weights[y[i], z] / mass * gradient(model, method.loss(model, x, y, tasks))
    return mean


def test_per_sample_averages_to_l_augmented_and_task_mean_to_a_multiple_of_its_penalty():
    model, x, y = problem()
    method = CSADA(COSTS, estimator="per_sample", **ATTACK)
    expected = gradient(model, augmented(model, x, y, method))
    assert relative(enumerate_tasks(model, x, y, method), expected) < 1e-9
    clean = gradient(model, F.cross_entropy(model(x), y))
    mass = float(torch.tensor(COSTS.weights(2.0))[y].sum())
    tasks = CSADA(COSTS, estimator="task_mean", **ATTACK)
    assert relative(enumerate_tasks(model, x, y, tasks) - clean, (expected - clean) * len(y) / mass) < 1e-9


@pytest.mark.parametrize("estimator", ["per_sample", "task_mean"])
def test_tasks_are_drawn_in_proportion_and_scaled_as_stated(estimator):
    y = torch.tensor([0, 1, 2, 3, 2, 2])
    weights = pair_weights(COSTS, 2.0, y.device)
    tasks = drawn_tasks(y, weights, 200_000, estimator, torch.Generator().manual_seed(0))
    counts = torch.bincount(tasks.sample * 4 + tasks.target, minlength=24).view(6, 4) / 200_000
    expected = weights.pairs[y] / weights.pairs[y].sum()
    assert (counts - expected).abs().max() < 5e-3 and not counts[expected == 0].any()
    total = float(weights.pairs[y].sum()) / 6 if estimator == "per_sample" else 1.0
    assert float(tasks.coefficient.sum()) == pytest.approx(total)


def test_an_index_of_weight_zero_never_comes():
    cdf = torch.tensor([0.0, 0.0, 0.3, 0.3, 0.9, 0.9], dtype=torch.float64)
    drawn = sample_cdf(cdf, (100_000,), torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {2, 4}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_weight_it_is_cross_entropy_to_the_bit(estimator):
    model = conv(dtype=torch.float32).train()
    model[1].eval()
    x, y = torch.randn(9, 2, 4, 4), torch.arange(9) % 4
    seeded = lambda f: (torch.manual_seed(0), f())[1]  # noqa: E731 - the same dropout for both

    def both(method, y):
        plain = seeded(lambda: F.cross_entropy(model(x), y))
        loss = seeded(lambda: method(model, x, y, generator=torch.Generator().manual_seed(1)))
        assert torch.equal(loss, plain)
        assert torch.equal(gradient(model, loss), gradient(model, plain))

    with torch.random.fork_rng([]):
        both(CSADA(COSTS, estimator=estimator, weight=0.0), y)
        both(CSADA(csada.CostMatrix(np.zeros((4, 4))), estimator=estimator), y)
        if estimator != "paper":  # which, as printed, keeps unattacked samples in its penalty
            both(CSADA(COSTS, estimator=estimator), torch.full((9,), 3))  # class 3 is never attacked


def test_training_batch_norm_never_mixes_clean_and_adversarial():
    """Its statistics after a step are those of two separate forwards."""
    model, other = conv(dtype=torch.float32).train(), conv(dtype=torch.float32).train()
    model[3].p = other[3].p = 0.0
    x, y = torch.randn(8, 2, 4, 4), torch.arange(8) % 4
    method = CSADA(csada.CostMatrix.uniform(4), step_size=0.1, tasks=4)
    tasks = method.draw(y, torch.Generator().manual_seed(0))
    method.loss(model, x, y, tasks)
    attacked = method.attacked(other, x[tasks.sample], y[tasks.sample], tasks.target)
    other(x), other(attacked)
    assert torch.equal(model[1].running_mean, other[1].running_mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "best"}, "unknown estimator 'best'; known: full, paper"),
        ({"weight": -1}, r"weight \(lambda\) must be zero or more, got -1"),
        ({"tasks": 0}, "tasks must be at least 1"),
        ({"tau": -3}, "tau must be a positive number"),
        ({"epsilon": 0}, "epsilon must be a positive number"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(csada.InputError, match=message):
        CSADA(COSTS, **options)
