import json

import pytest
import torch
from test_cli import csada as program

import csada
from csada.workflow.train import save_baseline, train_baseline


def test_a_baseline_says_whether_it_fits_its_training_data_and_comes_back_from_its_folder(tmp_path):
    splits = csada.data.load("digits", scale=0.5)
    seen = []
    told = lambda line, total: seen.append((line["epoch"], total))  # noqa: E731
    baseline = train_baseline(splits, "cnn", epochs=30, on_epoch=told)
    record = baseline.record
    assert seen == [(k, 30) for k in range(1, 31)]
    logits, labels = csada.predict_logits(baseline.model, splits, part="train")
    assert record["training_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)))
    assert record["interpolates"] == (record["training_loss"] < 0.01)
    assert sum(map(sum, record["confusion"]["test"])) == len(splits.test)
    folder = save_baseline(baseline, splits, tmp_path / "digits")
    again = csada.models.load(folder)
    assert torch.equal(csada.predict_logits(again, splits).logits, csada.predict_logits(baseline.model, splits).logits)
    assert json.loads((folder / "record.json").read_text()) == json.loads(json.dumps(record))


def test_a_training_that_was_interrupted_goes_on_and_another_one_begins_anew(tmp_path):
    splits = csada.data.load("digits", scale=0.2)
    seen = []

    def stop(line, total):
        seen.append(line["epoch"])
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_baseline(splits, "cnn", epochs=5, checkpoints=tmp_path, on_epoch=stop)
    told = lambda line, total: seen.append(line["epoch"])  # noqa: E731
    resumed = train_baseline(splits, "cnn", epochs=5, checkpoints=tmp_path, on_epoch=told)
    assert seen[:3] == [1, 2, 3] and seen[3] > 1 and seen[-1] == 5  # from a checkpoint on
    assert [line["epoch"] for line in resumed.record["history"]] == [1, 2, 3, 4, 5]
    whole = train_baseline(splits, "cnn", epochs=5)
    pairs = zip(resumed.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    train_baseline(csada.data.load("digits", scale=0.1), "cnn", epochs=5, checkpoints=tmp_path, on_epoch=told)
    assert seen[-5:] == [1, 2, 3, 4, 5]
    assert whole.record["stages"][0]["batch_size"] == 16  # the least; a 32nd of 216 samples would be 6


def test_stages_freeze_all_but_the_head_first(monkeypatch):
    from csada.models.recipes import Stage
    from csada.workflow import train as module

    recipe = (Stage(epochs=2, lr=0.01, batch_size=32, optimizer="adam", train_only="head"),)
    monkeypatch.setitem(module.RECIPES, "head-only", recipe)
    splits = csada.data.load("digits", scale=0.1)
    trained = train_baseline(splits, "cnn", "head-only").model.state_dict()
    start = csada.models.create("cnn", 10, channels=1, size=8).state_dict()
    changed = {name.split(".")[0] for name in trained if not torch.equal(trained[name], start[name])}
    assert changed == {"fc"}


def test_the_commands(tmp_path):
    shown = program("data", "show", "digits")
    assert shown.returncode == 0 and "1,078" in shown.stdout
    run = program("train", "digits", "--model", "cnn", "--epochs", "2", "--scale", "0.2", "--out", tmp_path / "m")
    assert run.returncode == 0 and "test accuracy" in run.stdout and "does not fit its training data" in run.stderr
    assert csada.models.load(tmp_path / "m")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    bad = program("train", "digits", "--model", "cnn", "--recipe", "quick", "--out", tmp_path / "n")
    assert bad.returncode == 2 and "unknown recipe 'quick'; known: paper, fast" in bad.stderr
    missing = program("data", "fetch", "imagenet")
    assert missing.returncode == 2 and "imagenet" in missing.stderr
