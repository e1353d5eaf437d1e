import numpy as np
import pytest
import torch
from test_cli import inside, refused

import csada
from csada.workflow.train import train


def test_a_baseline_says_whether_it_fits_its_training_data_and_comes_back_from_its_folder(tmp_path):
    splits = csada.data.load("digits", scale=0.5)
    seen = []
    told = lambda line, total: seen.append((line["epoch"], total))  # noqa: E731
    made = train(splits, "cnn", epochs=30, on_epoch=told)
    facts = made.training
    assert seen == [(k, 30) for k in range(1, 31)]
    logits, labels = csada.predict_logits(made.network, splits, part="train")
    assert facts.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)))
    assert facts.interpolates == (facts.loss < 0.01)
    again = csada.Classifier.load(made.save(tmp_path / "digits"))
    assert again.training == facts and again.input == made.input and again.classes == splits.classes
    assert torch.equal(again.scores(splits).logits, made.scores(splits).logits)
    right = (again.predict(splits.test.x) == splits.test.y.numpy()).mean()
    assert facts.accuracy["test"] == pytest.approx(right) and facts.samples["test"] == len(splits.test)
    assert (again.trained_on == sorted(set(splits.train.ids))).all()


def test_a_training_that_was_interrupted_resumes_and_another_one_begins_anew(tmp_path):
    splits = csada.data.load("digits", scale=0.2)
    seen = []

    def stop(line, total):
        seen.append(line["epoch"])
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(splits, "cnn", epochs=5, checkpoints=tmp_path, on_epoch=stop)
    told = lambda line, total: seen.append(line["epoch"])  # noqa: E731
    resumed = train(splits, "cnn", epochs=5, checkpoints=tmp_path, on_epoch=told)
    assert seen[:3] == [1, 2, 3] and seen[3] > 1 and seen[-1] == 5  # from a checkpoint on
    assert [line.epoch for line in resumed.training.history] == [1, 2, 3, 4, 5]
    whole = train(splits, "cnn", epochs=5)
    pairs = zip(resumed.network.parameters(), whole.network.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    train(csada.data.load("digits", scale=0.1), "cnn", epochs=5, checkpoints=tmp_path, on_epoch=told)
    assert seen[-5:] == [1, 2, 3, 4, 5]


def test_stages_freeze_all_but_the_head_first(monkeypatch):
    from csada.models.recipes import Stage
    from csada.workflow import train as module

    recipe = (Stage(epochs=2, lr=0.01, batch_size=32, optimizer="adam", train_only="head"),)
    monkeypatch.setitem(module.RECIPES, "head-only", recipe)
    trained = train(csada.data.load("digits", scale=0.1), "cnn", "head-only").network.state_dict()
    start = csada.models.create("cnn", 10, channels=1, size=8).state_dict()
    changed = {name.split(".")[0] for name in trained if not torch.equal(trained[name], start[name])}
    assert changed == {"fc"}


def test_the_commands(tmp_path):
    run = inside("train", "digits", "--model", "cnn", "--epochs", "2", "--scale", "0.2", "--out", tmp_path / "m")
    assert run.returncode == 0 and "test accuracy" in run.stdout and not run.stderr
    words = "fit", tmp_path / "m", "digits", "--scale", "0.2", "--costs", "uniform", "--epochs", "1"
    for method, warned in (("csada", True), ("cost_weighted", False)):
        run = inside(*words, "--method", method, "--out", tmp_path / method)
        assert run.returncode == 0 and ("does not fit its training data" in run.stderr) == warned
    assert csada.Classifier.load(tmp_path / "m").predict(torch.zeros(1, 1, 8, 8)).shape == (1,)
    bad = refused("train", "digits", "--model", "cnn", "--recipe", "quick", "--out", tmp_path / "n")
    assert "unknown recipe 'quick'; known: paper, fast" in bad and not (tmp_path / "n").exists()
    assert "imagenet" in refused("data", "fetch", "imagenet")


def test_a_model_that_is_there_already_is_not_trained_again(tmp_path):
    """Unless it is asked for, or anything that it was made from has changed: a label, for instance."""
    generator = np.random.default_rng(0)
    rows = [f"{a:.4f},{b:.4f},{'ny'[int(a > 0)]}" for a, b in generator.normal(size=(200, 2))]
    table, out = tmp_path / "data.csv", tmp_path / "m"

    def trained(*words, there):
        table.write_text("\n".join(["a,b,state", *rows]) + "\n")
        run = inside("train", table, "--model", "mlp", "--epochs", "1", "--out", out, *words)
        assert run.returncode == 0, run.stderr
        expected = f"{out} holds this model already; nothing to do (another --out or --seed trains another)\n"
        assert (run.stdout == expected) == there

    trained(there=False)
    written = (out / "model.json").stat().st_mtime_ns
    trained(there=True)
    assert (out / "model.json").stat().st_mtime_ns == written and not (out / ".csada").exists()
    trained("--force", there=False)
    trained("--seed", "1", there=False)
    trained(there=False)
    rows[0] = rows[0][:-1] + "ny"[rows[0].endswith("n")]
    trained(there=False)
    trained(there=True)
