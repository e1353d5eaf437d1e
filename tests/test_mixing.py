"""Mixup and distillation: what is mixed, with whom, and what the student learns."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest
from strategies import mlp
from torch import nn
from torch.nn import functional as F

import csada
from csada.errors import InputError
from csada.methods.distillation import Distillation, Teacher
from csada.methods.mixup import Mixup, coefficients, mixed, permutation
from csada.models.members import Member, as_network
from csada.training.step import Graphs

COSTS = csada.CostMatrix([[0, 0, 9.0], [1.0, 0, 0], [0, 0, 0]])
CONFUSION = [[0.8, 0.1, 0.1], [0.3, 0.7, 0.0], [0.1, 0.1, 0.8]]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_coefficients_are_of_the_beta_distribution(alpha):
    drawn = coefficients(alpha, 20_000, torch.device("cpu"), seeded())
    assert kstest(drawn.numpy(), beta(alpha, alpha).cdf).pvalue > 0.01


def test_the_loss_is_cross_entropy_to_the_mixed_labels():
    x, y = torch.randn(32, 5, generator=seeded(1), dtype=torch.float64), torch.arange(32) % 3
    model = mlp(3, 5)
    g = seeded()
    a = coefficients(0.7, 32, y.device, g).double()[:, None]
    partner = permutation(y, g)
    assert sorted(partner.tolist()) == list(range(32)) and partner.tolist() != list(range(32))
    one_hot = F.one_hot(y, 3).double()
    expected = F.cross_entropy(model(a * x + (1 - a) * x[partner]), a * one_hot + (1 - a) * one_hot[partner])
    assert torch.allclose(Mixup(COSTS, alpha=0.7)(model, x, y, generator=seeded()), expected)


def test_aimed_partners_come_by_cost_times_confusion():
    """0 -> 2 is expected to cost 0.9, so class 0 meets class 2 alone; 1 -> 0 costs a third of that."""
    y = torch.arange(300) % 3
    aimed = Mixup(COSTS, partners="cost", confusion=CONFUSION)
    g, met = seeded(), torch.zeros(3, 3)
    for _ in range(100):
        met.index_put_((y, y[aimed.aimed(y, g)]), torch.ones(()), accumulate=True)
    rest = 2 / 9
    expected = [[0, 0, 1], [1 / 3 + rest, rest, rest], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(met / met.sum(1, keepdim=True), expected, atol=0.02)
    few = torch.zeros(4, dtype=torch.long)  # no sample of class 2: any will do
    assert aimed.aimed(few, g).max() < 4
    assert torch.isfinite(aimed(mlp(3, 5), torch.randn(4, 5, dtype=torch.float64), few, generator=g))


def test_fit_takes_the_confusion_as_a_file_would_give_it():
    x, y = torch.randn(24, 5, generator=seeded(1), dtype=torch.float64), torch.arange(24) % 3
    fitted = csada.fit(mlp(3, 5), (x, y), "mixup", COSTS, partners="cost", confusion=CONFUSION, epochs=1)
    assert fitted.method == Mixup(COSTS, partners="cost", confusion=np.array(CONFUSION))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive, got 0.0"),
        ({"partners": "dear"}, "unknown partners 'dear'; known: any, cost"),
        ({"partners": "cost"}, "go together"),
        ({"confusion": CONFUSION}, "go together"),
        ({"partners": "cost", "confusion": np.ones((2, 2))}, r"shape \(2, 2\); \(3, 3\) is needed"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Mixup(COSTS, **options)


def test_class_numbers_as_samples_are_not_mixed():
    with pytest.raises(InputError, match="int64 cannot be mixed"):
        mixed(torch.arange(4), torch.arange(4), torch.ones(4))


def images(n=48):
    x = torch.randn(n, 1, 6, 6, generator=seeded(3))
    return x, torch.arange(n) % 3


def pictures(seed):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3), nn.Dropout(0.5))


def ensemble(*seeds):
    return as_network([Member(pictures(seed)) for seed in seeds], ("identity", "mirror"))


def test_a_teacher_is_a_frozen_copy_in_evaluation_mode():
    x, _ = images()
    network = ensemble(0, 1).train()
    teacher = Teacher(network)
    nets = [pictures(0).eval(), pictures(1).eval()]
    expected = torch.stack([net(v).softmax(1) for net in nets for v in (x, x.flip(-1))]).mean(0)
    assert torch.allclose(teacher(x), expected, atol=1e-6)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(p.requires_grad for p in network.parameters())  # the caller's own are left alone


def test_a_student_learns_what_its_teacher_says_whatever_the_labels():
    x, y = images()
    method = Distillation(COSTS, Teacher(ensemble(0, 1)))
    before = {k: v.clone() for k, v in method.teacher.state_dict().items()}
    fitted = csada.fit(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), (x, y), method, COSTS, epochs=60, lr=0.3)
    told = fitted.model(x).softmax(1)
    wanted = method.teacher(x)
    assert (told - wanted).abs().max() < 0.2 and (told - wanted).abs().mean() < 0.05
    assert all(torch.equal(before[k], v) for k, v in method.teacher.state_dict().items())


def test_a_checkpoint_belongs_to_its_teacher(tmp_path):
    x, y = images()
    student = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def run(seed, epochs):
        method = Distillation(COSTS, Teacher(pictures(seed)))
        return csada.fit(student, (x, y), method, COSTS, epochs=epochs, checkpoint=tmp_path / "c", batch_size=16)

    first = run(0, 2)
    again = run(0, 2)
    assert torch.equal(first.model[1].weight, again.model[1].weight)
    with pytest.raises(InputError, match="with other method"):
        run(1, 2)


class Odd(nn.Linear):
    """A layer of somebody's own, which does not say that it is static."""


def test_a_step_is_captured_only_if_the_teacher_may_be():
    x_model = pictures(0)
    optimizer = torch.optim.SGD(x_model.parameters(), lr=0.1)
    usable = [Graphs(Distillation(COSTS, Teacher(net)), x_model, optimizer).usable for net in (x_model, Odd(36, 3))]
    assert usable == [True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Distillation(COSTS, Teacher(pictures(0)), temperature=0),
        lambda: Distillation(COSTS, Teacher(pictures(0)), alpha=-1),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(InputError):
        make()
