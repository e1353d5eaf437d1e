"""`csada fit`: what it writes, that nothing of it is ever half there, and that a run that was killed goes on."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from csada.workflow.evidence import counts
from test_cli import csada as program

import csada
from csada import decisions
from csada.folders import exchange, replaced, reserved
from csada.models import load, read_config
from csada.report.page import read as read_for_report
from csada.workflow.fit import fine_tune, folded, parse_options, save_fine_tuned
from csada.workflow.train import save_baseline, train_baseline

FILES = ["README.md", "costs.csv", "evidence.npz", "model.json", "model.safetensors", "record.json"]
SETTINGS = ["--epochs", "3", "--set", "tasks=8", "--refer", "0.05"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "digits"
    run = program("train", "digits", "--model", "cnn", "--epochs", "8", "--out", folder)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def fitted(base):
    folder = base.parent / "fitted"
    run = program("fit", base, "digits", "--costs", "pareto:1", "--out", folder, *SETTINGS)
    assert run.returncode == 0, run.stderr
    return folder, run.stdout


@pytest.fixture(scope="module")
def splits():
    return csada.data.load("digits")


def test_from_a_trained_folder_to_a_fitted_one(base, fitted, splits):
    folder, shown = fitted
    record = json.loads((folder / "record.json").read_text())
    costs = csada.CostMatrix.from_csv(folder / "costs.csv")
    model, config = load(folder), read_config(folder)
    again = csada.evaluate(model, splits, costs)
    assert record["rows"]["after"]["test"] == again.confusion.tolist()
    assert f"{100 * again.accuracy:.2f}" in shown and f"csada report {folder}" in shown.replace("\n", " ")
    assert config["input"] == {"shape": [1, 8, 8], "dtype": "uint8"}
    assert config["normalization"] == read_config(base)["normalization"]
    rule = decisions.from_plain(config["decision"], config["classes"])
    scores = csada.predict_logits(model, splits)
    assert record["rows"]["after + rule"]["test"] == counts(scores, rule)
    assert len(record["rows"]["after + rule"]["test"][0]) == 11 and len(record["rows"]["after"]["test"][0]) == 10
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert {path.name for path in folder.parent.iterdir()} <= {"digits", "fitted", "killed"}


def test_the_record_tells_the_whole_run(base, fitted):
    record = json.loads((fitted[0] / "record.json").read_text())
    assert record["experiment"] == "fit" and record["start"] == read_config(base)["metadata"]
    assert record["data"]["samples"] == {"train": 1078, "validation": 360, "test": 359}
    assert record["options"] | {"epochs": 3, "tasks": 8, "lr": 1e-3, "batch_size": 64} == record["options"]
    assert list(record["rows"]) == ["before", "before + rule", "after", "after + rule"]
    assert record["decision"] == record["rules"]["after"] and record["decision"]["referral_cost"] > 0
    first = record["history"][0]
    assert 0.5 < first["validation_accuracy"] <= 1 and first["validation_cost"] >= 0 and len(first["attacks"]) == 10
    assert time.strptime(record["started"], "%Y-%m-%dT%H:%M:%SZ")
    assert record["recommended"] in record["rows"]
    assert np.sum(record["rows"]["before + rule"]["validation"]) == 360
    read_for_report(fitted[0])  # refuses what it cannot show


def test_the_evidence_repeats_the_counts_without_the_model(fitted):
    record = json.loads((fitted[0] / "record.json").read_text())
    with np.load(fitted[0] / "evidence.npz", allow_pickle=False) as arrays:
        logits, labels = arrays["after_test"], arrays["test_labels"]
        assert logits.dtype == np.float16 and labels.dtype == np.int64
        close = np.abs(csada.metrics.confusion_counts(labels, logits.argmax(1), 10) - record["rows"]["after"]["test"])
        assert close.sum() <= 2  # half precision may turn a tie
        wrong = arrays["mistakes"]
        assert len(wrong) == len(arrays["mistake_images"]) and (labels[wrong[:, 0]] == wrong[:, 1]).all()
        assert arrays["original_images"].shape == arrays["adversarial_images"].shape


def test_killed_and_started_again_it_ends_as_if_nothing_had_happened(base, fitted, splits):
    """Meanwhile the folder is refused to others."""
    out = base.parent / "killed"
    command = [sys.executable, "-m", "csada", "fit", base, "digits", "--costs", "pareto:1", "--out", out, *SETTINGS]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list(out.glob(".csada/*.pt")) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(csada.InputError, match="is in use by another run"), reserved(out):
        pass
    first.kill()
    first.communicate()
    assert not (out / "model.json").exists() and list(out.glob(".csada/*.pt"))
    run = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert list(told["rows"]) == ["before", "before + rule", "after", "after + rule"]
    assert set(told["rows"]["after"]["test"]) == {"samples", "accuracy", "cost_per_100", "interval", "coverage"}
    assert (out / "model.safetensors").read_bytes() == (fitted[0] / "model.safetensors").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == FILES


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch, csada
from csada.workflow.fit import fine_tune, save_fine_tuned
torch.set_num_threads(1)
base, out = map(Path, sys.argv[1:])
splits = csada.data.load("digits", scale=0.2)
tuned = [fine_tune(base, splits, csada.CostMatrix.pareto(10, seed=s), "csada", {"epochs": 1}) for s in (0, 1)]
save_fine_tuned(tuned[0], out)
started = time.perf_counter()
save_fine_tuned(tuned[0], out)
once = time.perf_counter() - started
random.seed(0)
states = []
while len(states) < 20 or (len({state.index(True) for state in states}) == 1 and len(states) < 200):
    child = os.fork()
    if child == 0:
        while True:
            for each in tuned:
                save_fine_tuned(each, out)
    time.sleep(random.uniform(1, 4) * once)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    model, costs = csada.models.load(out), csada.CostMatrix.from_csv(out / "costs.csv")
    states.append([torch.equal(model.fc.weight, t.model.fc.weight) and costs.values.tolist() == t.record["costs"]
                   for t in tuned])
    assert sum(states[-1]) == 1, states
assert len({state.index(True) for state in states}) == 2, "killed too early each time"
"""


