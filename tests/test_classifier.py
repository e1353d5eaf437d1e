"""Classifier: any network in one line; what is saved comes back; what was damaged or foreign says so in one line."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from torch import nn

import csada
from csada import models
from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.decisions import Abstention, Decision, MinimumExpectedCost, Scaling
from csada.errors import InputError
from csada.models import weights
from csada.reading import sha256
from csada.report.card import card, verdict
from csada.workflow.evaluate import judge
from csada.workflow.fit import improve
from csada.workflow.train import train
from csada.workflow.tune import tune

COSTS = CostMatrix.pareto(10, seed=0)
TEN = tuple(np.linspace(0.5, 1.5, 10).tolist())
DECISIONS = {
    "argmax": Decision(),
    "rule": Decision(1.3, strength=1.0),
    "everything": Decision(0.8, Scaling(TEN, TEN[::-1]), (0.0, *TEN[1:]), 0.7, 0.05),
}


@pytest.fixture(scope="module")
def digits():
    return csada.data.load("digits", scale=0.2)


@pytest.fixture(scope="module")
def trained(digits):
    return train(digits, "mlp", epochs=3)


@pytest.fixture(scope="module")
def improved(digits, trained):
    """With everything that a classifier can have."""
    costs = CostMatrix(COSTS.values, COSTS.classes, referral_cost=0.5)
    return improve(trained, digits, costs, options={"epochs": 1, "steps": 1}, refer=0.1)


@pytest.fixture(scope="module")
def kept(improved, tmp_path_factory):
    return improved.save(tmp_path_factory.mktemp("kept") / "model")


@pytest.fixture
def folder(kept, tmp_path):
    return Path(shutil.copytree(kept, tmp_path / "model"))


class Net(nn.Module):
    """A user's own; what it returns is what Transformers' models return."""

    def __init__(self, classes=10, width=4):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Linear(width, classes)
        )

    def forward(self, x):
        return self.layers(x)


def net():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return Net()


# -- in use


def test_any_network_is_a_classifier_in_one_line(digits, tmp_path):
    classifier = Classifier.of(net(), digits, COSTS, decision=MinimumExpectedCost(COSTS))
    x, y = digits.test.x, digits.test.y
    p, expected = classifier.probabilities(x), classifier.expected_costs(x)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(expected, p @ COSTS.values)
    assert np.array_equal(classifier.predict(x), expected.argmin(1))
    paid = COSTS.values[y, expected.argmin(1)].mean()
    for data in (digits, (x, y), (x.numpy(), y.tolist())):
        assert classifier.evaluate(data).mean_cost == pytest.approx(paid)
    assert classifier.evaluate(digits, CostMatrix.uniform(10)).mean_cost == np.mean(expected.argmin(1) != y.numpy())
    assert classifier.predict(x[:0]).shape == (0,) and classifier.probabilities(x[:0]).shape == (0, 10)
    with pytest.raises(InputError, match=r"'package.module:factory'.*or export it as ONNX"):
        classifier.save(tmp_path / "model")
    assert not any(tmp_path.iterdir())
    pytest.importorskip("onnxscript")
    assert classifier.export(tmp_path / "m.onnx").difference < 1e-4


def test_a_factory_of_the_users_own_is_called_only_where_the_user_says_so(digits, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "their_models", sys.modules[__name__])
    model = net()
    model(torch.randn(8, 64))  # moves the running statistics
    given = {"architecture": "their_models:Net", "arguments": {"width": 4}}
    saved = Classifier.of(model, digits, COSTS, **given).save(tmp_path / "model")
    with pytest.raises(InputError, match=r"names code to run, 'their_models:Net'.*--trust"):
        Classifier.load(saved)
    loaded = Classifier.load(saved, trust=True).network
    assert not loaded.training and torch.equal(loaded(digits.test.x.float()), model.eval()(digits.test.x.float()))


RULE = MinimumExpectedCost(COSTS, 1.3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: Classifier.of(net(), d, decision=RULE).evaluate((d.test.x[:, :, :4], d.test.y)), "takes 1 x 8 x 8"),
        (lambda d: Classifier.of(net(), d, decision=RULE).predict(d.test.x[:, :, 1:]), r"shape \(1, 7, 8\)"),
        (lambda d: Classifier.of(net(), d, COSTS).evaluate((d.test.x, d.test.y[:3])), "labels"),
        (lambda d: Classifier.of(net(), d, COSTS).evaluate((d.test.x[:0], d.test.y[:0])), "no samples"),
        (lambda d: Classifier.of(net(), d).evaluate(d), "trained without costs; give costs="),
        (lambda d: Classifier.of(net(), d, COSTS).evaluate(d, part="tets"), "unknown part 'tets'; known: train"),
        (lambda d: Classifier.of(net(), d, COSTS).evaluate(d, seen="hide"), "seen is 'hide'; known: refuse"),
        (lambda d: Classifier.of(net(), d, CostMatrix.uniform(9)), "names other classes"),
        (lambda d: Classifier.of(net(), d, COSTS, decision=MinimumExpectedCost(CostMatrix.uniform(10))), "other costs"),
        (lambda d: Classifier.of(Net(7), d, COSTS).predict(d.test.x), r"shape \(.*, 7\); \(samples, 10\)"),
        (lambda d: Classifier.of(net(), d, COSTS, decision=Decision(priors=(1.0,))), "each of the 10 classes"),
        (lambda d: Classifier.of(net(), d, COSTS, architecture="cnm").save("never"), "did you mean 'cnn'"),
        (lambda d: Classifier.of(net(), d, COSTS, architecture="mlp").save("never"), "missing a required argument"),
        (
            lambda d: Classifier.of(net(), d, architecture="mlp", arguments={"features": 64}).save("never"),
            "builds another network: missing: linear1.weight",
        ),
    ],
)
def test_what_cannot_be_used_is_named(digits, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        call(digits)
    assert "\n" not in str(error.value) and not any(tmp_path.iterdir())


def test_a_rule_brings_its_costs(digits):
    """Else it would decide by unit costs and nobody would know."""
    classifier = Classifier.of(net(), digits, decision=Abstention(RULE, 0.1))
    assert np.array_equal(classifier.costs.values, COSTS.values)
    assert np.array_equal(classifier.predict(digits.test.x), Abstention(RULE, 0.1)(classifier.logits(digits.test.x)))


# -- saved and loaded


@pytest.mark.parametrize("name", DECISIONS)
def test_what_is_saved_comes_back(improved, digits, name, tmp_path):
    classifier = replace(improved, decision=DECISIONS[name])
    back = Classifier.load(classifier.save(tmp_path / "a" / "model"))
    x = digits.test.x
    for what in ("predict", "probabilities", "expected_costs"):
        assert np.array_equal(getattr(back, what)(x), getattr(classifier, what)(x))
    assert (back.predict(x) == -1).any() == (name == "everything")
    for what in ("input", "classes", "decision", "training", "evidence", "views"):
        assert getattr(back, what) == getattr(classifier, what) is not None, what
    assert np.array_equal(back.trained_on, np.unique(digits.train.ids)) and back.trained_on.dtype == np.uint64
    assert np.array_equal(back.costs.values, COSTS.values) and back.costs.classes == digits.classes
    ours, theirs = classifier.evidence.arrays, back.evidence.arrays
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[k], theirs[k]) for k in ours)
    for row, e in classifier.evidence.test.items():
        assert np.array_equal(back.evidence.test[row].confusion, e.confusion)


def test_saving_again_replaces_the_model_and_leaves_other_files_alone(trained, improved, tmp_path):
    trained.save(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    improved.save(tmp_path / "model")
    assert Classifier.load(tmp_path / "model").evidence == improved.evidence
    names = ["README.md", "arrays.safetensors", "costs.csv", "model.json", "model.safetensors", "notes.txt"]
    assert sorted(os.listdir(tmp_path / "model")) == names and os.listdir(tmp_path) == ["model"]


def test_a_resnet_a_memory_format_and_what_csdnn_makes_come_back(digits, tmp_path):
    costs, arguments = CostMatrix.uniform(10), {"features": 64, "hidden": [6, 5], "activation": "sigmoid"}
    start = models.create("cnn", 10, channels=1, size=8)
    for model, name, given in (
        (models.create("resnet9", 10, channels=1).to(memory_format=torch.channels_last), "resnet9", {"channels": 1}),
        (csada.fit(start, digits, "csdnn", costs, epochs=1, hidden=(6, 5), pretrain_epochs=1).model, "mlp", arguments),
    ):
        saved = Classifier.of(model, digits, architecture=name, arguments=given).save(tmp_path / name)
        theirs, ours = Classifier.load(saved).network.state_dict(), model.state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
        fresh = models.load_weights(models.create(name, 10, **given), saved)  # its folder also serves as weights
        assert all(torch.equal(ours[k], v) for k, v in fresh.state_dict().items())


# -- folders that were damaged, or made to harm


def sign(values):
    return sha256(json.dumps({k: v for k, v in values.items() if k != "sha256"}, sort_keys=True).encode())


def edit(folder, *path, value=None, remove=False):
    """A change by somebody who can compute the hash too."""
    file = folder / "model.json"
    values = json.loads(file.read_text())
    at = values
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    file.write_text(json.dumps(values | {"sha256": sign(values)}))


def rearrange(folder, **arrays):
    """Other arrays, with their right hash; None removes one."""
    file = folder / "arrays.safetensors"
    kept = {name: values for name, values in (load_file(file) | arrays).items() if values is not None}
    save_file(kept, file)
    edit(folder, "arrays", value=sha256(file))


def swap(folder):
    a, b, c = (folder / name for name in ("model.safetensors", "arrays.safetensors", "x"))
    a.rename(c)
    b.rename(a)
    c.rename(b)


def instead(name, make):
    def change(folder):
        (folder / name).unlink()
        make(folder / name)

    return change


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def truncate(name):
    return lambda folder: os.truncate(folder / name, os.stat(folder / name).st_size - 10)


def changed(*path, **how):
    return lambda folder: edit(folder, *path, **how)


def arranged(**arrays):
    return lambda folder: rearrange(folder, **arrays)


def twice(*then):
    """A second member like the first, whose file is missing unless something is done about it."""

    def change(folder):
        first = json.loads((folder / "model.json").read_text())["members"][0]
        edit(folder, "members", value=[first, first | {"file": "model-2.safetensors"}])
        for each in then:
            each(folder)

    return change


def member(classes, **arguments):
    """The file of the second member: its right hash, and a network that does not fit."""

    def change(folder):
        network = models.create("mlp", classes, **({"features": 64} | arguments))
        (file := folder / "model-2.safetensors").write_bytes(weights.as_bytes(network))
        edit(folder, "members", 1, "sha256", value=sha256(file))
        edit(folder, "members", 1, "arguments", value={"features": 64} | arguments)

    return change


K = len(COSTS)
HOSTILE = {
    "no folder": (shutil.rmtree, "is no saved model: it has no model.json; csada train"),
    "no model.json": (lambda d: (d / "model.json").unlink(), "is no saved model"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "model.safetensors cannot be read: No such file"),
    "a pipe": (instead("model.json", os.mkfifo), "model.json cannot be read: not a regular file"),
    "a pipe of weights": (instead("model.safetensors", os.mkfifo), "not a regular file"),
    "a folder": (instead("model.json", os.mkdir), "not a regular file"),
    "not UTF-8": (write("model.json", b"\xff\xfe{}"), "model.json is not text in UTF-8"),
    "no JSON": (write("model.json", b"{"), "model.json is damaged"),
    "NaN": (write("model.json", b'{"format": NaN}'), "NaN is no JSON number"),
    "deep": (write("model.json", b"[" * 100_000), "model.json is damaged"),
    "a list": (write("model.json", b"[]"), "is of format None, this version of csada reads 2; train the model again"),
    "an old one": (changed("format", value=1), "is of format 1, .*; train the model again with csada train"),
    "truncated weights": (truncate("model.safetensors"), "model.safetensors is damaged: .*copy the whole folder again"),
    "truncated arrays": (truncate("arrays.safetensors"), "arrays.safetensors is damaged"),
    "swapped files": (swap, "is damaged"),
    "reversed classes": (
        lambda d: (d / "model.json").write_text((d / "model.json").read_text().replace('"0"', '"9"', 1)),
        "was changed after it was written",
    ),
    "a name too many": (changed("name", value="x"), "unknown key 'name'; known keys: format, members"),
    "no class": (changed("classes", value=[]), "make no mlp: .* classes 0"),
    "a class twice": (changed("classes", value=["a"] * K), "every class needs its own name"),
    "other classes": (changed("classes", value=[*"abcdefghij"]), "the evidence is about other classes"),
    "fewer classes": (changed("classes", value=["a", "b"]), r"is \(10, 50\) and should be \(2, 50\)"),
    "negative std": (changed("input", "normalization", "std", value=[-1.0]), r"std is \[-1.0\] .*above zero"),
    "no scale": (changed("input", "normalization", "scale", value=0), "scale is 0"),
    "means": (changed("input", "normalization", "mean", value=[0.1, 0.2]), "2 means and 1 "),
    "channels": (
        changed("input", "normalization", value={"mean": [0.0] * 3, "std": [1.0] * 3}),
        "3 means and standard deviations for 1 channels",
    ),
    "a shape": (changed("input", "shape", value=[1, 0, 8]), "channels, height and width are needed"),
    "code": (changed("members", 0, "architecture", value="os:system"), "names code to run"),
    "an architecture": (changed("members", 0, "architecture", value="cnm"), "unknown architecture 'cnm'"),
    "another network": (
        changed("members", 0, "arguments", "features", value=32),
        r"\(50, 64\) and should be \(50, 32\)",
    ),
    "memory": (changed("members", 0, "arguments", "hidden", value=[10**7] * 2), "does not fit"),
    "arguments": (changed("members", 0, "arguments", "hidden", value="50"), "make no mlp"),
    "no members": (changed("members", value=[]), "no members; one network or more are needed"),
    "two members": (
        lambda d: edit(d, "members", value=2 * json.loads((d / "model.json").read_text())["members"]),
        "member 2 has its weights in 'model.safetensors'; weights in model-2.safetensors are needed",
    ),
    "a member too many": (twice(), "model-2.safetensors cannot be read: No such file"),
    "a member of other weights": (twice(write("model-2.safetensors", b"")), "model-2.safetensors is damaged"),
    "a member of other classes": (twice(member(7)), r"is \(7, 50\) and should be \(10, 50\)"),
    "a member of other inputs": (twice(member(10, features=63)), "member 2 does not take samples of 1 x 8 x 8 uint8"),
    "a negative weight": (changed("members", 0, "weight", value=-1), r"members\[0\]: a member's weight is -1.0"),
    "a temperature of zero": (changed("members", 0, "temperature", value=0), "a member's temperature is 0.0"),
    "an unknown view": (changed("views", value=["upside down"]), r"views\[0\] is 'upside down'; 'identity' or"),
    "a view twice": (changed("views", value=["identity"] * 2), "views are identity, identity; .* all different"),
    "a view that is not allowed": (changed("views", value=["mirror"]), "digits were not mirrored in training"),
    "a file elsewhere": (changed("members", 0, "file", value="../model/model.safetensors"), "weights in model.safeten"),
    "a rule": (changed("decision", "priors", value=[1.0]), "each of the 10 classes"),
    "a referral": (changed("decision", "refer_above", value=-1), "refer_above is -1"),
    "a row": (changed("evidence", "chosen", value="later"), "chosen is 'later'; known rows: before"),
    "a side": (changed("evidence", "rules", "between", value={}), "rules are for before, after, between"),
    "its rule": (changed("evidence", "rules", "before", "priors", value=[1.0]), "each of the 10 classes"),
    "costs of another shape": (arranged(costs=np.zeros((2, 2))), "costs"),
    "negative costs": (arranged(costs=np.eye(K) - 1), "negative|zero or more"),
    "no costs": (arranged(costs=None), "costs is missing"),
    "ids": (arranged(trained_on=np.zeros(3)), "trained_on is float64 of shape .3,.; uint64"),
    "a table of ids": (arranged(trained_on=np.zeros((3, 1), np.uint64)), "trained_on is uint64 of shape .3, 1."),
    "no labels": (arranged(test_labels=None), "test_labels is missing"),
    "labels": (arranged(test_labels=np.full(72, 10)), "numbers classes 10 to 10"),
    "labels as text": (arranged(test_labels=np.zeros(72)), "test_labels is float64"),
    "scores": (arranged(before_test=np.zeros((3, K), np.float32)), "before_test is float32 of shape .3, 10."),
    "NaN scores": (arranged(before_test=np.full((72, K), np.nan, np.float32)), "before_test"),
    "pictures": (arranged(mistakes=np.zeros((2, 3), np.int64)), "mistakes, mistake_images"),
    "strange pictures": (arranged(mistake_images=np.zeros(8), mistakes=np.zeros(8)), "mistake"),
    "strange examples": (
        arranged(
            examples=np.full((1, 2), 99),
            perturbations=np.zeros((1, 2)),
            **dict.fromkeys(("original_images", "adversarial_images"), np.zeros((1, 8, 8, 3), np.uint8)),
        ),
        "numbers classes 99 to 99",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_or_hostile_folder_is_one_line(folder, name):
    damage, message = HOSTILE[name]
    damage(folder)
    with pytest.raises(InputError, match=message) as error:
        Classifier.load(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def leaves(value, path=()):
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inside:
        yield from leaves(each, (*path, key))


def test_no_value_in_model_json_ends_in_a_traceback(folder, digits):
    """Each key, however deep, missing or with a value of every type: refused in one line, or a classifier that works."""
    whole = json.loads((folder / "model.json").read_text())
    strange = (None, True, -1, 1.5, 10**30, "x", [[]], {}, {"x": []})
    tried = refused = 0
    for path in [path for path in leaves(whole) if path and path != ("sha256",)]:
        for value in (*strange, ...):
            values = copy.deepcopy(whole)
            at = values
            for key in path[:-1]:
                at = at[key]
            if value is ...:
                del at[path[-1]]
            else:
                at[path[-1]] = value
            (folder / "model.json").write_text(json.dumps(values | {"sha256": sign(values)}))
            tried += 1
            try:
                classifier = Classifier.load(folder)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error) and str(folder) in str(error), (path, value, str(error))
                continue
            classifier.predict(digits.test.x[:2])
            if path[0] == "evidence" and value in ({}, ...):
                card(classifier.evidence, "x")
    assert 0.5 * tried < refused < tried


# -- data as it knows them


def test_columns_in_another_order_are_put_right_and_others_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    rows = {"age": rng.normal(y, 0.3), "dose": rng.normal(50 * (1 - y), 9)}

    def load(name, *columns):
        lines = [",".join([*(f"{rows[c][i]:.4f}" for c in columns), "ab"[y[i]]]) for i in range(120)]
        (tmp_path / name).write_text("\n".join([",".join([*columns, "kind"]), *lines]) + "\n")
        return csada.data.load(tmp_path / name)

    trained = train(load("a.csv", "age", "dose"), "mlp", epochs=5)
    costs = CostMatrix.uniform(2).values
    costs = CostMatrix(costs, ("a", "b"))
    first, second = (
        trained.evaluate(load(f"{i}.csv", *c), costs, "all", seen="keep").confusion
        for i, c in enumerate([("age", "dose"), ("dose", "age")])
    )
    assert np.array_equal(first, second) and np.trace(first) > 100
    rows["weight"] = rows["dose"]
    with pytest.raises(InputError, match=r"has other columns than the classifier: .*weight"):
        trained.evaluate(load("c.csv", "age", "weight"), costs)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Folders a and b: images of two colours. Parts follow from the files' content and the seed."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)

    def add(n, start=0):
        for i in range(start, n):
            folder = root / "ab"[i % 2]
            folder.mkdir(exist_ok=True)
            Image.fromarray(rng.integers(90 * (i % 2), 160 + 90 * (i % 2), (8, 8, 3)).astype(np.uint8)).save(
                folder / f"{i:03}.png"
            )

    add(160)
    trained = train(csada.data.load(root, size=8), "mlp", epochs=2)
    add(240, 160)
    return root, trained


def test_samples_it_was_trained_on_are_refused_dropped_or_kept(pictures, tmp_path):
    root, trained = pictures
    costs = CostMatrix(CostMatrix.uniform(2).values, ("a", "b"))
    grown = trained.load_data(root)  # the same seed: every old file is still in its part
    assert len(grown.train) > len(trained.trained_on) > 50
    assert trained.evaluate(grown, costs).samples == len(grown.test)
    assert trained.evaluate(root, costs).samples == len(grown.test)
    other = trained.load_data(root, seed=1)
    known = {part: int(np.isin(getattr(other, part).ids, trained.trained_on).sum()) for part in ("validation", "test")}
    assert 0 < known["test"] < len(other.test) and known["validation"] > 0
    more = {"epochs": 1, "steps": 1}
    runs = {
        "evaluate": lambda seen: trained.evaluate(other, costs, seen=seen).samples,
        "improve": lambda seen: improve(trained, other, costs, options=more, seen=seen).evidence.samples["test"],
        "tune": lambda seen: tune(trained, other, costs, tmp_path / seen, trials=1, epochs=1, seen=seen)[
            1
        ].evidence.samples["test"],
    }
    for name, judged in runs.items():
        part = "test" if name == "evaluate" else "validation"
        with pytest.raises(InputError, match=rf"{known[part]} of .* {part} samples .*--seen drop") as error:
            judged("refuse")
        assert "\n" not in str(error.value)
        assert judged("drop") == len(other.test) - known["test"], name
        assert judged("keep") == len(other.test), name
    kept, dropped = (improve(trained, other, costs, options={"epochs": 0}, seen=s).evidence for s in ("keep", "drop"))
    assert kept.seen == sum(known.values()) and f"{kept.seen:,} validation and test samples were in its" in verdict(
        kept
    )
    assert dropped.seen == 0 and "flatters" not in verdict(dropped)
    assert judge(trained, other, costs, seen="keep")[2] == known["test"] and judge(trained, grown, costs)[2] == 0
    seen_only = replace(other, test=other.test.take(np.flatnonzero(np.isin(other.test.ids, trained.trained_on))))
    with pytest.raises(InputError, match="no samples"):
        trained.evaluate(seen_only, costs, seen="drop")
    assert trained.evaluate(other, costs, "train").samples == len(other.train)
