"""The attack against other libraries' and against a plain transcription of Algorithm 1."""

import importlib.util
from pathlib import Path

import pytest
import torch

import csada
from csada import Outcome
from csada.data.augment import Normalization
from csada.data.splits import Part
from csada.models import cnn

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
STEPS, STEP_SIZE, EPSILON = 10, 0.02, 0.1


def from_benchmarks(name):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


peers, transcription = from_benchmarks("peers"), from_benchmarks("transcription")


def digits_model(labels):
    """A CNN that takes pixels in [0, 1], as the other libraries do, and the samples of `labels` it is right about."""
    train = csada.data.load("digits").train
    kept = torch.isin(train.y, torch.tensor(labels))
    x, y = train.x[kept], torch.searchsorted(torch.tensor(labels), train.y[kept])
    part = Part(x, y, Normalization(scale=16))
    model = csada.fit(cnn(1, 8, len(labels)), part, "cross_entropy", epochs=6, lr=0.05, batch_size=32).model
    x, y = x[:200] / 16, y[:200]
    with torch.no_grad():
        right = model(x).argmax(1) == y
    return model, x[right], y[right]


@pytest.fixture(scope="module")
def two_classes():
    return digits_model([3, 8])


@pytest.fixture(scope="module")
def ten_classes():
    return digits_model(list(range(10)))


def peer(name, model, steps, classes):
    try:
        return peers.build(name, model, EPSILON, STEP_SIZE, steps, (1, 8, 8), classes)
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")


def ours(model, x, y, target, steps=STEPS):
    return csada.attack(model, x, y, target, EPSILON, STEP_SIZE, steps, "linf", "sign", (0.0, 1.0))


def predictions(model, x):
    with torch.no_grad():
        return model(x).argmax(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", peers.PEERS)
def test_of_two_classes_the_robust_accuracy_is_the_same(name, two_classes):
    model, x, y = two_classes
    attack = peer(name, model, STEPS, 2)
    kept = predictions(model, ours(model, x, y, 1 - y).adversarial) == y
    kept_by_peer = predictions(model, attack(x, y, 1 - y)) == y
    assert 0.05 < kept.float().mean() < 0.95  # neither side could miss a difference
    assert torch.equal(kept, kept_by_peer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", peers.PEERS)
def test_each_sample_ends_where_the_peer_is_after_as_many_steps(name, ten_classes):
    model, x, y = ten_classes
    target = (y + 1 + torch.arange(len(y)) % 9) % 10
    result = ours(model, x, y, target)
    assert {int(Outcome.REACHED), int(Outcome.REJECTED), int(Outcome.EXHAUSTED)} <= set(result.outcome.tolist())
    for steps in result.steps.unique().tolist():
        if steps == 0:
            continue
        at = result.steps == steps
        theirs = peer(name, model, steps, 10)(x[at], y[at], target[at])
        # a gradient of almost nothing may have another sign there: one pixel in a thousand may differ
        differ = (theirs - result.adversarial[at]).abs() > 1e-5
        assert differ.float().mean() < 1e-3, f"{steps} steps"


def test_the_transcription_makes_the_same_perturbations(ten_classes):
    model, x, y = ten_classes
    target = (y + 1 + torch.arange(len(y)) % 9) % 10
    result = csada.attack(model, x, y, target, EPSILON, 0.05, STEPS)
    delta = transcription.attack(model, x, y, target, EPSILON, 0.05, STEPS)
    assert {int(Outcome.REACHED), int(Outcome.REJECTED), int(Outcome.EXHAUSTED)} <= set(result.outcome.tolist())
    torch.testing.assert_close(delta, result.delta, atol=1e-6, rtol=1e-4)
