"""What a model shows on data: through `csada evaluate`, and the parts that `csada fit` writes."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from csada.cli.work import evaluate
from csada.workflow.evidence import Probe, costs_in, counts, fitting, judge, mistakes, pictures, rule_for
from PIL import Image
from test_cli import csada as program

import csada
from csada.decisions import threshold_for_budget, to_plain
from csada.evaluation import Scores
from csada.methods import METHODS
from csada.models import read_config, save
from csada.workflow.train import Baseline, save_baseline

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
    root = tmp_path_factory.mktemp("evidence")
    photos(root / "photos")
    run = program("train", root / "photos", "--epochs", "8", "--out", root / "model", "--json")
    assert run.returncode == 0, run.stderr
    return root, json.loads(run.stdout)


def test_training_suits_a_small_folder_and_the_bundle_knows_its_input(trained):
    root, told = trained
    assert told["model"] == "cnn" and told["accuracy"]["test"] > 0.9 and "history" not in told
    assert told["stages"][0]["batch_size"] == 16  # of 21 samples: more than one step an epoch
    config = read_config(root / "model")
    assert config["input"] == {"shape": [3, 20, 20], "dtype": "uint8"} and config["decision"] is None
    assert sorted(path.name for path in (root / "model").iterdir()) == [
        "model.json",
        "model.safetensors",
        "record.json",
    ]
    assert sorted(path.name for path in root.iterdir()) == ["model", "photos"]


def test_evaluate_takes_new_images_as_the_model_was_trained(trained, tmp_path):
    root, _ = trained
    costs = tmp_path / "costs.csv"
    table = csada.CostMatrix.from_pairs(list(COLOURS), {("blue", "cream"): 20})
    table.to_csv(costs)
    photos(tmp_path / "new", ("amber", "blue"), side=40, shade=10)  # other sides, no cream: other means, too
    run = program("evaluate", root / "model", tmp_path / "new", "--costs", costs, "--part", "all", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["samples"] == 24 and found["classes"] == list(COLOURS) and found["confusion"][2] == [0, 0, 0]
    assert found["accuracy"] > 0.9 and found["decision"] == "the most probable class"
    assert found["dearest"][0] | {"errors": 0, "two_sided_95": None} == {
        "truth": "blue",
        "predicted": "cream",
        "cost": 20,
        "errors": 0,
        "samples": 12,
        "two_sided_95": None,
    }
    (tmp_path / "new" / "blue").rename(tmp_path / "new" / "bleu")
    (tmp_path / "new" / "zinc").mkdir()
    for path in (tmp_path / "new" / "amber").glob("[0-5].png"):
        path.rename(tmp_path / "new" / "zinc" / path.name)
    wrong = program("evaluate", root / "model", tmp_path / "new", "--costs", costs)
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1
    assert "rename 'bleu' to 'blue'; take out 'zinc'; add 'cream'" in wrong.stderr


def test_evaluate_says_what_it_cannot_do(trained):
    root, _ = trained
    splits = csada.data.load(root / "photos", size=20)
    uniform = csada.CostMatrix.uniform(3)
    for bad, message in (({"part": "tests"}, "unknown part 'tests'"), ({"decision": "max"}, "unknown decision 'max'")):
        with pytest.raises(csada.InputError, match=message):
            judge(root / "model", splits, uniform, **bad)
    with pytest.raises(csada.InputError, match="takes samples of 3 x 20 x 20; those of photos are 3 x 24 x 24"):
        judge(root / "model", csada.data.load(root / "photos", size=24), uniform)
    with pytest.raises(csada.InputError, match="trained without costs; give --costs"):
        evaluate(root / "model", str(root / "photos"))
    if not torch.cuda.is_available():
        with pytest.raises(csada.InputError, match="no GPU for --device cuda"):
            evaluate(root / "model", str(root / "photos"), device="cuda")


def test_the_three_ways_to_decide(tmp_path):
    """A network that has learnt nothing is unsure, so that costs decide."""
    splits, costs = csada.data.load("digits", scale=0.3), csada.CostMatrix.pareto(10, seed=1)
    model = csada.models.create("cnn", 10, channels=1, size=8)
    scores = csada.predict_logits(model, splits, part="validation")
    rule = csada.MinimumExpectedCost.calibrated(*scores, costs)
    own = csada.Abstention(rule, threshold_for_budget(scores.logits, rule, 0.3))
    config = {"architecture": "cnn", "arguments": {"channels": 1, "size": 8}, "classes": splits.classes}
    config |= {"normalization": asdict(splits.train.normalization), "decision": to_plain(own)}
    save(model, tmp_path, config=config)
    found = {name: judge(tmp_path, splits, costs, decision=name).evaluation for name in ("bundle", "argmax", "rule")}
    for name, decide in (("bundle", own), ("argmax", "argmax"), ("rule", rule)):
        expected = csada.evaluate(model, splits, costs, decide)
        assert (found[name].confusion == expected.confusion).all() and found[name].total_cost == expected.total_cost
    assert len({e.total_cost for e in found.values()}) == 3 and 0 < found["bundle"].coverage < 1
    confused = judge(tmp_path, splits, costs).confused
    assert [pair.errors for pair in confused] == sorted((pair.errors for pair in confused), reverse=True)
    assert costs_in(tmp_path) == csada.CostMatrix(costs.values, splits.classes)


def test_classes_are_matched_by_name_whatever_their_order(trained):
    root, _ = trained
    splits = csada.data.load(root / "photos", size=20)
    turned = {
        part: replace(getattr(splits, part), y=2 - getattr(splits, part).y) for part in ("train", "validation", "test")
    }
    reversed_ = replace(splits, classes=splits.classes[::-1], **turned)
    known = fitting(reversed_, read_config(root / "model"), "model")
    assert known.classes == splits.classes and torch.equal(known.test.y, splits.test.y)


def test_counts_have_a_column_for_what_is_left_to_a_person():
    generator = torch.Generator().manual_seed(0)
    scores = Scores(torch.randn(200, 3, generator=generator), torch.randint(3, (200,), generator=generator))
    costs = csada.CostMatrix.pareto(3)
    rule = rule_for(scores, costs, 1.0, refer=0.1)
    table = np.array(counts(scores, rule))
    assert table.shape == (3, 4) and 1 <= table[:, 3].sum() <= 20
    assert np.array(counts(scores, rule_for(scores, costs, 1.0, refer=0))).shape == (3, 3)
    assert table.sum(1).tolist() == torch.bincount(scores.labels).tolist()


@pytest.fixture(scope="module")
def digits():
    splits = csada.data.load("digits")
    start = csada.models.create("cnn", 10, channels=1, size=8)
    return splits, csada.fit(start, splits, "cross_entropy", epochs=8, lr=0.05, batch_size=64).model


def test_the_probe_attacks_the_dearest_pairs_as_the_method_does(digits):
    splits, model = digits
    costs = csada.CostMatrix.from_pairs(splits.classes, {("1", "7"): 20, ("3", "8"): 10}, default=0)
    method = METHODS["csada"](costs, step_size=0.1)
    probe = Probe.of(method, splits.train)
    found = probe(model)
    assert [(line["truth"], line["predicted"]) for line in found] == [(1, 7), (3, 8)]  # the others cost nothing
    one = found[0]
    assert (
        sum(one[name] for name in ("skipped", "rejected", "reached", "exhausted")) == 5
    )  # of 1,078: a look must not take long
    batch = splits.train.batch(probe.sample[probe.number == 0])
    by_hand = csada.attack(model, batch.x, batch.y, 7, step_size=0.1)
    assert int((by_hand.outcome == csada.Outcome.REACHED).sum()) == one["reached"] and (batch.y == 1).all()
    assert Probe.of(method, splits.train)(model) == found  # the same samples after every epoch
    assert Probe.of(METHODS["penalty"](costs), splits.train) is None
    assert Probe.of(METHODS["csada"](csada.CostMatrix.uniform(10, 0)), splits.train) is None


def test_examples_are_pictures_of_what_training_uses(digits):
    splits, model = digits
    costs = csada.CostMatrix.pareto(10, seed=1)
    found = Probe.of(METHODS["csada"](costs, step_size=0.1, epsilon=0.3), splits.train).examples(model)
    assert found["original_images"].shape == found["adversarial_images"].shape == (12, 8, 8, 3)
    assert [tuple(pair) for pair in found["examples"][::2].tolist()] == costs.top_pairs(6)
    assert (found["perturbations"][:, 0] <= 0.3 * 0.376 * 255 + 1e-3).all() and (found["perturbations"] > 0).all()
    away = np.abs(found["adversarial_images"].astype(int) - found["original_images"]).max((1, 2, 3))
    assert (away <= found["perturbations"][:, 0] + 1).all() and away.max() > 5


def test_pictures_are_the_pixels_and_mistakes_come_dearest_first(digits):
    splits, _ = digits
    shown = pictures(splits.test.batch(torch.arange(3)).x, splits.test.normalization)
    assert np.array_equal(shown[..., 0], np.round(splits.test.x[:3, 0].numpy() * (255 / 16)).astype(np.uint8))
    costs = csada.CostMatrix.pareto(10, seed=1)
    predicted = np.roll(splits.test.y.numpy(), 1)
    predicted[:5] = -1  # left to a person: no mistakes
    found = mistakes(splits.test, predicted, costs)
    paid = [costs.values[y, z] for _, y, z in found["mistakes"]]
    assert len(paid) == 24 and paid == sorted(paid, reverse=True) and found["mistakes"][:, 0].min() >= 5
    index, truth, called = found["mistakes"][0]
    assert truth == int(splits.test.y[index]) and called == predicted[index] and found["mistake_images"].shape[0] == 24


def test_a_baseline_of_rows_knows_its_input(tmp_path):
    splits = csada.data.load("toy")
    record = {"model": "mlp", "arguments": {"features": 2}, "data": "toy", "recipe": "small", "seed": 0}
    baseline = Baseline(csada.models.create("mlp", 3, features=2), record | {"accuracy": {}, "training_loss": 1.0})
    assert read_config(save_baseline(baseline, splits, tmp_path / "m"))["input"] == {"shape": [2], "dtype": "float32"}


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
    assert program("train", data, "--out", tmp_path / "m", "--model", "mlp", "--epochs", "20").returncode == 0
    assert read_config(tmp_path / "m")["input"]["columns"] == ["marker", "dose"]
    costs = csada.CostMatrix.from_pairs(("ill", "well"), {("ill", "well"): 5})
    found = [judge(tmp_path / "m", csada.data.load(path), costs).evaluation for path in (data, turned)]
    assert (found[0].confusion == found[1].confusion).all() and found[0].accuracy > 0.9
    answers = [program("predict", tmp_path / "m", path) for path in (data, turned)]
    assert answers[0].returncode == 0 and answers[0].stdout == answers[1].stdout
    with pytest.raises(csada.InputError, match=r"other has other columns than .*m: rename 'doze' to 'dose'"):
        judge(tmp_path / "m", csada.data.load(other), costs)
