"""Candidates: which networks are tried beside a given one, how each is trained, and when there is no time for it."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import csada
from csada.classifier import Classifier
from csada.data.splits import Part, Splits
from csada.workflow.candidates import (
    Candidate,
    candidates,
    confusion_of,
    epoch_seconds,
    no_restarts,
    train_candidate,
    train_candidates,
)
from csada.workflow.train import train


@pytest.fixture(scope="module")
def splits():
    return csada.data.load("digits", scale=0.3)


@pytest.fixture(scope="module")
def given(splits):
    return train(splits, "mlp", epochs=4)


@pytest.fixture(scope="module")
def found(given, splits):
    return candidates(given, splits, csada.CostMatrix.pareto(10, seed=0))


def weights(member):
    return torch.cat([v.flatten().double() for v in member.model.state_dict().values()])


def test_small_networks_start_from_fresh_weights_and_train_as_long_as_the_given_one(given, found):
    assert [c.name for c in found] == ["fresh with mixup", "fresh", "second fresh with mixup"]
    assert {(c.start, c.epochs) for c in found} == {("fresh", 4)} and found[0].options["batch_size"] == 16
    assert len({c.options["seed"] for c in found} | {given.training.seed}) == 4


def images(n):
    y = torch.arange(n) % 3
    return Part(torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(n)), y)


def test_residual_networks_restart_from_the_given_weights_for_a_quarter_of_its_epochs(given):
    splits = Splits(images(64), images(32), images(31), ("a", "b", "c"))
    net = csada.models.create("resnet9", 3)
    costs = csada.CostMatrix(csada.CostMatrix.pareto(3).values, splits.classes)
    classifier = Classifier.of(net, splits, architecture="resnet9", arguments={})
    first = candidates(classifier, splits, costs)[1]
    small = {"batch_size": 16, "lr": 0.1 * 16 / 512}  # 64 samples
    usual = {"epochs": 15, "weight_decay": 5e-4, "nesterov": True, "schedule": "one_cycle", "freeze_norm": False}
    assert (first.name, first.start) == ("restart", "given") and first.options.items() >= (small | usual).items()
    known = replace(classifier, training=given.training)  # of four epochs
    member, _ = train_candidate(known, splits, candidates(known, splits, costs)[1])
    assert candidates(known, splits, costs)[1].epochs == 1
    assert not torch.equal(member.model.bn1.running_mean, net.bn1.running_mean)  # batch norm learns


def test_a_network_that_cannot_be_built_again_restarts_from_a_copy(splits):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    own = Classifier.of(network, splits)
    first, *others = candidates(own, splits, csada.CostMatrix.uniform(10))
    assert first.start == "given" and len(others) == 2 and no_restarts(own) is None
    before = weights(own.members[0])
    member, _ = train_candidate(own, splits, replace(first, options=first.options | {"epochs": 1}))
    assert torch.equal(weights(own.members[0]), before) and not torch.equal(weights(member), before)


def test_every_candidate_trains_to_a_member_that_a_file_can_hold(given, splits, found, tmp_path):
    before = weights(given.members[0])
    assert no_restarts(given) is None
    for candidate in found:
        short = replace(candidate, options=candidate.options | {"epochs": 1})
        member, _ = train_candidate(given, splits, short)
        other = Classifier.load(replace(given, members=(member,), training=None).save(tmp_path / "model"))
        assert torch.equal(weights(other.members[0]), weights(member)) and not torch.equal(weights(member), before)
    assert torch.equal(weights(given.members[0]), before)


class Stop(Exception):
    pass


def test_training_resumes_from_its_checkpoint_and_ends_the_same(given, splits, found, tmp_path):
    epochs, candidate = [], found[0]

    def stop(line, total):
        epochs.append((line["epoch"], total))
        if len(epochs) == 2:
            raise Stop

    with pytest.raises(Stop):
        train_candidate(given, splits, candidate, checkpoints=tmp_path, on_epoch=stop)
    resumed, history = train_candidate(given, splits, candidate, checkpoints=tmp_path, on_epoch=stop)
    assert epochs == [(1, 4), (2, 4), (2, 4), (3, 4), (4, 4)]
    assert torch.equal(weights(resumed), weights(train_candidate(given, splits, candidate)[0]))
    assert [line["epoch"] for line in history] == [1, 2, 3, 4]


def names(trained):
    return [candidate.name for candidate, *_ in trained]


def test_what_will_not_fit_into_the_time_is_not_started(given, splits, found):
    started = []
    slow = replace(
        given.training,
        history=tuple(replace(line, seconds=100.0) for line in given.training.history),
        samples={"train": 1},
    )
    known = replace(given, training=slow)
    assert epoch_seconds(known, splits) == pytest.approx(100 * len(splits.train))
    limited = train_candidates(known, splits, found, seconds=60, on_epoch=lambda *_: started.append(1))
    assert names(limited) == [] and not started
    measured = [replace(found[1], options=found[1].options | {"epochs": 10**6})]
    unknown = train_candidates(
        replace(given, training=None), splits, measured, seconds=60, on_epoch=lambda *_: started.append(1)
    )
    assert names(unknown) == [] and len(started) == 2
    other = replace(given.training, environment=replace(given.training.environment, device="another"))
    assert epoch_seconds(replace(given, training=other), splits) is None


def test_a_candidate_that_diverges_is_left_out(given, splits, found, caplog):
    wild = Candidate("wild", "cross_entropy", found[1].options | {"epochs": 1, "lr": 1e20}, found[1].costs)
    with caplog.at_level(logging.WARNING, "csada"):
        assert names(train_candidates(given, splits, [wild, found[1]])) == ["fresh"]
    assert "wild is left out" in caplog.text


def test_the_confusion_is_the_mean_calibrated_probability_by_class(given, splits):
    scores = csada.predict_logits(given.network, splits, part="validation")
    confusion = confusion_of(scores)
    rule = csada.MinimumExpectedCost.calibrated(*scores, csada.CostMatrix.uniform(10))
    threes = rule.probabilities(scores.logits)[scores.labels.numpy() == 3]
    np.testing.assert_allclose(confusion[3], threes.mean(0))
    np.testing.assert_allclose(confusion.sum(1), 1)
