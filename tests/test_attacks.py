"""Algorithm 1 against a transcription of it, one sample at a time, and the promises around it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import conv, mlp
from torch import nn

from csada import InputError, Outcome, attack
from csada.attacks import boundary_distance


def one_sample(model, x, y, z, epsilon, eta, steps, norm="linf", step="gradient"):
    """Algorithm 1 as printed: line by line, every forward anew. Returns delta, outcome, number of accepted steps."""
    predict = lambda d: int(model((x + d)[None]).argmax())  # noqa: E731
    delta = torch.zeros_like(x)
    if predict(delta) != y:
        return delta, Outcome.SKIPPED, 0
    for k in range(1, steps + 1):
        at = delta.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(torch.log_softmax(model((x + at)[None])[0], 0)[z], at)
        if step == "sign":
            gradient = gradient.sign()
        if step == "l2":
            gradient = gradient / gradient.norm()
        new = delta + eta * gradient
        if norm == "linf":
            new = new.clamp(-epsilon, epsilon)
        elif new.norm() > epsilon:
            new = new * epsilon / new.norm()
        if predict(new) not in (y, z):
            return delta, Outcome.REJECTED, k - 1
        if predict(new) == z:
            return new, Outcome.REACHED, k
        delta = new
    return delta, Outcome.EXHAUSTED, steps


CASES = [  # net, norm, step, epsilon, eta, steps
    (mlp, "linf", "gradient", 0.8, 0.1, 6),
    (mlp, "l2", "gradient", 0.8, 0.1, 6),
    (mlp, "linf", "sign", 0.3, 0.06, 5),
    (mlp, "l2", "l2", 0.6, 0.15, 5),
    (conv, "linf", "gradient", 0.5, 0.02, 5),
    (conv, "l2", "l2", 1.0, 0.25, 5),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].__name__}-{c[1]}-{c[2]}")
def test_agrees_with_the_algorithm_as_printed(case):
    net, norm, step, epsilon, eta, steps = case
    seen = set()
    for seed in range(3):
        model = net(seed=seed)
        g = torch.Generator().manual_seed(seed)
        shape = (60, 5) if net is mlp else (40, 2, 4, 4)
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        with torch.no_grad():
            y = model(x).argmax(1)
        y[::7] = (y[::7] + 1) % 4  # some samples are wrong already
        target = (y + torch.randint(1, 4, y.shape, generator=g)) % 4
        result = attack(model, x, y, target, epsilon, eta, steps, norm, step)
        for i in range(len(x)):
            delta, outcome, accepted = one_sample(
                model, x[i], int(y[i]), int(target[i]), epsilon, eta, steps, norm, step
            )
            assert result.outcome[i] == outcome
            assert result.steps[i] == accepted
            assert (result.delta[i] - delta).abs().max() < 1e-9
        seen |= set(result.outcome.tolist())
    assert seen == {0, 1, 2, 3}


class Counting(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.forwards, self.backwards = net, 0, 0

    def forward(self, x):
        self.forwards += 1
        out = self.net(x)
        if out.requires_grad:
            out.register_hook(lambda _: setattr(self, "backwards", self.backwards + 1))
        return out


def batch(model, n=50, seed=0):
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        y = model(x).argmax(1)
    return x, y, (y + 1) % 4


def test_k_steps_take_at_most_k_plus_one_forwards_and_k_backwards():
    model = Counting(mlp())
    x, y, z = batch(model)
    model.forwards = 0
    result = attack(model, x, y, z, step_size=1e-6, steps=7)
    assert (result.outcome == Outcome.EXHAUSTED).any()
    assert (model.forwards, model.backwards) == (8, 7)


def test_leaves_modes_gradients_and_inputs_as_they_were():
    model = conv().train()
    model[1].eval()  # a frozen batch norm inside a training model
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.5)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(6, 2, 4, 4, dtype=torch.float64)
    kept = x.clone()
    attack(model, x, 0, 1, step_size=0.1)
    assert [m.training for m in model] == [True, False, True, True, True, True]
    assert all((p.grad == 0.5).all() for p in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(x, kept) and not x.requires_grad


def test_modes_come_back_when_the_model_raises():
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(5)

        def forward(self, x):
            raise RuntimeError("out of memory")

    model = Breaks().train()
    with pytest.raises(RuntimeError, match="out of memory"):
        attack(model, torch.zeros(2, 5), 0, 1)
    assert model.training and model.norm.training


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from(["linf", "l2"]),
    st.sampled_from(["gradient", "sign", "l2"]),
    st.floats(0.01, 2),
    st.floats(0.001, 1),
    st.booleans(),
)
def test_stays_in_its_ball_and_its_bounds_and_leaves_wrong_samples_alone(seed, norm, step, epsilon, eta, bounded):
    model = mlp(seed=seed % 5)
    x = torch.rand(20, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(seed))
    bounds = (0.0, torch.linspace(1, 1.2, 5, dtype=torch.float64)) if bounded else None
    r = attack(model, x, y, (y + 1) % 4, epsilon, eta, 5, norm, step, bounds)
    size = r.delta.abs().amax(1) if norm == "linf" else r.delta.norm(dim=1)
    assert (size <= epsilon * (1 + 1e-12)).all()
    assert (r.adversarial - x - r.delta).abs().max() < 1e-12  # also what the bounds cut off
    if bounds:
        assert (r.adversarial >= bounds[0]).all() and (r.adversarial <= bounds[1]).all()
    with torch.no_grad():
        wrong = model(x).argmax(1) != y
        now = model(r.adversarial).argmax(1)
    assert torch.equal(r.outcome == Outcome.SKIPPED, wrong)
    assert torch.equal(r.adversarial[wrong], x[wrong]) and (r.steps[wrong] == 0).all()
    assert torch.equal(now == (y + 1) % 4, (r.outcome == Outcome.REACHED) | (wrong & (now == (y + 1) % 4)))
    kept = (r.outcome == Outcome.EXHAUSTED) | (r.outcome == Outcome.REJECTED)
    assert (now[kept] == y[kept]).all()


def test_each_sample_is_attacked_as_if_it_were_alone():
    model = mlp()
    x, y, z = batch(model)
    together = attack(model, x, y, z, 0.5, 0.05)
    for i in range(len(x)):
        alone = attack(model, x[i : i + 1], y[i : i + 1], z[i : i + 1], 0.5, 0.05)
        assert (together.delta[i] - alone.delta[0]).abs().max() < 1e-12


def test_the_trajectory_starts_at_zero_ends_at_delta_and_moves_by_accepted_steps():
    model = mlp()
    x, y, z = batch(model)
    r = attack(model, x, y, z, 0.5, 0.05, 6, trajectory=True)
    assert r.trajectory.shape == (7, *x.shape)
    assert not r.trajectory[0].any() and torch.equal(r.trajectory[-1], r.delta)
    moved = (r.trajectory.diff(dim=0) != 0).any(-1).sum(0)
    assert torch.equal(moved, r.steps)


def test_relabelling_classes_changes_nothing():
    model = mlp()
    x, y, z = batch(model)
    order = torch.tensor([2, 0, 3, 1])  # new class k is old class order[k]
    renamed = nn.Sequential(model[0], model[1], nn.Linear(16, 4, dtype=torch.float64))
    with torch.no_grad():
        renamed[2].weight.copy_(model[2].weight[order])
        renamed[2].bias.copy_(model[2].bias[order])
    new = order.argsort()
    one, two = attack(model, x, y, z, 0.5, 0.05), attack(renamed, x, new[y], new[z], 0.5, 0.05)
    assert (one.delta - two.delta).abs().max() < 1e-12 and torch.equal(one.outcome, two.outcome)


def test_under_bf16_autocast_delta_stays_single():
    model = mlp(dtype=torch.float32)
    x, y, z = batch(model.double())
    model.float()
    gradients = []
    with torch.autocast("cpu", torch.bfloat16):
        r = attack(model, x.float(), y, z, 0.5, 0.05)
        assert model(x.float()).dtype == torch.bfloat16
    assert r.delta.dtype == torch.float32 and (r.outcome == Outcome.REACHED).any()
    assert not torch.equal(r.delta, r.delta.bfloat16().float()), gradients


def test_inside_no_grad_it_still_ascends():
    model = mlp()
    x, y, z = batch(model)
    with torch.no_grad():
        assert attack(model, x, y, z, 0.5, 0.05).delta.any()


class Scores(nn.Module):
    """The latent scores of the paper's examples: one number in, scores slope * delta out."""

    def __init__(self, slopes):
        super().__init__()
        self.slopes = torch.tensor(slopes, dtype=torch.float64)

    def forward(self, x):
        return x * self.slopes