def test_whoever_is_killed_while_writing_leaves_the_old_folder_or_the_new_one(base, tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, base, tmp_path / "out"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with reserved(tmp_path / "out"):
        assert [path.name for path in tmp_path.iterdir()] == ["out"]  # what they left is gone


def test_the_rule_alone_needs_no_training_and_a_method_that_wraps_the_model_can_be_saved(base, splits, tmp_path):
    costs = csada.CostMatrix.pareto(10, seed=1)
    rule = fine_tune(base, splits, costs, "csada", {"epochs": 0})
    assert rule.history == [] and rule.record["rows"]["before + rule"] == rule.record["rows"]["after + rule"]
    save_fine_tuned(fine_tune(base, splits, costs, "sosr", {"epochs": 1}), tmp_path / "sosr")
    again = csada.predict_logits(load(tmp_path / "sosr"), splits).logits
    assert (
        counts(csada.evaluation.Scores(again, splits.test.y))
        == (json.loads((tmp_path / "sosr" / "record.json").read_text())["rows"]["after"]["test"])
    )
    with pytest.raises(csada.InputError, match="csdnn trains a network of its own"):
        fine_tune(base, splits, costs, "csdnn", {})


def test_rows_of_numbers_leave_no_pictures(tmp_path):
    points = csada.data.load("toy")
    start = save_baseline(train_baseline(points, "mlp", epochs=2), points, tmp_path / "start")
    costs = csada.CostMatrix.from_pairs(points.classes, {("green", "blue"): 10})
    save_fine_tuned(fine_tune(start, points, costs, "csada", {"epochs": 1}), tmp_path / "out")
    found = read_for_report(tmp_path / "out")
    assert not any("images" in name for name in found.arrays) and found.record["history"][0]["attacks"]
    assert "csada predict FOLDER rows.csv" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("name", ["sosr", "auxcst"])
def test_a_folded_layer_of_cost_estimates_gives_the_same_scores(name, splits):
    costs = csada.CostMatrix.pareto(10)
    wrapped = csada.fit(
        csada.models.create("cnn", 10, channels=1, size=8), splits.validation, name, costs, epochs=1
    ).model
    plain = folded(wrapped)
    assert plain.state_dict().keys() == csada.models.create("cnn", 10, channels=1, size=8).state_dict().keys()
    expected = csada.predict_logits(wrapped, splits).logits
    torch.testing.assert_close(csada.predict_logits(plain, splits).logits, expected, rtol=1e-4, atol=1e-4)


def test_settings_that_are_not_given_suit_the_model_and_the_number_of_samples(base):
    few = csada.data.load("digits", scale=0.2)
    options = fine_tune(base, few, csada.CostMatrix.pareto(10), "csada", {"epochs": 1}).record["options"]
    assert options["batch_size"] == 216 // 8 and options["step_size"] == 0.02 and options["lr"] == 1e-3


def test_what_is_not_ours_is_never_overwritten(tmp_path):
    for name in ("holiday/beach.jpg", "plan/costs.csv", "file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    bad_places = {
        "holiday": r"not csada's \(beach.jpg\)",
        "plan": "costs.csv",
        "file": "is a file",
        ".": "cannot be replaced",
    }
    for bad, message in bad_places.items():
        with pytest.MonkeyPatch.context() as patch, pytest.raises(csada.InputError, match=message):
            patch.chdir(tmp_path)
            with reserved(tmp_path / bad):
                pass
    with reserved(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()  # nothing came of it
    bundle = tmp_path / "bundle"
    for text in ("old", "new"):
        with reserved(bundle), replaced(bundle) as folder:
            (folder / "model.json").write_text(text)
        if text == "old":
            for name in ("report.html", "notes.txt"):
                (bundle / name).write_text("of the old model")
    kept = {path.name: path.read_text() for path in bundle.iterdir()}
    assert kept == {"model.json": "new", "notes.txt": "of the old model"}
    with pytest.raises(csada.RunError, match="what was there is kept"), reserved(bundle), replaced(bundle):
        raise OSError(28, "No space left on device")
    assert (bundle / "model.json").read_text() == "new" and not (bundle / ".csada").exists()


LIKE_OURS = ["lock", "checkpoint-500/weights.pt", "checkpoint-0.pt", ".notes.tmp", ".out.1.tmp/notes"]
BESIDE = [".out.1.tmp/notes", ".out.b.1.tmp", ".out.tmp/notes", "out.old/notes"]


def test_files_that_are_named_like_ours_stay(base, tmp_path):
    """Whatever is run on the folder, and however it ends."""
    out = tmp_path / "out"
    theirs = [*(out / name for name in LIKE_OURS), *(tmp_path / name for name in BESIDE)]
    for file in theirs:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("theirs")
    few = ["digits", "--scale", "0.3", "--out", out]
    train = ["train", *few, "--model", "mlp", "--epochs", "1"]
    fit = ["fit", base, *few, "--costs", "pareto:1", "--epochs", "5", "--set", "tasks=8"]

    def stay(run, code=0):
        assert run.returncode == code, run.stderr
        assert [file.read_text() for file in theirs if file.exists()] == ["theirs"] * len(theirs)

    refused = program(*train)
    stay(refused, 2)
    assert "holds files that are not csada's (.notes.tmp, .out.1.tmp, checkpoint-0.pt, ...)" in refused.stderr
    shutil.copytree(base, out, dirs_exist_ok=True)  # now it holds a model too
    (out / "latest").symlink_to("checkpoint-500")
    stay(program(*train))
    with subprocess.Popen([sys.executable, "-m", "csada", *map(str, fit)], stdout=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 120
        while not list(out.glob(".csada/*.pt")) and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        killed.kill()
    stay(killed, -signal.SIGKILL)
    stay(program(*fit))
    assert (out / "latest").readlink().name == "checkpoint-500"
    assert {path.name for path in tmp_path.iterdir()} == {"out", *(Path(name).parts[0] for name in BESIDE)}


def test_an_empty_folder_stays_when_nothing_came_of_it(tmp_path):
    with reserved(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_folders_change_places(tmp_path, monkeypatch):
    """In one step; and step by step where the system cannot."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("")
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists() and (tmp_path / "b" / "a").exists()
    monkeypatch.setattr("ctypes.CDLL", lambda _: None)
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "a").exists() and (tmp_path / "b" / "b").exists() and len(list(tmp_path.iterdir())) == 2


def test_bad_input_is_one_line(base, tmp_path):
    nowhere = program("fit", tmp_path / "none", "digits", "--costs", "uniform", "--out", tmp_path / "out")
    assert nowhere.returncode == 2 and "none" in nowhere.stderr and len(nowhere.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    assert parse_options(["weight=5", "norm=l2", "freeze_norm=false"]) == {
        "weight": 5,
        "norm": "l2",
        "freeze_norm": False,
    }
    with pytest.raises(csada.InputError, match="is not NAME=VALUE"):
        parse_options(["weight"])
