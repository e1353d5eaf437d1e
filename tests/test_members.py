"""Several networks, and several views of a sample, as one classifier."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from test_classifier import edit
from torch import nn
from torch.utils.data import TensorDataset

import csada
from csada.classifier import Classifier, Member
from csada.costs import CostMatrix
from csada.data.augment import VIEWS, Augmentation, allowed_views, random_right_angle
from csada.data.splits import Part
from csada.decisions import Decision, MinimumExpectedCost
from csada.errors import InputError
from csada.evaluation import predict_logits
from csada.models import create
from csada.models.members import as_network
from csada.workflow.fit import improve
from csada.workflow.train import train
from csada.workflow.tune import tune

COSTS = CostMatrix.pareto(10, seed=0)
BOTH = ("identity", "mirror")


@pytest.fixture(scope="module")
def digits():
    """As if a mirrored or turned digit were the same."""
    data = csada.data.load("digits", scale=0.3)
    return replace(data, train=replace(data.train, augmentation=Augmentation(flip=True, right_angles=True)))


@pytest.fixture(scope="module")
def three(digits):
    """Two architectures."""
    return [train(digits, name, epochs=8, seed=seed) for name, seed in (("cnn", 0), ("mlp", 1), ("cnn", 2))]


@pytest.fixture(scope="module")
def decided(three, digits):
    """Three members, each with its own temperature and weight, two views, and a rule with vector scaling."""
    made = Classifier.together(three, views=BOTH)
    numbers = zip(made.members, (0.5, 1.0, 2.0), (1, 3, 2), strict=True)
    made = replace(made, members=tuple(replace(m, temperature=t, weight=w) for m, t, w in numbers), costs=COSTS)
    rule = MinimumExpectedCost.calibrated(*made.scores(digits, "validation"), COSTS, "vector")
    return replace(made, decision=Decision.of(rule))


# -- scores


def test_the_scores_are_the_mean_probability_over_members_and_views(decided, digits):
    """Against NumPy, member by member and view by view."""
    x = digits.test.batch(torch.arange(len(digits.test))).x
    with torch.inference_mode():
        stored = [
            (m.model(seen).double().numpy(), m.temperature, m.weight)
            for m in decided.members
            for seen in (x, x.flip(3))
        ]
    expected = logsumexp([log_softmax(z / t, 1) + np.log(w / 12) for z, t, w in stored], axis=0)
    found = decided.logits(digits.test.x)
    assert found.dtype == torch.float32 and torch.equal(decided.scores(digits).logits, found)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    assert (np.abs(expected - log_softmax(stored[0][0], 1)).max(1) > 0.01).all()  # one member alone says something else
    predicted = np.asarray(decided.rule(expected))
    for e in (decided.evaluate(digits), csada.evaluate(decided.network, digits, COSTS, decided.rule)):
        assert e.accuracy == np.mean(predicted == digits.test.y.numpy())
    assert np.array_equal(decided.predict(digits.test.x), predicted)


def test_one_member_as_it_is_scores_to_the_bit_as_its_network_does(three, digits):
    one = three[0]
    assert Classifier.together([one]).network is one.network is one.members[0].model
    assert torch.equal(one.logits(digits.test.x), predict_logits(one.network, digits).logits)
    cooler = replace(one, members=(replace(one.members[0], temperature=2.0),))
    expected = log_softmax(one.logits(digits.test.x).double().numpy() / 2, 1)
    np.testing.assert_allclose(cooler.logits(digits.test.x).numpy(), expected, atol=1e-6)


def test_scores_of_great_certainty_stay_finite():
    network = as_network([Member(nn.Identity())] * 2, ("identity",))
    np.testing.assert_allclose(network(torch.tensor([[1e4, 0.0, -1e4]])), [[0, -1e4, -2e4]])


def test_a_batch_holds_so_many_values_and_small_samples_come_as_before():
    """Large images would fill the memory; those of 64 pixels and rows come 1,024 at a time."""
    seen = []

    class Net(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return x.flatten(1)[:, :2]

    def lengths(x, of=tuple):
        seen.clear()
        predict_logits(Net(), of((x, torch.zeros(len(x), dtype=torch.int64))))
        return seen[:]

    for small in (torch.zeros(1500, 5), torch.zeros(1).expand(1500, 3, 64, 64)):
        assert lengths(small) == [1024, 476]
    large = torch.zeros(1).expand(400, 3, 128, 128)
    for of in (tuple, lambda xy: Part(*xy), lambda xy: TensorDataset(*xy)):
        assert lengths(large, of) == [341, 59]


# -- views


def test_the_views_are_those_that_training_shows(digits):
    x = torch.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4)
    shown = {name: view(x) for name, view in VIEWS.items()}
    assert torch.equal(shown["identity"], x) and torch.equal(shown["mirror"], x.flip(-1))
    assert np.array_equal(shown["turn90"], np.rot90(x, 1, (2, 3)))
    many = random_right_angle(x[:1].expand(200, -1, -1, -1), torch.Generator().manual_seed(0))
    found = {tuple(image.flatten().tolist()) for image in many}
    assert found == {tuple(shown[name][0].flatten().tolist()) for name in VIEWS if name != "mirror"}


@pytest.mark.parametrize(
    ("augmentation", "shape", "allowed"),
    [
        (Augmentation(padding=2), (1, 8, 8), ("identity",)),
        (Augmentation(flip=True), (3, 8, 6), BOTH),
        (Augmentation(right_angles=True), (3, 8, 8), ("identity", "turn90", "turn180", "turn270")),
        (Augmentation(flip=True, right_angles=True), (3, 8, 8), tuple(VIEWS)),
        (Augmentation(flip=True, right_angles=True), (64,), ("identity",)),
    ],
)
def test_only_what_training_did_is_allowed(augmentation, shape, allowed):
    assert allowed_views(augmentation, shape) == allowed


def test_a_view_that_training_never_showed_is_refused(digits):
    plain = csada.data.load("digits", scale=0.1)
    one = train(plain, "mlp", epochs=1)
    assert one.allowed_views == ("identity",)
    with pytest.raises(InputError, match=r"digits were not mirrored in training: .*; allowed views: identity$"):
        replace(one, views=BOTH)
    with pytest.raises(InputError, match="not turned by right angles in training"):
        replace(one, views=("turn90",))
    for views, message in (
        ((), "views are none"),
        (BOTH[:1] * 2, "identity, identity"),
        (("flip",), "known: identity"),
    ):
        with pytest.raises(InputError, match=message):
            replace(one, views=views)
    for shape, view in (((64,), "mirror"), ((1, 4, 16), "turn90")):
        with pytest.raises(InputError, match=f"have no view {view}; possible: identity"):
            replace(one, input=replace(one.input, shape=shape), views=(view,), allowed_views=("identity", view))
    made = Classifier.of(create("mlp", 10, features=64), digits)  # what the data says of training
    assert made.allowed_views == tuple(VIEWS)
    assert Classifier.together([made, one]).allowed_views == ("identity",)


# -- put together


def test_put_together_they_know_all_training_samples(three, digits):
    half = replace(three[0], trained_on=three[0].trained_on[::2])
    made = Classifier.together([half, three[1]])
    assert np.array_equal(made.trained_on, three[1].trained_on) and len(made.members) == 2
    assert made.architecture == "cnn + mlp" and made.costs is None
    costly = replace(three[1], costs=COSTS)
    assert Classifier.together([three[0], costly]).costs is COSTS
    for others, message in (
        ([], "no classifiers"),
        ([costly, replace(three[0], costs=CostMatrix(COSTS.values + 1 - np.eye(10), COSTS.classes))], "other costs"),
        ([three[0], replace(three[1], classes=tuple("abcdefghij"))], "classifier 2 has other classes: "),
        ([three[0], replace(three[1], input=replace(three[1].input, dtype="float32"))], "classifier 2 takes .*float32"),
    ):
        with pytest.raises(InputError, match=message):
            Classifier.together(others)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (lambda: Member(create("mlp", 7, features=64)), "member 2 scores 7 classes; 10 are needed"),
        (lambda: Member(create("mlp", 10, features=63)), "member 2 does not take samples of 1 x 8 x 8 uint8: "),
        (lambda: Member(create("mlp", 10, features=64), temperature=0.0), "temperature is 0.0; a number above zero"),
        (lambda: Member(create("mlp", 10, features=64), temperature=float("nan")), "temperature is nan"),
        (lambda: Member(create("mlp", 10, features=64), weight=-1.0), "weight is -1.0; a number above zero"),
    ],
)
def test_a_member_that_does_not_fit_is_refused_in_one_line(three, member, message):
    with pytest.raises(InputError, match=message) as error:
        replace(three[0], members=(three[0].members[0], member()))
    assert "\n" not in str(error.value)


# -- files


def test_members_and_views_come_back(decided, digits, tmp_path):
    folder = decided.save(tmp_path / "model")
    names = {"model.safetensors", "model-2.safetensors", "model-3.safetensors"}
    assert {name for name in os.listdir(folder) if name.endswith("safetensors")} == names | {"arrays.safetensors"}
    back = Classifier.load(folder)
    assert torch.equal(back.logits(digits.test.x), decided.logits(digits.test.x))
    assert back.views == BOTH and back.allowed_views == tuple(VIEWS)
    for ours, theirs in zip(decided.members, back.members, strict=True):
        for name in ("architecture", "arguments", "temperature", "weight"):
            assert getattr(ours, name) == getattr(theirs, name)


def test_saving_fewer_members_leaves_no_stale_weights_and_no_gap(decided, three, tmp_path):
    folder = decided.save(tmp_path / "model")
    for name in ("model-9.safetensors", "notes.txt"):
        (folder / name).write_text("mine")
    three[0].save(folder)
    kept = {"arrays.safetensors", "costs.csv", "model.json", "model.safetensors", "model-9.safetensors", "notes.txt"}
    assert set(os.listdir(folder)) - {"costs.csv"} == kept - {"costs.csv"}
    assert len(Classifier.load(folder).members) == 1
    unsaved = replace(decided, members=(*decided.members[:2], Member(decided.members[2].model)))
    with pytest.raises(InputError, match=r"member 3 cannot be built again"):
        unsaved.save(folder)
    assert set(os.listdir(folder)) - {"costs.csv"} == kept - {"costs.csv"}


def test_a_folder_from_before_there_were_members_loads(three, digits, tmp_path):
    folder = three[0].save(tmp_path / "model")
    for path in (("allowed_views",), ("members", 0, "temperature"), ("members", 0, "weight")):
        edit(folder, *path, remove=True)
    back = Classifier.load(folder)
    assert json.loads((folder / "model.json").read_text())["format"] == 2 and back.allowed_views == ("identity",)
    assert torch.equal(back.logits(digits.test.x), three[0].logits(digits.test.x))


# -- in the commands


def test_the_rule_is_chosen_for_all_members_and_none_alone_is_trained_further(decided, digits, tmp_path):
    made = improve(decided, digits, COSTS, options={"epochs": 0})
    assert made.members == decided.members and made.views == BOTH
    expected = decided.scores(digits, "test").logits.numpy()
    assert np.array_equal(made.evidence.logits("before"), expected)
    assert made.evidence.architecture == "cnn + mlp + cnn, views identity, mirror"
    text = (made.save(tmp_path / "model") / "README.md").read_text()
    for line in ("| 1 | cnn | 0.5 | 1 |", "| 2 | mlp | 1 | 3 |", "| 3 | cnn | 2 | 2 |", "identity, mirror"):
        assert line in text
    for train_further in (
        lambda: improve(decided, digits, COSTS, options={"epochs": 1}),
        lambda: tune(decided, digits, COSTS, tmp_path / "tuned", trials=1, epochs=1),
    ):
        with pytest.raises(InputError, match=r"3 members, .*cannot be trained further.*epochs 0"):
            train_further()


def test_one_member_is_trained_further_under_its_views(digits, tmp_path):
    one = replace(train(digits, "cnn", epochs=1), views=BOTH)
    made = improve(one, digits, COSTS, "cross_entropy", {"epochs": 5, "lr": 0.1})
    evidence = made.evidence
    assert made.views == BOTH and evidence.chosen.startswith("after")
    assert np.array_equal(made.scores(digits).logits.numpy(), evidence.logits("after"))
    assert np.array_equal(one.scores(digits).logits.numpy(), evidence.logits("before"))
    tuned = tune(one, digits, COSTS, tmp_path / "tuned", method="cost_weighted", trials=1, epochs=1)[1]
    assert tuned.views == BOTH and len(tuned.members) == 1


def test_one_onnx_file_holds_all_members_and_views(decided, digits, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    classifier = replace(decided, views=("identity", "mirror", "turn90"))
    written = classifier.export(tmp_path / "model.onnx")
    assert written.difference < 1e-4
    assert written.about.card["views"] == ["identity", "mirror", "turn90"]
    assert written.about.card["members"] == [("cnn", 0.5, 1), ("mlp", 1, 3), ("cnn", 2, 2)]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    chosen, probability, expected_cost, refer, *_ = session.run(None, {"input": digits.test.x.numpy()})
    ours = classifier.decide(digits.test.x)
    assert np.array_equal(chosen, ours[0]) and np.array_equal(refer, ours[3]) and len(np.unique(chosen)) > 5
    np.testing.assert_allclose(probability, ours[1], atol=1e-4)
    np.testing.assert_allclose(expected_cost, ours[2], atol=1e-4 * COSTS.values.max())
