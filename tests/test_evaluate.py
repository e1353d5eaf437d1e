"""What a saved classifier shows on data: `csada evaluate`."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import inside, refused

import csada
from csada.decisions import threshold_for_budget
from csada.metrics import at_most
from csada.workflow.evaluate import judge

COLOURS = {"amber": (220, 160, 30), "blue": (30, 60, 220), "cream": (240, 230, 200)}


def photos(folder, names=tuple(COLOURS), each=12, side=20, shade=0):
    """A folder of images by class: a spot in the class's colour, darker by `shade`."""
    rng = np.random.default_rng(0)
    for name, colour in zip(names, COLOURS.values(), strict=False):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 60, (side, side + 4, 3))
            pixels[side // 4 : -side // 4, side // 3 : -side // 3] = np.array(colour) - shade
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of photographs, and a model trained on them by the program, without any option on how."""
    root = tmp_path_factory.mktemp("evaluate")
    photos(root / "photos")
    run = inside("train", root / "photos", "--epochs", "8", "--out", root / "model", "--json")
    assert run.returncode == 0, run.stderr
    return root, json.loads(run.stdout)


def test_training_suits_a_small_folder_and_the_classifier_knows_its_input(trained):
    root, told = trained
    assert told["model"] == "cnn" and told["accuracy"]["test"] > 0.9 and "history" not in told
    saved = csada.Classifier.load(root / "model")
    assert (saved.input.shape, saved.input.dtype) == ((3, 20, 20), "uint8") and saved.costs is None
    written = ["arrays.safetensors", "model.json", "model.safetensors"]
    assert sorted(path.name for path in (root / "model").iterdir()) == written
    assert sorted(path.name for path in root.iterdir()) == ["model", "photos"]


def test_evaluate_takes_new_images_as_the_model_was_trained(trained, tmp_path):
    root, _ = trained
    costs = tmp_path / "costs.csv"
    csada.CostMatrix.from_pairs(list(COLOURS), {("blue", "cream"): 20}).to_csv(costs)
    photos(tmp_path / "new", ("amber", "blue"), side=40, shade=10)  # other sides, no cream: other means, too
    run = inside("evaluate", root / "model", tmp_path / "new", "--costs", costs, "--part", "all", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["samples"] == 24 and found["classes"] == list(COLOURS) and found["confusion"][2] == [0, 0, 0]
    assert found["accuracy"] > 0.9 and found["decision"] == "the most probable class" and found["trained_on"] == 0
    first = {"truth": "blue", "predicted": "cream", "cost": 20, "samples": 12}
    assert found["costliest"][0] | first == found["costliest"][0]
    (tmp_path / "new" / "blue").rename(tmp_path / "new" / "bleu")
    (tmp_path / "new" / "zinc").mkdir()
    for path in (tmp_path / "new" / "amber").glob("[0-5].png"):
        path.rename(tmp_path / "new" / "zinc" / path.name)
    wrong = refused("evaluate", root / "model", tmp_path / "new", "--costs", costs)
    assert "rename 'bleu' to 'blue'; take out 'zinc'; add 'cream'" in wrong


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--costs", "uniform", "--part", "tests"), "unknown part 'tests'"),
        (("--costs", "uniform", "--decision", "max"), "unknown decision 'max'; known: own, argmax, rule"),
        (("--costs", "uniform", "--size", "24"), "takes samples of 3 x 20 x 20 uint8; those of photos are 3 x 24 x 24"),
        ((), "trained without costs; give --costs"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        pytest.param(
            ("--device", "cuda"),
            "no GPU for --device cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_evaluate_says_what_it_cannot_do(trained, words, message):
    root, _ = trained
    assert message in refused("evaluate", root / "model", root / "photos", *words)


def test_the_three_ways_to_decide(tmp_path):
    """A network that has learnt nothing is unsure, so that costs decide."""
    splits = csada.data.load("digits", scale=0.3)
    costs = csada.CostMatrix(csada.CostMatrix.pareto(10, seed=1).values, splits.classes, referral_cost=0.5)
    model = csada.models.create("cnn", 10, channels=1, size=8)
    scores = csada.predict_logits(model, splits, part="validation")
    rule = csada.MinimumExpectedCost.calibrated(*scores, costs)
    own = csada.Abstention(rule, threshold_for_budget(scores.logits, rule, 0.3))
    kwargs = {"architecture": "cnn", "arguments": {"channels": 1, "size": 8}, "decision": own}
    csada.Classifier.of(model, splits, costs, **kwargs).save(tmp_path / "m")
    paid = set()
    for name, decide in (("own", own), ("argmax", "argmax"), ("rule", rule)):
        run = inside("evaluate", tmp_path / "m", "digits", "--scale", "0.3", "--decision", name, "--json")
        found, expected = json.loads(run.stdout), csada.evaluate(model, splits, costs, decide)
        assert found["confusion"] == expected.confusion.tolist() and found["coverage"] == expected.coverage
        assert found["mean_cost"] == pytest.approx(expected.mean_cost)
        paid.add(found["mean_cost"])
        low, high = expected.interval("mean_cost")
        assert found["interval"] == {"low": low, "high": high, "level": 0.95, "sides": 2}
        pair, told = expected.top_pairs(1)[0], found["costliest"][0]
        assert told["interval"] == {"low": pair.bounds.low, "high": pair.bounds.high, "level": 0.95, "sides": 2}
        assert told["at_most"] == {"high": at_most(pair.errors, pair.samples), "level": 0.95, "sides": 1}
        errors = [pair["errors"] for pair in found["most_confused"]]
        assert errors == sorted(errors, reverse=True) and (name != "own" or 0 < found["coverage"] < 1)
    assert len(paid) == 3


def test_classes_are_matched_by_name_whatever_their_order(trained):
    root, _ = trained
    splits = csada.data.load(root / "photos", size=20)
    parts = {part: getattr(splits, part) for part in ("train", "validation", "test")}
    turned = {name: replace(part, y=2 - part.y) for name, part in parts.items()}
    known = csada.Classifier.load(root / "model").adapt(replace(splits, classes=splits.classes[::-1], **turned))
    assert known.classes == splits.classes and torch.equal(known.test.y, splits.test.y)


def test_columns_of_a_table_are_matched_by_name_whatever_their_order(tmp_path):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 300)
    x = generator.normal(0, 1, (300, 2)) * [1, 50] + y[:, None] * [4, 0]
    rows = [(a, b, ["well", "ill"][k]) for (a, b), k in zip(x.round(3).tolist(), y, strict=True)]

    def written(name, header, order):
        text = "\n".join([header, *(",".join(str(row[i]) for i in order) for row in rows)])
        (tmp_path / name).write_text(text + "\n")
        return tmp_path / name

    data = written("data.csv", "marker,dose,state", (0, 1, 2))
    turned = written("turned.csv", "dose,marker,state", (1, 0, 2))
    other = written("other.csv", "marker,doze,state", (0, 1, 2))
    assert inside("train", data, "--out", tmp_path / "m", "--model", "mlp", "--epochs", "20").returncode == 0
    saved = csada.Classifier.load(tmp_path / "m")
    assert saved.input.columns == ("marker", "dose") and (saved.input.shape, saved.input.dtype) == ((2,), "float32")
    costs = csada.CostMatrix.from_pairs(("ill", "well"), {("ill", "well"): 5})
    found = [judge(saved, csada.data.load(path), costs)[0] for path in (data, turned)]
    assert (found[0].confusion == found[1].confusion).all() and found[0].accuracy > 0.9
    answers = [inside("predict", tmp_path / "m", path) for path in (data, turned)]
    assert answers[0].returncode == 0 and answers[0].stdout == answers[1].stdout
    with pytest.raises(csada.InputError, match=r"other has other columns than the classifier: rename 'doze' to 'dose'"):
        judge(saved, csada.data.load(other), costs)


def test_new_data_are_judged_as_a_whole_and_known_ones_by_their_test_part(trained, tmp_path):
    root, told = trained
    photos(tmp_path / "new", shade=10)
    for folder, more, part, samples, why in (
        (tmp_path / "new", (), "all", 36, "seen none of these data"),
        (root / "photos", (), "test", told["samples"]["test"], "trained on others of these data"),
        (tmp_path / "new", ("--part", "validation"), "validation", None, ", validation, by"),
        (tmp_path / "new", ("--decision", "rule"), "test", None, "calibrated on the validation part"),
    ):
        words = ("evaluate", root / "model", folder, "--costs", "uniform", *more)
        found = json.loads(inside(*words, "--json").stdout)
        assert found["part"] == part and (samples is None or found["samples"] == samples)
        assert why in inside(*words).stdout


def test_training_data_are_said_to_be_that(trained):
    root, told = trained
    run = inside("evaluate", root / "model", root / "photos", "--costs", "uniform", "--part", "train")
    n = told["samples"]["train"]
    assert run.returncode == 0 and f"trained on {n} of these {n} samples: that flatters it" in run.stderr
    assert "flatters" not in inside("evaluate", root / "model", root / "photos", "--costs", "uniform").stderr
