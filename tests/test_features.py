"""A head on the features of a frozen backbone: trained and fitted in feature space, used on images."""

import csv
import os

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import inside, refused

from csada import Classifier, data
from csada.data.cache import seal, sealed
from csada.models.featured import Featured
from csada.workflow.features import lowered
from csada.workflow.train import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A backbone that csada trained, a linear head on its features, and what fit makes of it."""
    place = tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CSADA_CACHE", str(place / "cache"))
        train(data.load("digits"), "cnn", epochs=5).save(place / "backbone")
        for words in (
            ("train", "digits", "--features", place / "backbone", "--epochs", "10", "--out", place / "head"),
            ("fit", place / "head", "digits", "--costs", "pareto:0", "--method", "csada", "--epochs", "2",
             "--out", place / "fitted"),
        ):  # fmt: skip
            run = inside(*words)
            assert run.returncode == 0, run.stderr
        yield place


def test_the_backbone_stays_as_it_was_and_the_classifier_takes_images(folder, tmp_path):
    backbone, head, fitted = (Classifier.load(folder / name) for name in ("backbone", "head", "fitted"))
    frozen = backbone.members[0].model.state_dict()
    for each in (head, fitted):
        network = each.members[0].model
        assert isinstance(network, Featured) and each.input == backbone.input
        body = network.backbone.state_dict()
        assert all(torch.equal(body[name], frozen[name]) for name in body) and len(body) == len(frozen) - 2
    splits = data.load("digits")
    assert (head.predict(splits.test.x) == splits.test.y.numpy()).mean() > 0.9
    Image.fromarray((splits.test.x[0, 0] * 16).clamp(max=255).to(torch.uint8).numpy()).save(tmp_path / "digit.png")
    assert inside("predict", folder / "fitted", tmp_path / "digit.png", "--out", tmp_path / "rows.csv").returncode == 0
    with open(tmp_path / "rows.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["class"] in fitted.classes and not row["error"]
    assert inside("evaluate", folder / "fitted", "digits").returncode == 0


def test_head_and_whole_agree_and_features_are_computed_once(folder):
    whole = Classifier.load(folder / "fitted")
    before = set((folder / "cache").glob("*.features"))
    head, features, _ = lowered(whole, data.load("digits"))
    assert set((folder / "cache").glob("*.features")) == before and len(before) == 3
    assert np.allclose(head.logits(features.test.x), whole.logits(data.load("digits").test.x), atol=1e-4)


@pytest.mark.parametrize("damage", ["flipped", "short", "no numbers", "an array of another kind", "a zip", "a pipe"])
def test_damaged_features_are_computed_again(folder, damage):
    """Another kind of array, a ZIP file and an infinite number under its right hash were a traceback, a pipe was waited for, a
    flipped bit other features."""
    whole, digits = Classifier.load(folder / "fitted"), data.load("digits")
    _, before, _ = lowered(whole, digits)
    for file in (folder / "cache").glob("*.features"):
        content = file.read_bytes()
        file.unlink()
        if damage == "a pipe":
            os.mkfifo(file)
        elif damage == "flipped":
            file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        elif damage == "short":
            seal(file, content[32:-4])
        elif damage == "no numbers":
            seal(file, content[32:-4] + np.float32(np.inf).tobytes())
        else:
            with file.open("wb") as out:
                save = np.savez if damage == "a zip" else np.save
                save(out, np.full(before.train.x.shape, "x"))
    _, after, _ = lowered(whole, digits)
    assert torch.equal(after.test.x, before.test.x) and torch.equal(after.train.x, before.train.x)
    assert all(sealed(file) is not None for file in (folder / "cache").glob("*.features"))


def test_report_and_card_say_that_attacks_live_in_feature_space(folder, tmp_path):
    said = "on features of a frozen cnn: attacks changed these features"
    assert said in (folder / "fitted" / "README.md").read_text()
    assert inside("report", folder / "fitted", "--out", tmp_path / "report.html").returncode == 0
    assert said in (tmp_path / "report.html").read_text()


def test_an_exported_file_takes_pixels(folder, tmp_path):
    pytest.importorskip("onnxruntime")
    run = inside("export", folder / "fitted", "--out", tmp_path / "m.onnx")
    assert run.returncode == 0 and "1 x 8 x 8 uint8" in run.stdout, run.stderr


def test_what_is_no_backbone_or_head_is_refused(folder, tmp_path):
    out = ("--out", tmp_path / "m")
    assert "--pretrained FILE" in refused("train", "digits", "--features", "cnn", *out)
    assert "linear or mlp" in refused("train", "digits", "--features", folder / "backbone", "--model", "cnn", *out)
    assert "takes samples of" in refused("train", "toy", "--features", folder / "backbone", *out)
