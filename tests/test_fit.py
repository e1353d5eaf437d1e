"""`csada fit`: it saves what validation chose, nothing of it is ever half there, and a run that was killed resumes."""

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
from program import Program
from test_cli import inside, refused

import csada
from csada.evaluation import Scores
from csada.folders import exchange, replaced, reserved
from csada.workflow.fit import as_plain, decision_for, improve
from csada.workflow.project import parse_options
from csada.workflow.train import train

FILES = ["README.md", "arrays.safetensors", "costs.csv", "model.json", "model.safetensors"]
ROWS = ["before", "before + rule", "after", "after + rule"]
SETTINGS = ["--method", "csada", "--epochs", "3", "--set", "tasks=8", "--refer", "0.05"]
COSTS = csada.CostMatrix.pareto(10, seed=1)


@pytest.fixture(scope="module")
def splits():
    return csada.data.load("digits")


@pytest.fixture(scope="module")
def weak(splits, tmp_path_factory):
    """A model with much left to learn."""
    return train(splits, "cnn", epochs=1).save(tmp_path_factory.mktemp("weak") / "digits")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "digits"
    run = inside("train", "digits", "--model", "cnn", "--epochs", "8", "--out", folder)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def fitted(base):
    folder = base.parent / "fitted"
    run = inside("fit", base, "digits", "--costs", "pareto:1", "--out", folder, *SETTINGS)
    assert run.returncode == 0, run.stderr
    return folder, run.stdout


