"""A model that leaves the house: the deployed rule, the ONNX file, and predictions on files, as a user starts them."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from program import program
from samples import TOO_LARGE
from test_cli import inside
from torch import nn

import csada
from csada.classifier import Classifier, Input, Member
from csada.costs import CostMatrix
from csada.data import cache
from csada.data.augment import Normalization
from csada.decisions import Abstention, Decision, MinimumExpectedCost, Scaling, argmax
from csada.errors import InputError, RunError
from csada.evaluation import predict_logits
from csada.models import create
from csada.pixels import STEPS, square
from csada.reading import plain
from csada.sample import Sample
from csada.shipping.graph import Deployed
from csada.shipping.onnx_file import sealed
from csada.workflow.predict import open_model, predict

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401
except ImportError:
    onnx = None
needs_onnx = pytest.mark.skipif(onnx is None, reason="the extra [onnx] is not installed")

ENV = os.environ | {"OMP_NUM_THREADS": "1"}
DIGITS = CostMatrix.pareto(10, seed=0)
NAMES = ["class", "probability", "expected_cost", "refer", "probabilities", "expected_costs", "criterion"]
RULES = {
    "argmax": argmax,
    "rule": MinimumExpectedCost(DIGITS, 1.3, strength=0.7),
    "everything": Abstention(
        MinimumExpectedCost(
            DIGITS,
            0.8,
            Scaling(tuple(np.linspace(0.8, 1.2, 10)), tuple(np.linspace(-0.3, 0.3, 10))),
            (0.0, *np.linspace(0.5, 2, 9)),
            0.9,
        ),
        0.05,
    ),
}


def run(*arguments, **kw):
    command = [sys.executable, "-m", "csada", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, **kw)


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def inner(rule):
    return rule.rule if isinstance(rule, Abstention) else rule


def graph(classifier):
    return Deployed(classifier.network, classifier.input, classifier.input.normalization, classifier.rule)


def assert_same_rows(left, right):
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, float):
                assert b[key] == pytest.approx(value, abs=1e-4, rel=1e-5), key
            else:
                assert b[key] == value, key


@pytest.fixture(scope="module")
def digits():
    return csada.data.load("digits")


@pytest.fixture(scope="module")
def cnn(digits):
    model = create("cnn", 10, channels=1, size=8)
    return csada.fit(model, digits, "cross_entropy", epochs=4, lr=0.05, momentum=0.9, batch_size=64).model


@pytest.fixture(scope="module")
def classifiers(digits, cnn):
    given = {"architecture": "cnn", "arguments": {"channels": 1, "size": 8}}
    return {name: Classifier.of(cnn, digits, DIGITS, decision=rule, **given) for name, rule in RULES.items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, classifiers):
    root = tmp_path_factory.mktemp("saved")
    for name, classifier in classifiers.items():
        classifier.save(root / name)
    return root


@pytest.fixture(scope="module")
def images(tmp_path_factory, digits):
    """The first 40 test digits as image files, in folders; their names sort in the order of the data."""
    root = tmp_path_factory.mktemp("images")
    for i in range(40):
        (root / f"{i // 20}").mkdir(exist_ok=True)
        Image.fromarray(digits.test.x[i, 0].numpy()).save(root / f"{i // 20}" / f"{i:02d}.png")
    (root / "notes.txt").write_text("not an image")
    return root


@pytest.fixture(scope="module")
def exported(saved, classifiers):
    """The ONNX files of all classifiers, the last one for float32 inputs."""
    if onnx is None:
        pytest.skip("the extra [onnx] is not installed")
    for name, classifier in classifiers.items():
        classifier.export(saved / f"{name}.onnx")
    classifiers["everything"].export(saved / "float32.onnx", "float32")
    return saved


@pytest.fixture(scope="module")
def model(saved, request):
    """What starts fastest: the exported file, and the folder where onnx is absent."""
    return saved / "rule" if onnx is None else request.getfixturevalue("exported") / "rule.onnx"


# the rule inside the graph


def deployed(rule, classes):
    """Logits in, decisions out: a graph around no model at all."""
    return Deployed(nn.Identity(), Sample((classes,)), Normalization(), Decision.of(rule).rule(inner(rule).costs))


@pytest.mark.parametrize("name", RULES)
def test_the_class_is_the_one_of_the_least_criterion_and_the_cost_is_the_expected_one(name):
    logits = np.random.default_rng(0).normal(0, 2, (300, 10)).astype(np.float32)
    whole = MinimumExpectedCost(DIGITS, strength=0.0) if name == "argmax" else RULES[name]
    decided = inner(whole).decide(logits)
    chosen, p, cost, refer, every, expected, criterion = (
        v.numpy() for v in deployed(whole, 10)(torch.from_numpy(logits))
    )
    np.testing.assert_allclose(every, decided.probabilities)
    np.testing.assert_allclose(cost, decided.cost)
    assert np.array_equal(chosen, decided.chosen) and np.array_equal(chosen, criterion.argmin(1))
    np.testing.assert_allclose(p, decided.probabilities[np.arange(300), chosen])
    np.testing.assert_allclose(expected, decided.expected_costs)
    np.testing.assert_allclose(criterion, decided.criterion)
    assert np.array_equal(np.where(refer, -1, chosen), whole(logits)) and refer.any() == (name == "everything")


def test_among_classes_that_cost_the_same_the_likelier_wins():
    groups = np.repeat(np.arange(4), 5)  # a mistake within a group of five is free, between groups it costs 3
    rule = MinimumExpectedCost(CostMatrix(3.0 * (groups[:, None] != groups)))
    logits = np.random.default_rng(0).normal(0, 2, (2000, 20)).astype(np.float32)
    assert np.array_equal(deployed(rule, 20)(torch.from_numpy(logits))[0].numpy(), rule(logits))
    pair = MinimumExpectedCost(CostMatrix.single_pair(20, 3, 7))  # all classes but one are expected to cost nothing
    logits[:50, 7] += 40  # so sure of the one that the cost of being wrong is a rounding error
    assert (pair(logits)[:50] == 7).sum() > 25
    most_probable = MinimumExpectedCost(CostMatrix.uniform(3), strength=0.0)  # before probabilities are rounded
    assert deployed(most_probable, 3)(torch.tensor([[0, 1e-20, 0]]))[0].tolist() == [1]
    assert np.array_equal(deployed(pair, 20)(torch.from_numpy(logits))[0].numpy(), pair(logits))


def test_a_classifier_without_costs_and_rule_takes_the_most_probable_class(digits, cnn):
    logits = predict_logits(cnn, digits).logits
    for decided in (plain_cnn := Classifier.of(cnn, digits)).decide(digits.test.x), graph(plain_cnn)(digits.test.x):
        chosen, p, _, refer, _, expected, _ = map(torch.as_tensor, decided)
        assert torch.equal(chosen, logits.argmax(1)) and not refer.any()
        torch.testing.assert_close(p, logits.double().softmax(1).amax(1), atol=1e-5, rtol=0)
        torch.testing.assert_close(expected, 1 - logits.double().softmax(1), atol=1e-5, rtol=0)


# pixels


def test_predict_sees_the_pixels_that_training_sees(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (31, 47, 4), dtype=np.uint8)
    for mode, name in [("RGB", "a.jpg"), ("RGBA", "a.png"), ("L", "b.png"), ("P", "a.gif"), ("CMYK", "b.jpg")]:
        picture = Image.fromarray(noise).convert("RGB").convert(mode)
        picture.save(tmp_path / name)
    names = sorted(path.name for path in tmp_path.iterdir())
    for name, seen in zip(names, cache.decode_files(tmp_path, names, 20).images, strict=True):
        assert np.array_equal(square((tmp_path / name).read_bytes(), 20), seen)
    grey = square((tmp_path / "b.png").read_bytes(), 20, channels=1)
    assert np.array_equal(grey, square((tmp_path / "b.png").read_bytes(), 20)[:1])


def test_the_steps_that_a_file_names_give_the_same_pixels():
    """16 bits to 8 and over white; upright; the largest square in the centre; Pillow's bilinear filter."""
    assert len(STEPS) == 4
    noise = np.random.default_rng(0).integers(0, 256, (31, 47, 4), dtype=np.uint8)
    picture = Image.fromarray(noise)
    picture.getexif()[0x0112] = 6
    out = io.BytesIO()
    picture.save(out, "PNG", exif=picture.getexif())
    by_hand = Image.new("RGBA", picture.size, "white")
    by_hand.alpha_composite(picture)
    by_hand = by_hand.convert("RGB").rotate(-90, expand=True).crop((0, 8, 31, 39))
    by_hand = by_hand.resize((20, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(square(out.getvalue(), 20), np.asarray(by_hand).transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif", "a.webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_says(name, orientation, tmp_path):
    ramp = np.add.outer(np.arange(40) * 4, np.arange(60))[..., None].repeat(3, 2).astype(np.uint8)
    picture = Image.fromarray(ramp)
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / name) as image:
        ImageOps.exif_transpose(image).save(tmp_path / "upright.png")
    turned, upright = (square((tmp_path / n).read_bytes(), 20).astype(int) for n in (name, "upright.png"))
    assert abs(turned - upright).max() < 3


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_notes_that_cannot_be_read_do_not_spoil_a_picture(name, tmp_path):
    picture = Image.fromarray(np.full((20, 30, 3), 90, np.uint8))
    picture.save(tmp_path / name, exif=b"Exif\0\0no such thing")
    assert abs(square((tmp_path / name).read_bytes(), 8).astype(int) - 90).max() < 3


def test_predict_decides_as_the_rule_does_on_the_data_themselves(saved, images, digits, cnn):
    rule = RULES["everything"]
    logits = predict_logits(cnn, digits).logits[:40].numpy()
    rows = list(predict(open_model(saved / "everything", "cpu"), [images], batch_size=7))
    decided = rule(logits)
    assert [Path(row["file"]).name for row in rows] == [f"{i:02d}.png" for i in range(40)]
    assert [row["refer"] for row in rows] == (decided == -1).tolist() and 0 < (decided == -1).sum() < 40
    assert [row["class"] for row in rows] == [str(k) for k in rule.rule(logits)]
    assert (rule.rule(logits) == digits.test.y[:40].numpy()).mean() > 0.7  # it is a model that has learned something


# ONNX


def outputs(file, x):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(NAMES, {"input": x})


@pytest.mark.parametrize("name", RULES)
def test_the_file_decides_as_the_classifier_does(exported, classifiers, digits, name):
    """Every test image; the file also takes other batches than the one it was traced with."""
    for x in (digits.test.x, digits.test.x[:1]):
        expected = classifiers[name].decide(x)
        found = outputs(exported / f"{name}.onnx", x.numpy())
        assert [v.dtype for v in found] == [np.int64, np.float64, np.float64, bool, np.float64, np.float64, np.float64]
        assert np.array_equal(found[0], expected[0]) and np.array_equal(found[3], expected[3])
        for i in (1, 2, 4, 5, 6):
            np.testing.assert_allclose(found[i], expected[i], atol=1e-4)


def test_float32_inputs_are_the_same_pixels(exported, digits):
    x = digits.test.x.numpy()
    for a, b in zip(
        outputs(exported / "everything.onnx", x),
        outputs(exported / "float32.onnx", x.astype(np.float32)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


@needs_onnx
@pytest.mark.parametrize(
    ("architecture", "arguments", "shape"),
    [
        ("mlp", {"features": 48}, (3, 4, 4)),
        ("resnet34", {"stem": "imagenet"}, (3, 40, 40)),
    ],
)
def test_every_model_of_csada_can_be_exported(tmp_path, architecture, arguments, shape):
    member = Member(create(architecture, 10, **arguments))
    classifier = Classifier((member,), Input(shape, "uint8"), tuple(map(str, range(10))))
    assert classifier.export(tmp_path / "m.onnx").difference < 1e-4
    x = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    np.testing.assert_allclose(outputs(tmp_path / "m.onnx", x)[5], classifier.expected_costs(x), atol=1e-4)


@needs_onnx
def test_photographs_through_the_folder_and_through_the_file(tmp_path):
    pills = csada.data.load("pills", scale=0.01, size=32)
    k = len(pills.classes)
    costs = CostMatrix(CostMatrix.pareto(k, seed=1).values, pills.classes)
    rule = MinimumExpectedCost(costs, 2.0)
    classifier = Classifier.of(create("resnet9", k), pills, costs, architecture="resnet9", decision=rule)
    classifier.save(tmp_path / "b")
    classifier.export(tmp_path / "m.onnx")
    (tmp_path / "photos").mkdir()
    for i, pixels in enumerate(pills.test.x[:12]):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"{i:02d}.png")
    by_folder, by_file = (
        list(predict(open_model(tmp_path / name, "cpu"), [tmp_path / "photos"], every=True)) for name in ("b", "m.onnx")
    )
    assert_same_rows(by_folder, by_file)
    chosen = classifier.predict(pills.test.x[:12])
    assert [row["class"] for row in by_file] == [pills.classes[k] for k in chosen]


def test_the_file_describes_itself_and_says_nothing_of_the_machine(exported, classifiers):
    model = onnx.load(exported / "everything.onnx")
    about = json.loads({p.key: p.value for p in model.metadata_props}["csada"])
    ours = classifiers["everything"]
    assert about["classes"] == list(ours.classes) and about["decision"] == plain(ours.decision)
    assert about["input"] == {"shape": [1, 8, 8], "dtype": "uint8", "columns": None, "categories": []}
    assert about["costs"] == ours.costs.values.tolist() and about["csada"] == csada.__version__
    assert [o.name for o in model.graph.output] == list(about["outputs"]) == NAMES
    assert "0.9 * expected_costs + 0.1 * " in about["outputs"]["criterion"]
    assert (
        about["prepared"].items()
        >= {"layout": "NCHW", "size": "8 x 8", "colours": "grey", "values": "uint8, 0 to 16"}.items()
    )
    content = (exported / "everything.onnx").read_bytes()
    assert b".py" not in content and os.fsencode(Path(csada.__file__).parent) not in content


def test_a_file_that_decides_otherwise_is_found_out(exported, classifiers, digits):
    """What export checks before the file gets its name, on two models that differ in their rule alone."""
    from csada.shipping.export import compare

    session = onnxruntime.InferenceSession(exported / "rule.onnx", providers=["CPUExecutionProvider"])
    assert compare(session, graph(classifiers["rule"]), digits.test.x) < 1e-4
    with pytest.raises(RunError, match="does not decide as PyTorch does"):
        compare(session, graph(classifiers["argmax"]), digits.test.x)


@needs_onnx
def test_an_export_that_fails_leaves_the_old_file_whole(saved, tmp_path):
    """A disk that is full: here, a limit on the size of files."""
    out = tmp_path / "model.onnx"
    out.write_bytes(b"the old one")
    small = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (50_000, 50_000))
    failed = program("export", saved / "rule", "--out", out, "--force", before=small)
    assert failed.returncode == 1 and "is kept" in failed.stderr and len(failed.stderr.splitlines()) == 1
    assert out.read_bytes() == b"the old one" and os.listdir(tmp_path) == ["model.onnx"]
    done = inside("export", saved / "rule", "--out", out, "--force", "--json")
    assert done.returncode == 0 and done.stderr == ""
    about = json.loads(done.stdout)
    assert about["bytes"] == out.stat().st_size > 50_000 and os.listdir(tmp_path) == ["model.onnx"]


def test_the_extra_that_is_missing_is_named(saved, tmp_path):
    code = "import sys; sys.modules['onnxruntime'] = None; sys.argv[0] = 'csada'; from csada.cli import main; main()"
    (tmp_path / "m.onnx").touch()
    for arguments in (["export", saved / "rule"], ["predict", tmp_path / "m.onnx", tmp_path]):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        failed = subprocess.run(command, capture_output=True, text=True, env=ENV)
        assert failed.returncode == 2 and len(failed.stderr.splitlines()) == 1
        assert "pip install 'csada[onnx]'" in failed.stderr


# the command


def test_folder_and_file_give_the_same_rows(exported, images):
    by_folder, by_file = (
        inside("predict", exported / name, images, "--all", "--format", "jsonl") for name in ("rule", "rule.onnx")
    )
    assert by_folder.returncode == by_file.returncode == 0 and by_folder.stderr == by_file.stderr == ""
    left, right = ([json.loads(line) for line in done.stdout.splitlines()] for done in (by_folder, by_file))
    assert_same_rows(left, right)
    costlier = 0
    for row in (*left, *right):
        p, cost, criterion = (
            {k: row[f"{name}_{k}"] for k in map(str, range(10))}
            for name in ("probability", "expected_cost", "criterion")
        )
        assert row["expected_cost"] == cost[row["class"]] and row["probability"] == p[row["class"]]
        assert sum(p.values()) == pytest.approx(1, abs=1e-4)
        assert criterion[row["class"]] == min(criterion.values())
        costlier += row["expected_cost"] > min(cost.values())
    assert costlier > 0  # at this rule's strength, accuracy counts too


def test_a_machine_that_only_predicts_needs_neither_torch_nor_scipy(exported, images):
    code = "import sys; sys.modules.update(torch=None, scipy=None); from csada.cli import main; main()"
    command = [sys.executable, "-c", code, "predict", str(exported / "rule.onnx"), str(images)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV)
    assert done.returncode == 0, done.stderr
    assert len(table(done.stdout)) == 40


def test_a_broken_image_is_named_and_the_others_are_predicted(model, images, tmp_path):
    whole = (images / "0" / "00.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole)
    (tmp_path / "b.png").write_bytes(whole[:60])
    (tmp_path / "c.png").write_bytes(b"no image")
    (tmp_path / "d.png").write_bytes(whole)
    done = run("predict", model, tmp_path, "--out", tmp_path / "out" / "rows.csv")
    assert done.returncode == 1
    broken, foreign, last = done.stderr.splitlines()
    assert "b.png" in broken and "c.png" in foreign and "2 of 4" in last
    rows = table((tmp_path / "out" / "rows.csv").read_text())
    assert [Path(row["file"]).name for row in rows] == ["a.png", "b.png", "c.png", "d.png"]
    assert [bool(row["error"]) for row in rows] == [False, True, True, False]
    assert [bool(row["class"]) for row in rows] == [True, False, False, True]
    assert os.listdir(tmp_path / "out") == ["rows.csv"]


def test_an_image_that_is_too_large_is_named_like_any_bad_one(model, images, tmp_path):
    for name, content in TOO_LARGE.items():
        (tmp_path / f"{name}.png").write_bytes(content)
    (tmp_path / "z.png").write_bytes((images / "0" / "00.png").read_bytes())
    done = run("predict", model, tmp_path)
    assert done.returncode == 1, done.stderr
    *bad, good = table(done.stdout)
    assert good["class"] and [bool(row["error"]) for row in bad] == [True] * len(TOO_LARGE)
    assert bad[3]["error"].startswith("100,000,000 x 1 pixels; the longer side counts; at most")


def test_nothing_readable_is_an_error_of_input_and_writes_nothing(model, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    (tmp_path / "rows.csv").write_text("the old one")
    done = run("predict", model, tmp_path / "a.png", "--out", tmp_path / "rows.csv", "--force")
    assert done.returncode == 2 and "can be read" in done.stderr
    assert (
        sorted(os.listdir(tmp_path)) == ["a.png", "rows.csv"] and (tmp_path / "rows.csv").read_text() == "the old one"
    )


def test_rows_come_before_the_last_input_is_read(model, images, tmp_path):
    """Nobody reads the rows, so that the program has to wait; meanwhile the last image is put right."""
    for i in range(400):
        os.link(images / "0" / "00.png", tmp_path / f"{i:03}.png")
    (tmp_path / "z.png").write_bytes(b"not there yet")
    command = [sys.executable, "-m", "csada", "predict", model, tmp_path, "--batch-size", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENV) as process:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        early = os.read(process.stdout.fileno(), 100)
        (tmp_path / "z.png").write_bytes((images / "0" / "01.png").read_bytes())
        rows = table((early + process.stdout.read()).decode())
    assert process.returncode == 0 and len(rows) == 401 and not rows[-1]["error"]


@pytest.mark.parametrize("kind", ["pipe", "device", "link to itself", "folder"])
def test_what_may_never_end_is_not_read(model, images, tmp_path, kind):
    def make(path):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if kind == "device" else path)

    (tmp_path / "images").mkdir()
    os.link(images / "0" / "00.png", tmp_path / "images" / "a.png")
    make(tmp_path / "images" / "b.png")
    make(tmp_path / "model.onnx")
    code = """
import sys
from csada.workflow.predict import open_model, predict
print(*("error" in row for row in predict(open_model(sys.argv[1]), sys.argv[2:])))
open_model(sys.argv[2] + "/../model.onnx")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, model, tmp_path / "images"], capture_output=True, text=True, env=ENV, timeout=60
    )
    assert done.stdout == ("False\n" if kind == "folder" else "False True\n"), done.stderr
    assert done.stderr.splitlines()[-1].startswith("csada.errors.InputError: ")


def test_a_reader_that_goes_away_is_no_crash(model, images):
    command = f"{sys.executable} -m csada predict {model} {images} --batch-size 1 | head -n 2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=ENV)
    assert len(done.stdout.splitlines()) == 2 and done.stderr == ""


@needs_onnx
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("foreign.onnx", "was not written by csada"),
        ("text.onnx", "was not written by csada"),
        ("folder", "is no saved model"),
        ("nowhere", "does not exist"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(tmp_path, images, name, message):
    helper = onnx.helper
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "foreign.onnx"
    )
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=message) as error:
        open_model(tmp_path / name)
    assert "\n" not in str(error.value)
    if name == "foreign.onnx":
        done = run("predict", tmp_path / name, images)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


@pytest.fixture(scope="module")
def toy_file(tmp_path_factory):
    """A small exported file."""
    splits = csada.data.load("toy", scale=0.05)
    network = create("mlp", len(splits.classes), features=splits.shape[0], hidden=[3])
    file = tmp_path_factory.mktemp("exported") / "toy.onnx"
    Classifier.of(network, splits).export(file)
    return file


@needs_onnx
def test_a_flipped_bit_is_noticed(toy_file, tmp_path):
    """Of 200 such files 197 were accepted, and 150 gave other numbers."""
    draw, content = np.random.default_rng(0), toy_file.read_bytes()
    for _ in range(200):
        damaged = bytearray(content)
        damaged[draw.integers(len(damaged))] ^= 1 << int(draw.integers(8))
        (tmp_path / "x.onnx").write_bytes(damaged)
        with pytest.raises(InputError, match=r"its hash is wrong|was not written by csada"):
            open_model(tmp_path / "x.onnx")


def never_ends(graph):
    """In place of the node that makes `class`: a loop of 2^63 rounds."""
    helper, kinds = onnx.helper, onnx.TensorProto
    (made,) = [node for node in graph.node if "class" in node.output]
    made.output[list(made.output).index("class")] = "first"
    names = [("i", kinds.INT64, []), ("go", kinds.BOOL, []), ("c", kinds.INT64, None)]
    values = [helper.make_tensor_value_info(*name) for name in names]
    out = [helper.make_tensor_value_info("go2", kinds.BOOL, []), helper.make_tensor_value_info("c2", kinds.INT64, None)]
    nodes = [helper.make_node("Identity", ["go"], ["go2"]), helper.make_node("Add", ["c", "i"], ["c2"])]
    body = helper.make_graph(nodes, "body", values, out)
    graph.initializer.append(helper.make_tensor("rounds", kinds.INT64, [], [2**63 - 1]))
    graph.node.append(helper.make_node("Loop", ["rounds", "", "first"], ["class"], body=body))


def one_less(graph):
    graph.output.pop()


def beyond(graph):
    helper = onnx.helper
    (made,) = [node for node in graph.node if "class" in node.output]
    made.output[list(made.output).index("class")] = "first"
    graph.initializer.append(helper.make_tensor("many", onnx.TensorProto.INT64, [], [99]))
    graph.node.append(helper.make_node("Add", ["first", "many"], ["class"]))


def out_of_reach(graph):
    helper = onnx.helper
    (made,) = [node for node in graph.node if "class" in node.output]
    made.output[list(made.output).index("class")] = "first"
    graph.initializer.append(helper.make_tensor("far", onnx.TensorProto.INT64, [1], [99]))
    graph.node.append(helper.make_node("Gather", ["first", "far"], ["class"]))


def dear_constants(graph):
    """A few kB that take half a minute to multiply: onnxruntime did that while it opened the file, under no limit."""
    helper, kinds = onnx.helper, onnx.TensorProto
    (made,) = [node for node in graph.node if "class" in node.output]
    made.output[list(made.output).index("class")] = "first"
    graph.initializer.append(helper.make_tensor("sides", kinds.INT64, [2], [3000, 3000]))
    graph.node.append(helper.make_node("ConstantOfShape", ["sides"], ["m0"]))
    graph.node.extend(helper.make_node("MatMul", [f"m{i}", "m0"], [f"m{i + 1}"]) for i in range(20))
    graph.node.append(helper.make_node("ReduceMax", ["m20"], ["most"], keepdims=0))
    graph.node.append(helper.make_node("Cast", ["most"], ["none"], to=kinds.INT64))
    graph.node.append(helper.make_node("Add", ["first", "none"], ["class"]))


def text_for_numbers(graph):
    helper = onnx.helper
    (made,) = [node for node in graph.node if "class" in node.output]
    made.output[list(made.output).index("class")] = "first"
    graph.node.append(helper.make_node("Cast", ["first"], ["class"], to=onnx.TensorProto.STRING))
    (said,) = [each for each in graph.output if each.name == "class"]
    said.type.tensor_type.elem_type = onnx.TensorProto.STRING


@needs_onnx
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (text_for_numbers, "its output class is not"),
        (never_ends, "cannot decide these samples"),
        (dear_constants, "cannot decide these samples"),
        (one_less, "cannot decide these samples"),
        (beyond, "decides for class"),
        (out_of_reach, "cannot decide these samples"),  # onnxruntime logged a line of its own, in colour
    ],
)
def test_a_graph_that_is_not_ours_is_one_line(toy_file, tmp_path, monkeypatch, capfd, change, message):
    """Its hash is right: whoever made it can compute one."""
    model = onnx.load(toy_file)
    change(model.graph)
    (tmp_path / "x.onnx").write_bytes(sealed(model.SerializeToString()))
    monkeypatch.setenv("CSADA_BOUNDS", "seconds=1")
    with pytest.raises(InputError, match=message) as error:
        open_model(tmp_path / "x.onnx").decide(np.zeros((2, 2), np.float32))
    assert "\n" not in str(error.value) and capfd.readouterr().err == ""


@needs_onnx
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["0", "1", "0"]}, "class name '0' appears twice"),
        ({"costs": [[0, 1]]}, "costs must be square"),
        ({"input": {"shape": [3, 20_000, 20_000], "dtype": "uint8"}}, "samples of 3 x 20000 x 20000 uint8; at most"),
    ],
)
def test_a_description_that_cannot_be_is_one_line(toy_file, tmp_path, changes, message):
    model = onnx.load(toy_file)
    (about,) = [each for each in model.metadata_props if each.key == "csada"]
    about.value = json.dumps(json.loads(about.value) | changes | {"sha256": "0" * 64})
    (tmp_path / "x.onnx").write_bytes(sealed(model.SerializeToString()))
    with pytest.raises(InputError, match=message):
        open_model(tmp_path / "x.onnx")


# tables


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder with a classifier and the CSV file that it learned: two features and a label."""
    root = tmp_path_factory.mktemp("rows")
    generator = np.random.default_rng(0)
    label = generator.integers(0, 3, 150)
    x = generator.normal(0, 1, (150, 2)) * [3, 50] + label[:, None] * [9, 0]
    lines = [f"{a:.3f},{b:.3f},{['low', 'mid', 'high'][k]}" for (a, b), k in zip(x, label, strict=True)]
    (root / "data.csv").write_text("age,dose,risk\n" + "\n".join(lines) + "\n")
    splits = csada.data.load(root / "data.csv")
    model = csada.fit(create("mlp", 3, features=2), splits, "cross_entropy", epochs=20, lr=0.1, batch_size=32).model
    costs = CostMatrix(CostMatrix.pareto(3, seed=0).values, splits.classes)
    given = {"architecture": "mlp", "arguments": {"features": 2}}
    rule = Abstention(MinimumExpectedCost(costs, 1.1), 0.2)
    Classifier.of(model, splits, costs, decision=rule, **given).save(root / "b")
    return root


def test_rows_of_a_table_by_the_names_of_their_columns(rows, tmp_path):
    root = rows
    model = open_model(root / "b", "cpu")
    found = list(predict(model, [root / "data.csv"]))
    assert [row["row"] for row in found] == list(range(1, 151))
    labels = [row["risk"] for row in table((root / "data.csv").read_text())]
    assert np.mean([row["class"] == label for row, label in zip(found, labels, strict=True)]) > 0.8
    read = table((root / "data.csv").read_text())
    (tmp_path / "other.csv").write_text(
        "\ufeffid, dose ,age\n" + "".join(f"{i},{row['dose']}, {row['age']}\n\n" for i, row in enumerate(read)),
        encoding="utf-8",
    )
    assert list(predict(model, [tmp_path / "other.csv"])) == found
    unnamed = replace(model, input=Sample((2,)))  # then by their place, label or not
    (tmp_path / "bare.csv").write_text("x,y\n" + "".join(f"{row['age']},{row['dose']}\n" for row in read))
    assert list(predict(unnamed, [root / "data.csv"])) == list(predict(unnamed, [tmp_path / "bare.csv"])) == found
    if onnx is not None:
        Classifier.load(root / "b").export(tmp_path / "m.onnx")
        assert_same_rows(list(predict(open_model(tmp_path / "m.onnx"), [root / "data.csv"])), found)


def test_a_row_that_is_no_numbers_is_named(rows, tmp_path):
    root = rows
    (tmp_path / "new.csv").write_text("age,dose\n1,2\n3,much\n1e39,0\n4\n5,6\n")
    done = inside("predict", root / "b", tmp_path / "new.csv")
    assert done.returncode == 1
    assert [row["row"] for row in table(done.stdout) if row["error"]] == ["2", "3", "4"]
    assert "line 3, column 'dose': 'much' is not a finite number" in done.stderr and "3 of 5" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,weight\n1,2\n", "has no column 'dose'"),
        ("age,dose,dose\n1,2,3\n", "has several columns 'dose'"),
        ("", "has no column 'age'"),
        ("\x89PNG\udcff", "not text in UTF-8"),
    ],
)
def test_a_table_of_other_columns_is_refused_before_anything_is_written(rows, tmp_path, text, message):
    (tmp_path / "new.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=message):
        predict(open_model(rows / "b", "cpu"), [tmp_path / "new.csv"])


# tables with words and missing values


@pytest.fixture(scope="module", params=["numbers and words", "words alone", "numbers alone"])
def mixed(tmp_path_factory, request):
    """A folder with a classifier, the table that it learned, and new rows that lack values and hold new words."""
    root, generator = tmp_path_factory.mktemp("mixed"), np.random.default_rng(0)
    named = {
        "dose": [f"{v:.2f}" if v > -1 else "NA" for v in generator.normal(size=200)],
        "age": [str(20 + v) for v in generator.integers(0, 60, 200)],
        "colour": generator.choice(["red", "blue", "white", ""], 200),
        "shape": generator.choice(["oval", "round"], 200),
        "code": [f"c{v}" for v in generator.integers(0, 20, 200)],
    }
    names = [name for name in named if request.param != ("words alone" if name in ("dose", "age") else "numbers alone")]
    lines = [",".join([*(named[name][i] for name in names), "abc"[i % 3]]) for i in range(200)]
    (root / "data.csv").write_text("\n".join([",".join([*names, "risk"]), *lines]))
    new = {"dose": "1.5,,?,NaN,-2,0", "age": "33,44,,55,0,1", "colour": "red,mauve,,NA,white,Red"}
    new |= {"shape": ",oval,round,x,,x", "code": "c1,,c2,c3,c4,c5"}
    cells = [new[name].split(",") for name in reversed(names)]  # columns are found by name
    (root / "new.csv").write_text("\n".join(map(",".join, [names[::-1], *zip(*cells, strict=True)])))
    splits = csada.data.load(root / "data.csv")
    features = splits.shape[0]
    costs = CostMatrix(CostMatrix.pareto(3, seed=0).values, splits.classes)
    rule = MinimumExpectedCost(costs, 1.1, strength=0.6)
    model = csada.fit(
        create("mlp", 3, features=features), splits, "cross_entropy", epochs=3, lr=0.1, batch_size=32
    ).model
    given = {"architecture": "mlp", "arguments": {"features": features}}
    Classifier.of(model, splits, costs, decision=rule, **given).save(root / "b")
    return root


def test_predict_encodes_new_rows_as_training_did(mixed):
    model, unknown = open_model(mixed / "b", "cpu"), Counter()
    rows = list(predict(model, [mixed / "new.csv"], unknown=unknown))
    assert len(rows) == 6 and not any("error" in row for row in rows)
    classifier = Classifier.load(mixed / "b")
    assert unknown == Counter(
        {name: n for name, n in (("colour", 2), ("shape", 2)) if name in classifier.input.columns}
    )
    labels = [row["risk"] for row in table((mixed / "data.csv").read_text())]
    pairs = Counter(zip(labels, (row["class"] for row in predict(model, [mixed / "data.csv"])), strict=True))
    judged = classifier.evaluate(mixed / "data.csv", part="all", seen="keep").confusion
    assert [[pairs[y, z] for z in "abc"] for y in "abc"] == judged.tolist()


@needs_onnx
def test_an_exported_table_model_takes_words_and_missing_values_as_they_are(mixed, tmp_path):
    classifier = Classifier.load(mixed / "b")
    written = classifier.export(tmp_path / "m.onnx")
    assert written.difference < 1e-4 and written.about.input.columns == classifier.input.columns
    told = written.about.prepared
    if "colour" in classifier.input.columns:
        assert "colour is one of blue, red, white; " in told["categories"] and "colour " in told["missing"]
    if "dose" in classifier.input.columns:
        assert told["input"] == "[N, 2] float32: dose, age"
        assert f"stands for it: dose {classifier.input.normalization.fill[0]:g}, age " in told["missing"]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    words = len(classifier.input.categories)
    expected = {"input": "tensor(float)", "categories": "tensor(string)"}
    assert {i.name: i.type for i in session.get_inputs()} == dict(list(expected.items())[: 1 + (words > 0)])
    for name in ("new.csv", "data.csv"):
        by_folder, by_file = (
            list(predict(open_model(path, "cpu"), [mixed / name], every=True))
            for path in (mixed / "b", tmp_path / "m.onnx")
        )
        assert_same_rows(by_folder, by_file)
