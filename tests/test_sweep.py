"""Sweeps that are killed, shared, and run out of disk: real processes on real folders."""

import fcntl
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import partial

import numpy as np
import pytest
from program import Program, program

import csada
from csada.paper import EXPERIMENTS
from csada.paper.record import written
from csada.paper.spec import load_spec
from csada.paper.sweep import collect, run_experiment, write_record
from csada.workflow.runs import identity

SWEEP = """
title = "a small sweep"
data = "digits"
model = "cnn"
costs = "pareto"
methods = ["csada", "sosr"]
[smoke]
replications = 1
matrices = {matrices}
options.every = {{ epochs = {epochs}, momentum = 0.0 }}
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def sweep(tmp_path, epochs=2, matrices=1, more=""):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(epochs=epochs, matrices=matrices) + more)
    return path


def run_here(path, folder):
    spec = load_spec(str(path), "smoke")
    report = run_experiment(spec, folder / "runs")
    write_record(folder / "results" / f"{spec.record}.json", collect(spec, folder / "runs"))
    return report


def start(spec, folder, *more, address="", **kw):
    words = "reproduce", spec, "--scale", "smoke", "--runs", folder / "runs", "--results", folder / "results", *more
    return Program(*words, env=os.environ | {"RAY_ADDRESS": address}, **kw)


def finished(process):
    try:
        out, err = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


def record(folder):
    return json.loads((folder / "results" / "sweep-smoke.json").read_text())


def numbers(folder):
    """What must not depend on how a sweep came to its end."""
    found = record(folder)
    return [
        (run["config"], {k: v for k, v in run["result"].items() if k != "seconds"}, [h["loss"] for h in run["history"]])
        for run in (*found["baselines"], *found["runs"])
    ]


def starts(folder):
    return {path.parent.name: len(path.read_text().splitlines()) for path in folder.glob("runs/*/*/starts.log")}


def test_a_sweep_that_was_killed_goes_on_repeats_nothing_and_ends_with_the_same_numbers(tmp_path):
    spec = sweep(tmp_path, epochs=20)
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    process = start(spec, broken)
    deadline = time.monotonic() + 60
    while True:  # until the second method run is in its third epoch
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        under_way = [p for p in broken.glob("runs/sweep/*/history.jsonl") if not (p.parent / "result.json").exists()]
        done = list(broken.glob("runs/sweep/*/result.json"))
        if done and under_way and under_way[0].read_text().count("\n") > 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list((broken / "results").glob("*"))
    (interrupted,) = [path.parent for path in under_way]
    assert not (interrupted / "result.json").exists() and (interrupted / ".csada/checkpoint").exists()
    first_epoch = json.loads((interrupted / "history.jsonl").read_text().splitlines()[0])
    written = {path: path.stat().st_mtime_ns for path in broken.glob("runs/*/*/result.json")}

    assert "1 done now" in finished(start(spec, broken))
    run_here(spec, whole)
    assert numbers(broken) == numbers(whole)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    assert {k: n for k, n in starts(broken).items() if n != 1} == {interrupted.name: 2}
    history = [json.loads(line) for line in (interrupted / "history.jsonl").read_text().splitlines()]
    assert history[0]["seconds"] == first_epoch["seconds"] and len(history) == 20  # continued, not done again
    assert not list(broken.glob("runs/**/.csada/checkpoint*")) and not list(broken.glob("runs/**/.*.tmp"))


def test_a_part_of_a_sweep_can_be_chosen_and_the_rest_added_later(tmp_path):
    spec = sweep(tmp_path, epochs=1, matrices=3)
    spec.write_text(spec.read_text().replace("replications = 1", "replications = 2"))
    part = ("--methods", "csada", "--matrices", "2", "--replications", "1")
    assert "3 done now" in finished(start(spec, tmp_path, *part))  # two runs and their baseline
    chosen = [(c["method"], c["costs"]["seed"], c["seed"]) for c in (run["config"] for run in record(tmp_path)["runs"])]
    assert sorted(chosen) == [("csada", 0, 0), ("csada", 1, 0)] and record(tmp_path)["planned"] == 12
    assert "10 done now, 2 before" in finished(start(spec, tmp_path))
    for wrong, message in (("csda", "did you mean 'csada'"), ("penalty", "csada, sosr")):
        process = start(spec, tmp_path, "--methods", wrong)
        assert message in process.communicate()[1] and process.returncode == 2


def test_runners_that_share_a_folder_do_every_run_once(tmp_path):
    spec = sweep(tmp_path, matrices=3)
    processes = [start(spec, tmp_path), start(spec, tmp_path, "--workers", "2")]
    texts = [finished(process) for process in processes]
    done = [int(text.split(" done now")[0].split()[-1]) for text in texts]
    assert sum(done) == 7  # six runs and their baseline
    assert len(starts(tmp_path)) == 7 and set(starts(tmp_path).values()) == {1}
    assert len(record(tmp_path)["runs"]) == 6


def test_a_terminal_shows_every_run_under_way(tmp_path):
    """The runs are long: the first may be half done before the second worker has started."""
    spec, (ours, its) = sweep(tmp_path, epochs=5000, matrices=2), pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = [sys.executable, "-m", "csada", "reproduce", spec, "--scale", "smoke", "--workers", "2"]
    command += ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=its, env=ENVIRONMENT) as process:
        os.close(its)
        shown, rows = b"", [[]]
        while len(rows[-1]) < 2 and (chunk := read(ours)):
            shown += chunk
            drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode(errors="ignore"))
            screens = drawn.split("sweep ")  # each begins with the bar of all
            rows = [re.findall(r"(?:csada|sosr), pareto \d, seed 0 .*? (\d+)/5000", screen) for screen in screens]
        process.terminate()
        while read(ours):
            pass
    os.close(ours)
    assert len(rows[-1]) == 2 == max(map(len, rows)) and process.returncode == 143
    assert any(re.match(r".*? \d+/20015", screen, re.DOTALL) for screen in screens)


def read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its other end is closed
        return b""


def test_a_full_disk_fails_the_run_that_meets_it_by_name_and_no_other(tmp_path):
    run_here(sweep(tmp_path), tmp_path)
    (weights,) = tmp_path.glob("runs/baselines/*/model/model.safetensors")
    limit = 2 * weights.stat().st_size  # room for the weights, not for Adam's two moments besides
    spec = sweep(tmp_path, matrices=3, more='options.sosr.optimizer = "adam"')
    process = start(spec, tmp_path, before=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in err
    assert "2 done now, 1 before, 0 left, 3 failed" in out
    assert all(f"failed: sosr, pareto {k}, seed 0: " in err for k in range(3))
    assert [run["config"]["method"] for run in record(tmp_path)["runs"]] == ["csada"] * 3
    assert not list(tmp_path.glob("runs/**/.*.tmp"))
    assert len(run_here(spec, tmp_path).done) == 3  # there is room again


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A sweep done within this process: its folder and its record."""
    folder = tmp_path_factory.mktemp("small")
    spec = load_spec(str(sweep(folder, matrices=2, more="lambdas = [0.0, 5.0]\ntrack = 'test_wer'")), "smoke")
    seen = []
    report = run_experiment(spec, folder / "runs", on_progress=lambda done, total, _: seen.append((done, total)))
    assert len(report.done) == 4 + 3 and not report.failed
    assert seen and {total for _, total in seen} == {15 + 6 * 2}
    return folder, spec, collect(spec, folder / "runs")