def test_theorem_1_binary_targeted_and_untargeted_have_the_same_maximiser():
    """With two classes, raising p_z is lowering p_y: the sign steps of both problems agree, and so do the maximisers."""
    for seed in range(20):
        model = mlp(classes=2, seed=seed)
        x, y, _ = batch(model, 10, seed)
        z = 1 - y
        targeted = attack(model, x, y, z, 0.3, 0.05, 4, step="sign")
        at = x.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(at), y, reduction="sum")
        (untargeted,) = torch.autograd.grad(loss, at)
        first = attack(model, x, y, z, 0.3, 0.05, 1, step="sign")
        assert torch.allclose(first.delta, 0.05 * untargeted.sign(), atol=1e-12)
        grid = torch.linspace(-0.3, 0.3, 41, dtype=torch.float64)
        line = x[0] + grid[:, None] * targeted.delta[0].sign()
        p = model(line).softmax(1)
        assert p[:, z[0]].argmax() == (-p[:, y[0]].log()).argmax()


def test_with_three_classes_targeted_is_not_untargeted():
    """The paper's counter-example: r = (3, 2, -10) delta. The loss is largest at -epsilon, p_z for a positive delta."""
    model, epsilon = Scores([3.0, 2.0, -10.0]), 1.0
    deltas = torch.linspace(-epsilon, epsilon, 2001, dtype=torch.float64)[:, None]
    p = model(deltas).softmax(1)
    assert float(deltas[(-p[:, 0].log()).argmax()]) == -epsilon
    best = float(deltas[p[:, 1].argmax()])
    assert best > 0
    r = attack(model, torch.full((1, 1), 1e-6, dtype=torch.float64), 0, 1, epsilon, 0.01, 2000)
    assert abs(float(r.delta) - best) < 2e-3 and r.outcome[0] == Outcome.EXHAUSTED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": 0}, "sample 0: the target 0 is the true class"),
        ({"epsilon": 0}, "epsilon must be a positive number, got 0"),
        ({"step_size": -1}, "step_size must be a positive number, got -1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"norm": "l1"}, "unknown norm 'l1'; known: linf, l2"),
        ({"step": "newton"}, "unknown step 'newton'; known: gradient, sign, l2"),
        ({"target": 9}, "class 9 does not exist: the model scores 4 classes"),
        ({"y": -1}, "class -1 does not exist"),
        ({"x": torch.zeros(0, 5)}, "x is empty"),
        ({"x": torch.zeros(2, 5, dtype=torch.uint8)}, "floating point"),
        ({"bounds": (0.5, 1.0)}, "x leaves the bounds before any attack"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"x": torch.zeros(2, 5, dtype=torch.float64), "y": 0, "target": 1} | change
    with pytest.raises(InputError, match=message):
        attack(mlp(), **arguments)


def test_a_model_that_returns_nan_is_named():
    model = mlp()
    with torch.no_grad():
        model[2].bias[1] = float("nan")
    with pytest.raises(InputError, match=r"the model returned .*nan.* for sample 0"):
        attack(model, torch.zeros(2, 5, dtype=torch.float64), 0, 1)


def test_outcomes_are_named_numbers():
    assert [o.name for o in Outcome] == ["SKIPPED", "REJECTED", "REACHED", "EXHAUSTED"]
    assert np.array_equal([int(o) for o in Outcome], [0, 1, 2, 3])


def test_the_distance_to_the_boundary_is_exact_for_a_linear_model():
    model = nn.Linear(5, 4, dtype=torch.float64)
    x = torch.randn(30, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distance, beyond = boundary_distance(model, x)
    scores, w = model(x).detach(), model.weight.detach()
    for i in range(len(x)):
        own = int(scores[i].argmax())
        to = [
            (float("inf") if k == own else (scores[i, own] - scores[i, k]) / (w[own] - w[k]).norm()) for k in range(4)
        ]
        assert float(distance[i]) == pytest.approx(float(min(to)), rel=1e-9)
        assert int(beyond[i]) == int(np.argmin(to))


def test_the_distance_to_the_boundary_of_a_net_crosses_it_and_hardly_less_would():
    model = mlp()
    x, own, _ = batch(model)
    distance, beyond = boundary_distance(model, x)
    assert torch.isfinite(distance).all() and (beyond != own).all() and (distance > 0).all()
    wide = boundary_distance(Scores([1.0, 0.5]), torch.full((1, 1), -1.0, dtype=torch.float64))[0]
    assert float(wide) == pytest.approx(1.0)
    assert boundary_distance(nn.Sequential(nn.Linear(5, 4, dtype=torch.float64)), x, steps=0)[0].isinf().all()


def test_a_forward_of_ones_own_is_attacked_in_its_place_always_with_the_whole_batch():
    """As a text is at its embeddings: beside the points it takes what belongs to each sample, here a mask."""
    torch.manual_seed(0)
    head, x = nn.Linear(6, 3), torch.randn(40, 6)
    mask = (torch.rand(40, 6) < 0.7).float()
    y = head(x * mask).argmax(1)
    settings = {"epsilon": 2.0, "step_size": 0.5, "steps": 40}
    seen = []

    def forward(points):
        seen.append(len(points))
        return head(points * mask)

    result = attack(head, x, y, (y + 1) % 3, forward=forward, **settings)
    assert set(seen) == {40} and (result.outcome == Outcome.REACHED).sum() > 10
    assert (result.delta[mask == 0] == 0).all() and result.delta.abs().sum() > 0
    alone = attack(head, x[:1], y[:1], (y[:1] + 1) % 3, forward=lambda p: head(p * mask[:1]), **settings)
    torch.testing.assert_close(alone.delta[0], result.delta[0])