def killed(command, out):
    """Run until its first checkpoint, and no further."""
    process, deadline = Program(*command), time.monotonic() + 120
    try:
        while not list(out.glob(".csada/[0-9a-f]*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_fitted_folder_tells_the_whole_run(base, fitted, splits):
    folder, shown = fitted
    start, saved = csada.Classifier.load(base), csada.Classifier.load(folder)
    evidence, after = saved.evidence, saved.evidence.test["after"]
    assert list(evidence.test) == ROWS and saved.input == start.input and saved.training == start.training
    assert f"{100 * after.accuracy:.2f}" in shown and f"csada report {folder}" in shown.replace("\n", " ")
    assert evidence.samples == {"train": 1078, "validation": 360, "test": 359}
    assert evidence.options | {"epochs": 3, "tasks": 8, "lr": 1e-3, "batch_size": 64} == evidence.options
    assert 1 <= evidence.validation["after + rule"].referred <= 0.05 * 360 and after.referred == 0
    first, wrong = evidence.history[0], evidence.arrays["mistakes"]
    assert 0.5 < first.validation_accuracy <= 1 and first.validation_cost >= 0 and len(first.attacks) == 10
    assert time.strptime(evidence.started, "%Y-%m-%dT%H:%M:%SZ")
    assert (evidence.labels()[wrong[:, 0]] == wrong[:, 1]).all() and len(wrong) == len(
        evidence.arrays["mistake_images"]
    )
    assert np.array_equal(evidence.labels(), splits.test.y)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert {path.name for path in folder.parent.iterdir()} <= {"digits", "fitted", "killed"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("before", ("--costs", "uniform", "--method", "csada", "--lr", "0", "--scale", "0.13")),
        ("before + rule", ("--costs", "pareto:1", "--epochs", "0", "--budget", "100")),
        (
            "after",
            ("--costs", "uniform", "--method", "cost_weighted", "--lr", "0.05", "--epochs", "12", "--scale", "0.13"),
        ),
        (
            "after + rule",
            ("--costs", "pareto:1", "--method", "cost_weighted", "--lr", "0.05", "--referral-cost", "0.3"),
        ),
    ],
)
def test_what_is_saved_decides_as_the_row_that_validation_chose(weak, splits, tmp_path, row, words):
    run = inside("fit", weak, "digits", "--epochs", "2", *words, "--out", tmp_path / "out", "--json")
    assert run.returncode == 0, run.stderr
    told, saved = json.loads(run.stdout), csada.Classifier.load(tmp_path / "out")
    evidence = saved.evidence
    assert told["chosen"] == evidence.chosen == row and list(told["rows"]) == (
        ROWS[:2] if row == "before + rule" else ROWS
    )
    start = csada.Classifier.load(weak).network.state_dict()
    same = all(torch.equal(start[name], tensor) for name, tensor in saved.network.state_dict().items())
    assert same == row.startswith("before")
    few = (
        words[-2:] if "--scale" in words else ()
    )  # too few validation samples to choose a calibration that changes a class
    test = csada.data.load("digits", scale=0.13).test if few else splits.test
    assert (saved.predict(test.x) == evidence.decided(row)).all()
    judged = json.loads(inside("evaluate", tmp_path / "out", "digits", "--json", *few).stdout)
    assert judged["confusion"] == evidence.test[row].confusion.tolist()
    assert judged["mean_cost"] == told["rows"][row]["test"]["mean_cost"]
    cheapest = min(told["rows"][each]["validation"]["mean_cost"] for each in told["rows"])
    assert told["rows"][row]["validation"]["mean_cost"] == cheapest


def test_the_budget_counts_from_the_given_model_by_argmax(weak, splits):
    start = csada.Classifier.load(weak)
    given = csada.evaluate(start.network, splits, COSTS, part="validation").accuracy
    # Training gains accuracy: the rule may spend what was gained.
    better = improve(start, splits, COSTS, "cost_weighted", {"lr": 0.05, "epochs": 2}, budget=0).evidence
    before, after = (
        Scores(*map(torch.from_numpy, (better.logits(side, "validation"), better.labels("validation"))))
        for side in ("before", "after")
    )
    assert better.validation["after"].accuracy > given + 0.05
    assert better.rules["after"] == decision_for(after, before, COSTS, 0.0)
    assert given <= better.validation["after + rule"].accuracy
    # Training gives accuracy up: however cheap, that is not chosen.
    costs = csada.CostMatrix(np.where(np.eye(10) == 1, 0, np.eye(10)[3] * 100 + 1e-3), splits.classes)
    worse = improve(start, splits, costs, "expected_cost", {"lr": 0.05, "epochs": 3}, budget=0.5).evidence
    found = worse.validation
    assert found["after"].mean_cost < found["before"].mean_cost and found["after"].accuracy < given - 0.005
    assert worse.chosen.startswith("before") and found[worse.chosen].accuracy >= given - 0.005


@pytest.mark.parametrize("name", ["sosr", "auxcst", "csdnn"])
def test_a_method_with_layers_of_its_own_is_saved_as_a_network_that_a_file_can_describe(name, weak, splits, tmp_path):
    words = ("--costs", "pareto:1", "--method", name, "--epochs", "8", "--lr", "0.02", "--budget", "100")
    run = inside("fit", weak, "digits", *words, "--out", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    saved = csada.Classifier.load(tmp_path / "out")
    assert saved.evidence.chosen.startswith("after")
    assert saved.evidence.architecture == saved.members[0].architecture == ("mlp" if name == "csdnn" else "cnn")
    logits = saved.scores(splits).logits
    np.testing.assert_allclose(logits, saved.evidence.logits("after"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sosr", "auxcst"])
def test_a_folded_layer_of_cost_estimates_gives_the_same_scores(name, splits):
    start = csada.models.create("cnn", 10, channels=1, size=8)
    wrapped = csada.fit(start, splits.validation, name, COSTS, epochs=1).model
    plain = as_plain(wrapped)
    assert plain.state_dict().keys() == start.state_dict().keys()
    expected = csada.predict_logits(wrapped, splits).logits
    torch.testing.assert_close(csada.predict_logits(plain, splits).logits, expected, rtol=1e-4, atol=1e-4)


def test_killed_and_started_again_it_ends_as_if_nothing_had_happened(base, fitted):
    """Meanwhile the folder is refused to others."""
    out = base.parent / "killed"
    command = ["fit", base, "digits", "--costs", "pareto:1", "--out", out, *SETTINGS]
    for _ in killed(command, out):
        with pytest.raises(csada.InputError, match="is in use by another run"), reserved(out):
            pass
    assert not (out / "model.json").exists()
    run = inside(*command, "--json")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert set(told) == {"folder", "rows", "chosen", "verdict", "options", "members"}
    person = {"coverage", "referred", "referral_cost", "decided"}
    assert set(told["rows"]["after"]["test"]) == {"samples", "accuracy", "mean_cost", "interval", *person}
    saved, whole = (csada.Classifier.load(each) for each in (out, fitted[0]))
    assert saved.evidence.arrays.keys() == whole.evidence.arrays.keys()
    for name, array in whole.evidence.arrays.items():
        assert np.array_equal(saved.evidence.arrays[name], array), name
    assert (out / "model.safetensors").read_bytes() == (fitted[0] / "model.safetensors").read_bytes()
    assert sorted(path.name for path in out.iterdir()) == FILES


KILLED = """
import os, random, signal, sys, time
import torch, csada
from csada.workflow.fit import improve
torch.set_num_threads(1)
base, out = csada.Classifier.load(sys.argv[1]), sys.argv[2]
splits = csada.data.load("digits", scale=0.2)
made = [improve(base, splits, csada.CostMatrix.pareto(10, seed=s), "csada", {"epochs": 1}, budget=100) for s in (0, 1)]
made[0].save(out)
started = time.perf_counter()
made[0].save(out)
once = time.perf_counter() - started
random.seed(0)
states = []
while len(states) < 20 or (len({state.index(True) for state in states}) == 1 and len(states) < 200):
    child = os.fork()
    if child == 0:
        while True:
            for each in made:
                each.save(out)
    time.sleep(random.uniform(1, 4) * once)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found, costs = csada.Classifier.load(out), csada.CostMatrix.from_csv(out + "/costs.csv")
    states.append([found.costs == each.costs == costs and found.evidence == each.evidence for each in made])
    assert sum(states[-1]) == 1, states
assert len({state.index(True) for state in states}) == 2, "killed too early each time"
"""


def test_whoever_is_killed_while_writing_leaves_the_old_folder_or_the_new_one(base, tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, base, tmp_path / "out"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with reserved(tmp_path / "out"):
        assert [path.name for path in tmp_path.iterdir()] == ["out"]  # what they left is gone


def test_rows_of_numbers_leave_no_pictures(tmp_path):
    points = csada.data.load("toy")
    costs = csada.CostMatrix.from_pairs(points.classes, {("green", "blue"): 10})
    saved = improve(train(points, "mlp", epochs=2), points, costs, "csada", {"epochs": 1})
    assert not any("images" in name for name in saved.evidence.arrays) and saved.evidence.history[0].attacks
    assert f"It takes samples of {saved.input}." in (saved.save(tmp_path / "out") / "README.md").read_text()


def test_settings_that_are_not_given_suit_the_model_and_the_number_of_samples(base):
    few = csada.data.load("digits", scale=0.2)
    options = improve(csada.Classifier.load(base), few, COSTS, "csada", {"epochs": 1}).evidence.options
    assert options["batch_size"] == 216 // 8 and options["step_size"] == 0.02 and options["lr"] == 1e-3


def test_what_is_not_ours_is_never_overwritten(tmp_path, monkeypatch):
    for name in ("holiday/beach.jpg", "plan/costs.csv", "file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    places = {
        "holiday": r"not csada's \(beach.jpg\)",
        "plan": "costs.csv",
        "file": "is a file",
        ".": "cannot be replaced",
    }
    for bad, message in places.items():
        with pytest.raises(csada.InputError, match=message), reserved(tmp_path / bad):
            pass
    (tmp_path / "empty").mkdir()
    with reserved(tmp_path / "new"), reserved(tmp_path / "empty"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists() and list((tmp_path / "empty").iterdir()) == []  # nothing came of it
    model = tmp_path / "model"
    for text in ("old", "new"):
        with reserved(model), replaced(model) as folder:
            (folder / "model.json").write_text(text)
        if text == "old":
            for name in ("report.html", "notes.txt"):
                (model / name).write_text("of the old model")
    kept = {path.name: path.read_text() for path in model.iterdir()}
    assert kept == {"model.json": "new", "notes.txt": "of the old model"}
    with pytest.raises(csada.RunError, match="what was there is kept"), reserved(model), replaced(model):
        raise OSError(28, "No space left on device")
    assert (model / "model.json").read_text() == "new" and not (model / ".csada").exists()


LIKE_OURS = ["lock", "checkpoint-500/weights.pt", "checkpoint-0.pt", ".notes.tmp", ".out.1.tmp/notes", "record.json"]
BESIDE = [".out.1.tmp/notes", ".out.b.1.tmp", ".out.tmp/notes", "out.old/notes"]


def test_files_that_are_named_like_ours_stay(base, tmp_path):
    """Whatever is run on the folder, and however it ends."""
    out = tmp_path / "out"
    theirs = [*(out / name for name in LIKE_OURS), *(tmp_path / name for name in BESIDE)]
    for file in theirs:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("theirs")
    few = ["digits", "--scale", "0.3", "--out", out]
    train_it = ["train", *few, "--model", "mlp", "--epochs", "1"]
    fit_it = ["fit", base, *few, "--costs", "pareto:1", "--method", "csada", "--epochs", "5", "--set", "tasks=8"]

    def stay():
        assert [file.read_text() for file in theirs if file.exists()] == ["theirs"] * len(theirs)

    assert "holds files that are not csada's (.notes.tmp, .out.1.tmp, checkpoint-0.pt, ...)" in refused(*train_it)
    stay()
    shutil.copytree(base, out, dirs_exist_ok=True)  # now it holds a model too
    (out / "latest").symlink_to("checkpoint-500")
    assert inside(*train_it).returncode == 0
    stay()
    for _ in killed(fit_it, out):
        pass
    stay()
    assert inside(*fit_it).returncode == 0
    stay()
    assert (out / "latest").readlink().name == "checkpoint-500"
    assert {path.name for path in tmp_path.iterdir()} == {"out", *(Path(name).parts[0] for name in BESIDE)}


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "seed=1.5"), "seed is 1.5; a whole number is needed"),
        (("--set", "seed=x"), "seed is 'x'; a whole number is needed"),
        (("--set", "steps=[]"), "steps is []; a whole number is needed"),
        (("--set", "epochs=1.5"), "epochs is 1.5; a whole number is needed"),
        (("--set", "weight"), "--set 'weight' is not NAME=VALUE"),
        (("--set", "wait=1"), "unknown option 'wait' for csada; did you mean 'weight'"),
        (("--method", "csda"), "unknown method 'csda'; did you mean 'csada'"),
    ],
)
def test_bad_input_is_one_line(base, tmp_path, words, message):
    assert message in refused(
        "fit", base, "digits", "--costs", "uniform", "--method", "csada", "--out", tmp_path / "out", *words
    )
    assert not (tmp_path / "out").exists()


def test_options_are_json_or_text(tmp_path):
    found = parse_options(["weight=5", "norm=l2", "freeze_norm=false"])
    assert found == {"weight": 5, "norm": "l2", "freeze_norm": False}
    assert "none is no saved model" in refused("fit", tmp_path / "none", "digits", "--costs", "uniform")


def test_a_budget_of_nothing_allows_what_loses_nothing():
    """Two of three are right before and after the rule, which only makes the third mistake a cheaper one."""
    x = torch.tensor([[5.0, 0, 0], [0, 5, 0], [1, 0.999, 0]])
    part = csada.Part(x, torch.tensor([0, 1, 2]))
    splits = csada.Splits(part, part, part, ("a", "b", "c"))
    costs = csada.CostMatrix.from_pairs(splits.classes, {("c", "a"): 10.0})
    start = csada.Classifier.of(torch.nn.Identity(), splits)
    better = csada.improve(start, splits, costs, options={"epochs": 0}, budget=0.0)
    assert better.evidence.chosen == "before + rule" and better.predict(x).tolist() == [0, 1, 1]