def test_a_record_holds_what_tables_and_figures_need(small):
    folder, found = small[0], written(small[2])
    assert found["classes"] == list("0123456789") and found["data"]["samples"]["test"] == 108
    assert [r["config"]["options"].get("weight") for r in found["runs"]].count(None) == 2
    for run in found["runs"]:
        config, result = run["config"], run["result"]
        costs = csada.CostMatrix.pareto(10, seed=config["costs"]["seed"])
        stored = np.load(folder / "runs" / "sweep" / identity(config) / "logits.npz")
        assert stored["test"].dtype == np.float16 and len(stored["validation_labels"]) == np.sum(result["validation"])
        for judged in (result, result["rule"], result["baseline"], result["baseline"]["rule"]):
            assert np.sum(judged["test"]) == 108 and np.shape(judged["validation"]) == (10, 10)
        rule = csada.MinimumExpectedCost(costs, result["rule"]["temperature"])
        again = csada.metrics.confusion_counts(stored["test_labels"], rule(stored["test"].astype(float)), 10)
        assert np.abs(again - result["rule"]["test"]).sum() <= 4  # float16 may move a sample that stood on the edge
        last = csada.metrics.mean_cost(np.array(result["test"]), costs)
        assert [line["epoch"] for line in run["history"]] == [1, 2] and run["history"][-1]["test_wer"] == last
        assert run["environment"]["csada"] == csada.__version__
    baseline = found["baselines"][0]["result"]
    assert all(run["result"]["baseline"]["test"] == baseline["test"] for run in found["runs"])
    assert baseline["training_loss"] > 0 and len(found["baselines"][0]["history"]) == 15


def test_what_a_record_holds_is_not_run_again_on_a_machine_without_the_folders(small, tmp_path):
    _, spec, found = small
    write_record(tmp_path / "results" / f"{spec.record}.json", found)
    report = run_experiment(spec, tmp_path / "runs", results_dir=tmp_path / "results")
    assert len(report.skipped) == 6 and not report.done and not (tmp_path / "runs").exists()
    assert written(collect(spec, tmp_path / "runs", tmp_path / "results")) == written(found)

    text = (small[0] / "sweep.toml").read_text()
    changed = text.replace("[0.0, 5.0]", "[0.0, 5.0, 7.0]").replace("matrices = 2", "matrices = 1")
    (tmp_path / "sweep.toml").write_text(changed)
    larger = load_spec(str(tmp_path / "sweep.toml"), "smoke")
    report = run_experiment(larger, tmp_path / "runs", results_dir=tmp_path / "results")
    assert len(report.skipped) == 3 and [name.split(",")[0] for name in report.done] == [
        "baseline digits cnn seed 0",
        "csada",
    ]
    merged = collect(larger, tmp_path / "runs", tmp_path / "results")
    assert len(merged.runs) == 4  # runs of the second matrix are no longer the experiment's
    kept = written(merged)["runs"]
    assert all(run in kept for run in written(found)["runs"] if run["config"]["costs"]["seed"] == 0)


