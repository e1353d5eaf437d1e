import json
import resource
import shlex
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from program import Program, program
from test_cli import inside, refused

import csada
from csada.folders import reserved
from csada.paper.demo import COSTS
from csada.reading import plain, read_json
from csada.report.card import verdict
from csada.workflow import tune as tuning
from csada.workflow.engine import Engine
from csada.workflow.train import train

SCALE = 0.3


@pytest.fixture(scope="module")
def splits():
    return csada.data.load("digits", scale=SCALE)


@pytest.fixture(scope="module")
def base(splits, tmp_path_factory):
    return train(splits, "cnn", epochs=10).save(tmp_path_factory.mktemp("base") / "m")


@pytest.fixture(scope="module")
def start(base):
    return csada.Classifier.load(base)


@pytest.fixture(scope="module")
def doses(tmp_path_factory):
    file = tmp_path_factory.mktemp("costs") / "doses.csv"
    COSTS.to_csv(file)
    return file


def tempting(start, splits):
    """Only what the model gets wrong costs anything: any accuracy is worth giving up to avoid it."""
    made = csada.evaluate(start.network, splits, csada.CostMatrix.uniform(10), part="validation").confusion
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
        ("csdnn", 2, 0, pareto),  # all of it is another
    ],
)
def test_what_is_saved_keeps_to_the_budget_and_costs_no_more(start, splits, tmp_path, method, budget, seed, make):
    costs = make(start, splits)
    found, _ = tuning.tune(start, splits, costs, tmp_path, method=method, budget=budget, trials=4, epochs=1, seed=seed)
    saved = csada.Classifier.load(tmp_path / "model")
    before = csada.evaluate(start.network, splits, costs, part="validation")
    assert saved.evaluate(splits, part="validation").accuracy >= before.accuracy - budget / 100 - 1e-9
    judged = saved.evidence.validation
    paid, ruled = judged[saved.evidence.chosen].mean_cost, judged["before + rule"].mean_cost
    assert found.baseline.rule.mean_cost == pytest.approx(ruled)
    assert paid <= ruled and (found.leader is not None) == (paid < ruled)
    if found.leader is None:  # nothing is trained
        assert found.chosen["epochs"] == 0 and saved.evidence.chosen.startswith("before")
        same_weights(start, saved)


def test_the_search_saves_what_it_tells_and_its_command_makes_that_model_again(splits, doses, tmp_path):
    base = train(splits, "cnn", epochs=2).save(tmp_path / "unfinished")  # so that training helps, whatever the method
    words = ("tune", base, "digits", "--scale", SCALE, "--costs", doses, "--budget", 2, "--epochs", 3)
    run = inside(*words, "--trials", 6, "--out", tmp_path / "out", "--json")
    assert run.returncode == 0, run.stderr
    told, saved = json.loads(run.stdout), csada.Classifier.load(tmp_path / "out" / "model")
    found = read_json(tmp_path / "out" / "tuning.json", tuning.Tuning)
    assert told | plain(found) == told and found.leader is not None and found.budget == 2
    assert told["chosen"] == saved.evidence.chosen and saved.evidence.chosen.startswith("after")
    assert saved.evidence.trials == len(found.trials) == 6 and told["verdict"] == verdict(saved.evidence)
    assert told["rows"][told["chosen"]]["test"]["mean_cost"] == saved.evaluate(splits).mean_cost
    within = [trial.validation.rule for trial in found.trials if trial.validation and trial.validation.rule]
    assert saved.evidence.chosen == "after + rule"
    judged = saved.evidence.validation["after + rule"].mean_cost
    assert judged == pytest.approx(min(point.mean_cost for point in within))  # as `fit` judges
    steps = found.trials[found.leader].history
    assert [line.epoch for line in saved.evidence.history] == [step.epoch for step in steps]

    command = shlex.split(told["command"])
    again = inside(*command[1:], "--out", tmp_path / "again")
    assert command[0] == "csada" and again.returncode == 0, again.stderr
    other = csada.Classifier.load(tmp_path / "again")
    same_weights(saved, other)
    assert other.decision == saved.decision and other.evidence.chosen == saved.evidence.chosen


def same_weights(a, b):
    weights = b.network.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in a.network.state_dict().items())


