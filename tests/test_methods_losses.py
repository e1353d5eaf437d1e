"""Each loss against its formula written out in loops, its gradient against differences, and both where p = 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.methods.adjusted_penalty import AdjustedPenalty
from csada.methods.auxcst import AuxCST
from csada.methods.base import log_one_minus_p
from csada.methods.cost_weighted import CostWeighted
from csada.methods.expected_cost import ExpectedCost
from csada.methods.penalty import Penalty
from csada.methods.pgd_training import PGDTraining
from csada.methods.sampling import Costing
from csada.methods.sosr import SOSR

COSTS = CostMatrix.pareto(4, seed=3)
SAMPLE_COSTS = np.random.default_rng(9).uniform(0, 5, (6, 4))


def softmax(row):
    exponentials = [math.exp(v - max(row)) for v in row]
    return [e / sum(exponentials) for e in exponentials]


def penalty(row, y, c):
    p = softmax(row)
    return sum(-c[z] * math.log(1 - p[z]) for z in range(len(row)))


def adjusted_penalty(row, y, c):
    return -math.log(softmax(row)[y]) + 5 * penalty(row, y, c)


def expected_cost(row, y, c):
    p = softmax(row)
    return sum(c[z] * p[z] for z in range(len(row)))


def cost_weighted(row, y, c):
    k = len(row)
    mean = sum(sum(COSTS.values[j]) / (k - 1) for j in range(k)) / k
    return sum(c) / (k - 1) / mean * -math.log(softmax(row)[y])


def sosr(row, y, c):  # on scores: the cost estimates are their negatives
    total = 0.0
    for k in range(len(row)):
        sign = 1 if k == y else -1
        total += math.log(1 + math.exp(sign * (-row[k] - c[k])))
    return total


LOSSES = {
    "penalty": (Penalty(COSTS), penalty),
    "adjusted_penalty": (AdjustedPenalty(COSTS), adjusted_penalty),
    "expected_cost": (ExpectedCost(COSTS), expected_cost),
    "cost_weighted": (CostWeighted(COSTS), cost_weighted),
    "sosr": (SOSR(COSTS), sosr),
}
every_loss = pytest.mark.parametrize(("method", "formula"), LOSSES.values(), ids=list(LOSSES))


def batch(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64) * 3
    return logits.to(dtype), torch.tensor([0, 1, 2, 3, 3, 1])


@every_loss
def test_a_loss_is_the_mean_of_its_formula(method, formula):
    logits, y = batch()
    expected = np.mean([formula(r.tolist(), int(k), COSTS.values[k].tolist()) for r, k in zip(logits, y, strict=True)])
    assert abs(float(method(nn.Identity(), logits, y)) - expected) < 1e-9


@every_loss
def test_a_sample_s_own_costs_take_the_place_of_its_class_s(method, formula):
    logits, y = batch()
    rows = zip(logits, y, SAMPLE_COSTS, strict=True)
    expected = np.mean([formula(row.tolist(), int(k), c.tolist()) for row, k, c in rows])
    own = torch.tensor(SAMPLE_COSTS)
    assert abs(float(method(nn.Identity(), logits, y, costs=own)) - expected) < 1e-9


@every_loss
def test_gradients_agree_with_differences(method, formula):
    logits, y = batch()
    assert torch.autograd.gradcheck(lambda v: method(nn.Identity(), v, y), logits.requires_grad_())


@every_loss
@pytest.mark.parametrize("size", [80.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_certainty_costs_a_finite_amount(method, formula, size, dtype):
    """p = 1 for the truth, p = 1 for a mistake, p = 0 for both, and a tie between two classes."""
    logits = size * torch.tensor([[1, -1, -1, -1], [-1, 1, -1, -1], [-1, -1, 1, -1], [1, 1, -1, -1]], dtype=dtype)
    logits.requires_grad_()
    loss = method(nn.Identity(), logits, torch.zeros(4, dtype=torch.long))
    loss.backward()
    assert loss.dtype == torch.float32 and torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_a_certain_mistake_is_still_unlearnt():
    """At p_z = 1 the penalty is linear in the logits, so its gradient is the cost, not zero and not NaN."""
    logits = torch.tensor([[-80.0, 80.0, -80.0]], requires_grad=True)
    loss = Penalty(CostMatrix.single_pair(3, 0, 1, cost=2.0))(nn.Identity(), logits, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(2 * (160 - math.log(2)))
    assert logits.grad[0].tolist() == pytest.approx([-1, 2, -1], rel=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 50])
def test_log_one_minus_p_keeps_small_probabilities(classes):
    """1 - p loses p below 1e-16; the logarithm here does not."""
    logits = torch.zeros(1, classes, dtype=torch.float64)
    logits[0, 0] = 60.0
    p = math.exp(-60) / (1 + (classes - 1) * math.exp(-60))
    result = log_one_minus_p(logits)[0]
    assert float(result[1]) == pytest.approx(-p, rel=1e-12)
    assert float(result[0]) == pytest.approx(math.log((classes - 1) * p), rel=1e-12)


def test_one_pair_gives_equation_3():
    logits, y = batch()
    method = Penalty(CostMatrix.single_pair(4, 3, 1))
    p = logits.softmax(1)
    expected = -(torch.log(1 - p[:, 1]) * (y == 3)).sum() / len(y)
    torch.testing.assert_close(method(nn.Identity(), logits, y), expected)


def test_equal_costs_weigh_nothing():
    logits, y = batch()
    for cost in (1.0, 7.5):
        weighted = CostWeighted(CostMatrix.uniform(4, cost))(nn.Identity(), logits, y)
        torch.testing.assert_close(weighted, F.cross_entropy(logits, y))


def test_without_costs_the_adjusted_penalty_is_cross_entropy():
    logits, y = batch()
    loss = AdjustedPenalty(CostMatrix.uniform(4, 0.0))(nn.Identity(), logits, y)
    torch.testing.assert_close(loss, F.cross_entropy(logits, y))


def test_the_resampling_methods_descend_on_plain_cross_entropy():
    logits, y = batch()
    torch.testing.assert_close(Costing(COSTS)(nn.Identity(), logits, y), F.cross_entropy(logits, y))


def test_alpha_zero_is_cross_entropy_and_the_penalty_grows_in_proportion_to_alpha():
    logits, y = batch()
    plain, half, whole = (AdjustedPenalty(COSTS, alpha=alpha)(nn.Identity(), logits, y) for alpha in (0, 0.5, 1))
    torch.testing.assert_close(plain, F.cross_entropy(logits, y))
    torch.testing.assert_close(2 * (half - plain), whole - plain)


@pytest.mark.parametrize("alpha", [-1e-9, math.inf, -math.inf, math.nan])
def test_an_alpha_that_is_no_weight_is_refused(alpha):
    with pytest.raises(InputError, match=f"alpha must be finite and zero or more, got {alpha}"):
        AdjustedPenalty(COSTS, alpha=alpha)


@pytest.mark.parametrize("make", [AdjustedPenalty, AuxCST])
def test_a_negative_alpha_would_reward_costly_errors_and_is_refused(make):
    with pytest.raises(InputError, match=r"alpha must be .*zero or more, got -1"):
        make(COSTS, alpha=-1.0)


# ---- training against untargeted attacks ----


def small_net():
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    torch.set_rng_state(torch_state)
    return net


def points():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64), batch()[1]


def test_one_signed_step_is_fgsm():
    net, (x, y) = small_net().eval(), points()
    at = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(net(at), y), at)
    method = PGDTraining(COSTS, weight=3.0, epsilon=0.1, step_size=0.1, steps=1)
    expected = F.cross_entropy(net(x), y) + 3 * F.cross_entropy(net(x + 0.1 * gradient.sign()), y)
    torch.testing.assert_close(method(net, x, y), expected)


def test_the_attack_raises_the_loss_and_stays_in_its_ball_and_bounds():
    net, (x, y) = small_net().eval(), points()
    method = PGDTraining(COSTS, epsilon=0.2, step_size=0.1, steps=5, bounds=(-1.0, 1.0), random_start=True)
    x = x.clamp(-1, 1)
    adversarial = method.attacked(net, x, y, torch.Generator().manual_seed(0))
    assert F.cross_entropy(net(adversarial), y) > F.cross_entropy(net(x), y) + 0.02
    assert float((adversarial - x).abs().max()) <= 0.2 + 1e-12
    assert float(adversarial.abs().max()) <= 1


def test_the_attack_leaves_modes_gradients_and_statistics_alone():
    net, (x, y) = small_net().train(), points()
    net[1].eval()  # frozen batch norm
    before = {name: value.clone() for name, value in net.state_dict().items()}
    PGDTraining(COSTS).attacked(net, x, y)
    assert [m.training for m in net] == [True, False, True, True, True]
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_random_start_asks_for_its_generator():
    with pytest.raises(InputError, match="needs a generator"):
        PGDTraining(COSTS, random_start=True)(small_net(), *points())


def test_the_attack_costs_as_many_passes_as_steps():
    calls = []
    net = small_net().eval()
    net.register_forward_hook(lambda *_: calls.append(1))
    PGDTraining(COSTS, steps=4).attacked(net, *points())
    assert len(calls) == 4