def test_a_time_limit_leaves_the_rest_for_later(small, tmp_path):
    report = run_experiment(small[1], tmp_path / "runs", limit_minutes=0)
    assert not report.done and not report.failed and len(report.left) == 7


def test_a_run_that_diverges_is_reported_and_the_others_are_done(tmp_path):
    path = sweep(tmp_path, more="options.sosr.lr = 1e30")
    report = run_experiment(load_spec(str(path), "smoke"), tmp_path / "runs")
    assert len(report.done) == 2 and list(report.failed) == ["sosr, pareto 0, seed 0"]
    assert "the loss became" in report.failed["sosr, pareto 0, seed 0"]


def test_the_most_confused_pairs_come_from_the_baseline_and_all_pairs_are_those_and_the_others(tmp_path):
    path = sweep(tmp_path, epochs=1, more="pairs = 4\nbaseline.epochs = 1\noptions.csada.steps = 1")
    path.write_text(path.read_text().replace('"pareto"', '"pairs"').replace('"csada", "sosr"', '"csada"'))
    spec = load_spec(str(path), "smoke")
    assert len(run_experiment(spec, tmp_path / "runs").done) == 1 + 4
    found = written(collect(spec, tmp_path / "runs"))
    rates = np.array(found["baselines"][0]["result"]["validation"], dtype=float)
    rates /= rates.sum(1, keepdims=True)
    np.fill_diagonal(rates, -1)
    pairs = {(run["config"]["costs"]["truth"], run["config"]["costs"]["predicted"]) for run in found["runs"]}
    assert np.unravel_index(rates.argmax(), rates.shape) in pairs and len(pairs) == 4
    all_90 = run_experiment(spec, tmp_path / "runs", all_pairs=True, limit_minutes=0)
    assert len(all_90.skipped) == 4 and len(all_90.left) == 86


def test_all_ten_experiments_of_the_paper_from_one_command_and_the_list_of_them(tmp_path):
    def said(*words):
        where = "--runs", tmp_path / "runs", "--results", tmp_path / "results", "--scale", "smoke"
        run = program("reproduce", *words, *where)
        assert run.returncode == 0 and run.stderr == "", run.stderr
        return run.stdout

    said("all")
    listed = {words[0]: words for line in said("--list").splitlines() if len(words := line.split()) > 4}
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")}
    assert sorted(found) == [f"{name}-smoke" for name in EXPERIMENTS]
    for name in EXPERIMENTS:
        spec, held = load_spec(name, "smoke"), found[f"{name}-smoke"]
        assert len(held["runs"]) == held["planned"] == spec.count
        assert listed[name][2:5] == [str(spec.count), "of", str(spec.count)]
        table = (tmp_path / "results" / f"{name}-smoke.md").read_text()
        accuracies = [np.trace(r["result"]["test"]) / np.sum(r["result"]["test"]) for r in held["runs"]]
        if name.startswith("table"):  # mean over the replications of the first matrix, as the record has it
            mine = [
                accuracy
                for accuracy, run in zip(accuracies, held["runs"], strict=True)
                if run["config"]["method"] == "csada" and run["config"]["costs"].get("seed", 0) == 0
            ]
            assert f"| {100 * np.mean(mine):.2f} (" in next(line for line in table.splitlines() if "Accuracy" in line)
    assert [("panels" in run["result"]) for run in found["toy-smoke"]["runs"]].count(True) == 1
    shared = {
        run["config"]["baseline"] for name in EXPERIMENTS if "cifar10" in name for run in found[f"{name}-smoke"]["runs"]
    }
    assert len(shared) == 1


def test_a_baseline_that_is_carried_along_is_trained_once_and_the_same_everywhere(tmp_path, monkeypatch):
    spec, carried = load_spec(str(sweep(tmp_path, epochs=1)), "smoke"), tmp_path / "carried"
    monkeypatch.setattr("csada.paper.run.PART", 20_000)
    run_experiment(spec, tmp_path / "here", carried=carried)
    parts = list(carried.glob("*/*.safetensors"))
    assert len(parts) > 1 and all(part.stat().st_size < 60_000 for part in parts)
    monkeypatch.setattr("csada.paper.run.train_stages", lambda *_: pytest.fail("trained again"))
    run_experiment(spec, tmp_path / "there", carried=carried)
    here, there = (written(collect(spec, tmp_path / name)) for name in ("here", "there"))
    for one, other in zip(here["baselines"] + here["runs"], there["baselines"] + there["runs"], strict=True):
        assert [e["loss"] for e in one["history"]] == [e["loss"] for e in other["history"]]
        assert one["config"] == other["config"] and one["result"]["test"] == other["result"]["test"]