@pytest.mark.parametrize(("factor", "state"), [(1e6, "pruned"), (1e30, "diverged")])
def test_hopeless_trials_are_given_up(start, splits, tmp_path, monkeypatch, factor, state):
    monkeypatch.setitem(tuning.FACTORS, "lr", factor)
    costs = csada.CostMatrix.single_pair(10, 0, 1)
    found, _ = tuning.tune(start, splits, costs, tmp_path, budget=0, trials=12, epochs=2, seed=3)
    states = [trial.state for trial in found.trials]
    assert state in states and "finished" in states and len(states) == 12
    given_up = [trial for trial in found.trials if trial.state == "pruned"]
    assert all(trial.history[-1].epoch < 2 and trial.validation is None for trial in given_up)
    assert found.leader is None or states[found.leader] == "finished"


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_it_resumes_and_ends_as_if_nothing_had_happened(base, start, splits, doses, tmp_path, workers):
    words = ["tune", base, "digits", "--scale", SCALE, "--costs", doses, "--budget", 2, "--epochs", 2, "--trials", 7]
    words += ["--workers", workers]
    out = tmp_path / "killed"
    running = Program(*words, "--out", out)
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

    again = inside(*words, "--out", out)
    assert again.returncode == 0, again.stderr
    assert lines(out)[: len(before)] == before and len(lines(out)) == 7
    whole, better = tuning.tune(
        start, splits, COSTS, tmp_path / "whole", budget=2, epochs=2, trials=7, engine=Engine(workers=workers)
    )
    found, saved = read_json(out / "tuning.json", tuning.Tuning), csada.Classifier.load(out / "model")
    assert replace(found, seconds=0) == replace(whole, seconds=0)
    assert saved.decision == better.decision and saved.evidence.chosen == better.evidence.chosen
    same_weights(saved, better)
    assert verdict(saved.evidence) in again.stdout
    assert again.stderr == ""
    assert len(list(out.glob(".csada/[0-9a-f]*"))) <= 1 and not (out / ".model.csada").exists()
    assert [file.read_text() for file in foreign] == ["not ours"] * 3
    assert "<svg" in (out / "frontier.svg").read_text()[:2000] and (out / "frontier.png").stat().st_size > 10_000

    with pytest.raises(csada.InputError, match="trials of another search, with other budget"):
        tuning.tune(start, splits, COSTS, out, budget=1, epochs=2, trials=7)


def test_a_full_disk_ends_a_search_in_one_line_and_the_next_start_resumes(base, splits, doses, tmp_path):
    words = ["tune", base, "digits", "--scale", SCALE, "--costs", doses, "--epochs", 1, "--trials", 2, "--workers", 2]
    small = (base / "model.safetensors").stat().st_size // 2  # a checkpoint is larger
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (small, small))
    run = program(*words, "--out", tmp_path / "out", before=full)
    assert run.returncode == 1 and "File too large" in run.stderr.splitlines()[-1] and "Traceback" not in run.stderr
    assert lines(tmp_path / "out") == []
    assert inside(*words, "--out", tmp_path / "out").returncode == 0 and len(lines(tmp_path / "out")) == 2


def lines(out):
    file = out / "trials.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def test_without_optuna_it_is_refused(base, doses, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # an import then fails
    words = ["tune", base, "digits", "--scale", SCALE, "--costs", doses, "--out", tmp_path / "out"]
    assert refused(*words) == "csada: csada tune needs Optuna: pip install 'csada[tune]'\n"
    assert not (tmp_path / "out").exists()


def test_optuna_learns_from_the_trials_before(start, splits, tmp_path):
    optuna = pytest.importorskip("optuna")
    space = {"lr": (1e-4, 1e-2)}

    def asked(bad):
        """Proposals after 20 trials of which those on one side of 1e-3 were bad."""
        nothing = tuning.Point(1.0, 0.0)
        trials = [
            tuning.Trial(0, {"lr": lr}, "", "finished", (), tuning.Judgement(float(bad(lr)), nothing, nothing))
            for lr in np.geomspace(*space["lr"], 20).tolist()
        ]

        def proposed(study, number, known=trials):
            return tuning.propose(SimpleNamespace(space=space, options={"seed": 0}), study, known, number)[0]["lr"]

        whole, grown = optuna.create_study(), optuna.create_study()
        for number in range(
            1, 11
        ):  # a study that grew with the search proposes what one does that was told all at once
            proposed(grown, number, trials[: 6 + number])
        drawn = [proposed(whole, number) for number in range(1, 11)]
        assert drawn == [proposed(grown, number) for number in range(1, 11)]
        return drawn

    assert np.median(asked(lambda lr: lr > 1e-3)) < 1e-3 < np.median(asked(lambda lr: lr < 1e-3))
    found, _ = tuning.tune(start, splits, COSTS, tmp_path, trials=2, epochs=1)
    assert found.trials[1].proposed_by.startswith("optuna ")


def test_bad_input_is_refused_before_any_training(start, splits, tmp_path):
    with pytest.raises(csada.InputError, match="from 0 to 100; got -1"):
        tuning.tune(start, splits, COSTS, tmp_path, budget=-1)
    with reserved(tmp_path / "model"), pytest.raises(csada.InputError, match="in use by another run"):
        tuning.tune(start, splits, COSTS, tmp_path)
    assert lines(tmp_path) == []


def test_the_time_limit_starts_no_further_trial(start, splits, tmp_path):
    found, better = tuning.tune(start, splits, COSTS, tmp_path, budget=4, minutes=0)
    assert found.trials == () and found.leader is None and better.evidence.chosen == "before + rule"
    saved = csada.Classifier.load(tmp_path / "model").evaluate(splits)
    assert saved.confusion.tolist() == better.evidence.test["before + rule"].confusion.tolist()


@pytest.mark.parametrize("seen", ["drop", "keep"])
def test_samples_that_the_model_was_trained_on_are_dropped_or_kept_to_the_end(start, tmp_path, seen):
    other = csada.data.load("digits", scale=SCALE, seed=1)
    with pytest.raises(csada.InputError, match="ones that the classifier was trained on"):
        tuning.tune(start, other, COSTS, tmp_path, minutes=0)
    _, better = tuning.tune(start, other, COSTS, tmp_path, minutes=0, seen=seen)
    assert (better.evidence.samples["test"] == len(other.test)) == (seen == "keep")
