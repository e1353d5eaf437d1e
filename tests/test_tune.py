import json
import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from test_cli import csada as program

import csada
from csada.decisions import from_plain
from csada.folders import locked
from csada.models import load, read_config
from csada.paper.demo import COSTS
from csada.workflow import tune as tuning
from csada.workflow.train import save_baseline, train_baseline

ENV = os.environ | {"OMP_NUM_THREADS": "1"}
SCALE = 0.3


@pytest.fixture(scope="module")
def splits():
    return csada.data.load("digits", scale=SCALE)


@pytest.fixture(scope="module")
def bundle(splits, tmp_path_factory):
    return save_baseline(train_baseline(splits, "cnn", epochs=10), splits, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def doses(tmp_path_factory):
    file = tmp_path_factory.mktemp("costs") / "doses.csv"
    COSTS.to_csv(file)
    return file


def decided(folder, splits, costs, part):
    """What the saved model, with the rule saved beside it, does: nothing here comes from the search."""
    rule = from_plain(read_config(folder)["decision"], splits.classes)
    return csada.evaluate(load(folder), splits, costs, rule, part=part)


def tempting(bundle, splits):
    """Only what the model gets wrong costs anything: any accuracy is worth giving up to avoid it."""
    made = csada.evaluate(load(bundle), splits, csada.CostMatrix.uniform(10), part="validation").confusion
    return csada.CostMatrix(np.where(np.eye(10), 0, made))


def pareto(*_):
    return csada.CostMatrix.pareto(10, seed=4)


@pytest.mark.parametrize(
    ("method", "budget", "seed", "make"),
    [
        ("csada", 0, 0, pareto),
        ("csada", 2, 0, pareto),  # a trained one, which uses the budget up
        ("csada", 0, 1, tempting),
        ("csada", 2, 2, tempting),
        ("sosr", 2, 0, tempting),  # its last layer is another
    ],
)
def test_what_is_returned_keeps_to_the_budget_and_costs_no_more(bundle, splits, tmp_path, method, budget, seed, make):
    costs = make(bundle, splits)
    record = tuning.tune(bundle, splits, costs, tmp_path, method=method, budget=budget, trials=4, epochs=1, seed=seed)
    start, returned = load(bundle), decided(tmp_path / "model", splits, costs, "validation")
    before = csada.evaluate(start, splits, costs, part="validation")
    rule = csada.MinimumExpectedCost.within_budget(
        *csada.predict_logits(start, splits, part="validation"), costs, budget / 100
    )
    ruled = csada.evaluate(start, splits, costs, rule, part="validation")
    assert returned.accuracy >= before.accuracy - budget / 100 - 1e-9
    assert returned.weighted_error_rate <= ruled.weighted_error_rate
    trained = record["recommendation"]["trial"] is not None
    assert trained == (returned.weighted_error_rate < ruled.weighted_error_rate)
    assert record["verdict"].startswith("Use the model of trial" if trained else "Nothing qualifies")


def test_the_record_is_what_the_saved_model_does_and_the_command_makes_that_model_again(
    splits, doses, tmp_path, tmp_path_factory
):
    unfinished = train_baseline(splits, "cnn", epochs=2)  # so that training helps, whatever the method
    bundle = save_baseline(unfinished, splits, tmp_path_factory.mktemp("unfinished"))
    record = tuning.tune(bundle, splits, COSTS, tmp_path, budget=2, trials=6, epochs=3)
    advice, rows = record["recommendation"], record["rows"]
    assert advice["trial"] is not None
    assert record["verdict"].startswith(f"Use the model of trial {advice['trial']} ")
    assert json.loads((tmp_path / "tuning.json").read_text()) == json.loads(json.dumps(record))
    for part in ("validation", "test"):
        again = decided(tmp_path / "model", splits, COSTS, part)
        assert rows["recommended"][part]["confusion"] == again.confusion.tolist()
        assert rows["recommended"][part]["cost"] == again.weighted_error_rate
        before = csada.evaluate(load(bundle), splits, COSTS, part=part)
        assert rows["baseline"][part]["confusion"] == before.confusion.tolist()
    assert tuple(rows["recommended"]["test"]["cost_interval"]) == again.interval("weighted_error_rate")
    saved = rows["baseline + rule"]["test"]["cost"] - rows["recommended"]["test"]["cost"]
    assert advice["saved"]["test"] == pytest.approx(saved)
    within = [t for t in record["trials"] if t["state"] == "finished" and t["validation"]["rule"] is not None]
    assert rows["recommended"]["validation"]["cost"] == min(t["validation"]["rule"]["cost"] for t in within)

    trained = json.loads((tmp_path / "model" / "record.json").read_text())
    assert trained["history"] == record["trials"][advice["trial"]]["history"]  # to the second: it was not trained again
    assert trained["recommended"].startswith("after") and trained["budget"] == 2

    command = shlex.split(tuning.fit_command(record, bundle, "digits", str(doses), "--scale", str(SCALE)))
    again = program(*command[1:], "--out", tmp_path / "again", env=ENV)
    assert command[0] == "csada" and again.returncode == 0, again.stderr
    weights, others = (load(tmp_path / folder).state_dict() for folder in ("model", "again"))
    assert all(torch.equal(others[name], tensor) for name, tensor in weights.items())
    assert read_config(tmp_path / "again")["decision"] == read_config(tmp_path / "model")["decision"]


@pytest.mark.parametrize(("factor", "state"), [(1e6, "pruned"), (1e30, "diverged")])
def test_hopeless_trials_are_given_up_and_then_nothing_qualifies(bundle, splits, tmp_path, monkeypatch, factor, state):
    monkeypatch.setitem(tuning.FACTORS, "lr", factor)
    monkeypatch.setitem(sys.modules, "optuna", None)  # it would soon learn which rates to leave alone
    costs = csada.CostMatrix.single_pair(10, 0, 1)  # a mistake that the model never makes: nothing can be cheaper
    record = tuning.tune(bundle, splits, costs, tmp_path, budget=0, trials=10, epochs=2, seed=1)
    states = [trial["state"] for trial in record["trials"]]
    assert state in states and "finished" in states and len(states) == 10
    given_up = [trial for trial in record["trials"] if trial["state"] == "pruned"]
    assert all(trial["history"][-1]["epoch"] < 2 and trial["validation"] is None for trial in given_up)
    assert record["recommendation"]["trial"] is None
    assert record["verdict"].startswith("Nothing qualifies: none of 10 trials is cheaper within 0 points")
    assert "--epochs 0" in tuning.fit_command(record, bundle, "digits", "costs.csv")
    start = load(bundle).state_dict()
    assert all(torch.equal(start[name], tensor) for name, tensor in load(tmp_path / "model").state_dict().items())


def test_killed_it_goes_on_and_ends_as_if_nothing_had_happened(bundle, splits, doses, tmp_path):
    words = ["tune", bundle, "digits", "--scale", SCALE, "--costs", doses, "--budget", 2, "--epochs", 2, "--trials", 7]
    out = tmp_path / "killed"
    line = [sys.executable, "-m", "csada", *map(str, [*words, "--out", out])]
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    deadline = time.monotonic() + 120
    while len(lines(out)) < 3 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = lines(out)
    assert 3 <= len(before) < 7 and not (out / "tuning.json").exists()
    (out / ".model.csada" / "half").mkdir(parents=True)  # as when it is killed while it writes the model
    foreign = [out / name for name in ("checkpoint-500.pt", ".notes.tmp", ".model.1.tmp")]
    for file in foreign:
        file.write_text("not ours")

    again = program(*words, "--out", out, env=ENV)
    assert again.returncode == 0, again.stderr
    assert lines(out)[: len(before)] == before and len(lines(out)) == 7  # to the second: they were not run again
    undisturbed = tuning.tune(bundle, splits, COSTS, tmp_path / "whole", budget=2, epochs=2, trials=7)
    record = json.loads((out / "tuning.json").read_text())
    for theirs, ours in zip(record["trials"], undisturbed["trials"], strict=True):
        assert all(theirs[key] == ours[key] for key in ("number", "parameters", "state", "validation"))
    assert record["rows"] == json.loads(json.dumps(undisturbed["rows"]))
    assert record["verdict"] in again.stdout
    assert again.stderr == "" or tuning.optuna_version() is None
    assert len(list(out.glob(".csada/*.pt"))) <= 1 and not (out / ".model.csada").exists()
    assert [file.read_text() for file in foreign] == ["not ours"] * 3
    assert "<svg" in (out / "frontier.svg").read_text()[:2000] and (out / "frontier.png").stat().st_size > 10_000

    with pytest.raises(csada.InputError, match="trials of another search, of other budget"):
        tuning.tune(bundle, splits, COSTS, out, budget=1, epochs=2, trials=7)


def lines(out):
    file = out / "trials.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def test_without_optuna_it_draws_at_random_and_says_so(bundle, splits, doses, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # an import then fails
    first = tuning.tune(bundle, splits, COSTS, tmp_path, epochs=1, trials=2)["trials"]
    hidden = "import sys; sys.modules['optuna'] = None; from csada.cli import main; main()"
    words = ["tune", bundle, "digits", "--scale", SCALE, "--costs", doses, "--epochs", 1, "--trials", 3, "--json"]
    line = [sys.executable, "-c", hidden, *map(str, [*words, "--out", tmp_path])]
    run = subprocess.run(line, capture_output=True, text=True, env=ENV)
    assert run.returncode == 0 and len(run.stderr.splitlines()) == 1 and "install 'csada[tune]'" in run.stderr
    record = json.loads(run.stdout)
    assert record["trials"][:2] == first and len(record["trials"]) == 3
    assert [trial["proposed_by"] for trial in record["trials"]] == ["defaults", "random", "random"]
    for name, (low, high) in record["space"].items():
        drawn = [trial["parameters"][name] for trial in record["trials"]]
        assert all(low <= value <= high for value in drawn) and len(set(drawn)) == 3


def test_optuna_learns_from_the_trials_before(bundle, splits, tmp_path):
    pytest.importorskip("optuna")
    space = {"lr": (1e-4, 1e-2)}

    def asked(bad):
        """Proposals after 20 trials of which those on one side of 1e-3 were bad."""
        rates = np.geomspace(*space["lr"], 20)
        trials = [
            {"parameters": {"lr": lr}, "state": "finished", "validation": {"value": float(bad(lr))}, "history": []}
            for lr in rates.tolist()
        ]
        return [tuning.by_optuna(space, trials, seed)["lr"] for seed in range(10)]

    assert np.median(asked(lambda lr: lr > 1e-3)) < 1e-3 < np.median(asked(lambda lr: lr < 1e-3))
    record = tuning.tune(bundle, splits, COSTS, tmp_path, trials=2, epochs=1)
    assert record["trials"][1]["proposed_by"].startswith("optuna ")


def test_bad_input_is_refused_before_any_training(bundle, splits, tmp_path):
    with pytest.raises(csada.InputError, match="from 0 to 100; got -1"):
        tuning.tune(bundle, splits, COSTS, tmp_path, budget=-1)
    with locked(tmp_path), pytest.raises(csada.InputError, match="in use by another run"):
        tuning.tune(bundle, splits, COSTS, tmp_path)
    with pytest.raises(csada.InputError, match="csdnn trains a network of its own"):
        tuning.tune(bundle, splits, COSTS, tmp_path, method="csdnn", epochs=1)
    assert lines(tmp_path) == []


def test_the_time_limit_starts_no_further_trial(bundle, splits, tmp_path):
    record = tuning.tune(bundle, splits, COSTS, tmp_path, budget=4, minutes=0)
    assert record["trials"] == [] and "keep your model with the decision rule, which costs" in record["verdict"]
    assert (
        decided(tmp_path / "model", splits, COSTS, "test").confusion.tolist()
        == record["rows"]["baseline + rule"]["test"]["confusion"]
    )
