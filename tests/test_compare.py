import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel
from test_cli import inside, refused

import csada
from csada.data.folder import save
from csada.errors import InputError
from csada.folders import locked
from csada.models.modes import borrowed_threads
from csada.reading import build, read_json
from csada.workflow.compare import RULED, Comparison, SeedRun, Summary, compare, make_plan, method_names, summarise
from csada.workflow.engine import Engine
from csada.workflow.settings import DEFAULTS, costs_for

QUICK = ("--scale", "0.3", "--epochs", "2", "--baseline-epochs", "8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two seeds of digits through the command, and the record that it wrote."""
    folder = tmp_path_factory.mktemp("compare")
    costs = csada.CostMatrix.pareto(10, seed=3)
    order = list(reversed(range(10)))  # the file's order is its own; names decide
    csada.CostMatrix(costs.values[np.ix_(order, order)], [costs.classes[i] for i in order]).to_csv(folder / "costs.csv")
    methods = "csada,sosr,cost_weighted,metacost"
    words = ("digits", "--costs", folder / "costs.csv", "--methods", methods, "--seeds", "2", *QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")
        done = inside("compare", *words, "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()  # before training, and after its first epoch
    assert (
        first == "digits: images of 8 x 8 pixels, cnn; 2 baselines and 4 methods on each: 10 trainings, 48 epochs"
    )  # 2 * (8 + 2 + 10 + 2 + 2)
    assert re.fullmatch(r"about \d+ (s|min) in all, at the pace of the first epoch", second)
    return done.stdout, read_json(folder / "out" / "compare.json", Comparison), costs


def test_the_table_shows_what_the_counts_of_the_record_say(finished):
    shown, found, costs = finished
    rows = dict.fromkeys(run.row for run in found.runs)
    expected = "baseline, baseline + rule, csada, csada + rule, sosr, cost_weighted, metacost"
    assert ", ".join(rows) == expected
    for row in rows:
        counts = [np.array(run.confusion["test"]) for run in found.runs if run.row == row]
        accuracies = [100 * np.trace(c) / c.sum() for c in counts]
        paid = [100 * (c * costs.values).sum() / c.sum() for c in counts]
        critical = [sum(c[pair] for pair in costs.top_pairs(3)) for c in counts]
        cells = [f"{np.mean(v):.2f} ({np.std(v, ddof=1):.2f})" for v in (accuracies, paid, critical)]
        line = next(line for line in shown.splitlines() if line.split("  ")[0].strip() == row)
        assert line.replace(row, "", 1).split() == [*" ".join(cells).split(), "-", "-"]


def test_the_record_holds_what_a_later_question_needs(finished):
    _, found, costs = finished
    assert np.array_equal(found.costs, costs.values) and "".join(found.classes) == "0123456789"
    assert found.budget == 0.5 and {run.row for run in found.runs if run.strength is not None} == set(RULED.values())
    assert found.plan.methods["sosr"]["epochs"] == 5 * found.plan.methods["csada"]["epochs"] == 10
    for run in found.runs:
        for part in ("validation", "test"):
            assert np.sum(run.confusion[part]) == found.samples[part]
        if "rule" not in run.row:
            assert run.seconds > 0 and all(np.isfinite(e["loss"]) for e in run.history)
    assert summarise(costs, found.runs) == found.summary
    assert found.environment.csada == csada.__version__ and "/" not in str(found.environment)  # no path


def test_every_method_starts_from_the_same_baseline_and_split():
    """With a learning rate of zero nothing moves: each row by argmax is the baseline's, seed by seed."""
    methods = ["csada", "penalty", "sosr", "oversampling", "metacost", "pgd_training"]
    runs = compare("digits", "pareto:0", methods, seeds=2, epochs=1, lr=0.0, baseline_epochs=3, scale=0.2).runs
    for seed in (0, 1):
        counts = {r.row: r.confusion for r in runs if r.seed == seed}
        assert all(counts[m] == counts["baseline"] for m in methods)
        assert counts["csada + rule"] == counts["baseline + rule"]
    assert any(r.strength for r in runs if r.row == "baseline + rule")
    baselines = [r.confusion for r in runs if r.row == "baseline"]
    assert baselines[0] != baselines[1]


def test_the_rule_is_that_of_fit_and_keeps_to_the_budget():
    """Counted from the baseline by argmax on validation, also for csada; without a limit it is the whole rule."""

    def found(budget):
        options = {"seeds": 1, "epochs": 1, "baseline_epochs": 2, "scale": 0.3, "budget": budget}
        return {run.row: run for run in compare("digits", "pareto:1", "csada", **options).runs}

    limits = {budget: found(budget) for budget in (0.0, 2.0, 100.0)}
    for row in ("baseline + rule", "csada + rule"):
        for budget, runs in limits.items():
            right = {r: np.trace(run.confusion["validation"]) for r, run in runs.items()}
            needed = right["baseline"] - budget / 100 * np.sum(runs[row].confusion["validation"])
            assert right[row] >= min(needed, right[row.removesuffix(" + rule")])  # argmax where that has less itself
        assert all(runs[row].temperature > 0 for runs in limits.values())
    for row in ("baseline + rule", "csada + rule"):
        assert limits[0.0][row].strength < limits[100.0][row].strength


SHORT = {"seeds": 2, "epochs": 2, "baseline_epochs": 3, "scale": 0.2}


@pytest.mark.parametrize("stop", [2, 4, 8, 14])  # in a baseline, in the second seed's, in a method, in the last one
def test_a_comparison_that_was_killed_resumes_and_equals_an_undisturbed_one(stop, tmp_path, monkeypatch):
    monkeypatch.setattr("csada.workflow.engine.POLL", 0)  # every epoch is told

    def told(done, *_):
        if done == stop:
            raise KeyboardInterrupt

    def outcome(found):
        timeless = [replace(r, seconds=None, history=[line | {"seconds": 0} for line in r.history]) for r in found.runs]
        return timeless, found.summary, found.plan

    arguments = ("digits", "pareto:0", "csada,penalty")
    with pytest.raises(KeyboardInterrupt):
        compare(*arguments, **SHORT, out=tmp_path, on_progress=told)
    kept = read_json(tmp_path / "compare.json", Comparison).runs
    assert len(kept) == {2: 0, 4: 2, 8: 4, 14: 9}[stop]
    found = compare(*arguments, **SHORT, out=tmp_path)
    assert all(run in found.runs for run in kept)  # with their seconds: they were not trained again
    assert outcome(found) == outcome(compare(*arguments, **SHORT))
    assert read_json(tmp_path / "compare.json", Comparison).runs == found.runs
    assert [path.name for path in tmp_path.iterdir()] == ["compare.json"]


def test_with_an_engine_too_a_kill_loses_no_training_that_was_done(tmp_path):
    def told(*_):
        if len(read_json(tmp_path / "compare.json", Comparison).runs) > 2:  # a method beside the baseline and its rule
            raise KeyboardInterrupt

    more = SHORT | {"seeds": 1, "out": tmp_path, "engine": Engine(workers=2)}
    arguments = "digits", "pareto:0", "penalty,oversampling,metacost,sosr"
    with pytest.raises(KeyboardInterrupt):
        compare(*arguments, **more | {"on_progress": told})
    kept = read_json(tmp_path / "compare.json", Comparison).runs
    found = compare(*arguments, **more)
    assert 2 < len(kept) < 6 == len(found.runs) and all(run in found.runs for run in kept)
    assert [run.row for run in found.runs] == ["baseline", "baseline + rule", *found.plan.methods]
    here = compare(*arguments, **SHORT | {"seeds": 1})
    assert [run.confusion for run in found.runs] == [run.confusion for run in here.runs]
    assert [path.name for path in tmp_path.iterdir()] == ["compare.json"]


def test_other_settings_do_not_overwrite_a_comparison(tmp_path):
    words = ("toy", "--costs", "uniform", "--methods", "penalty", *QUICK, "--out", tmp_path)
    assert inside("compare", *words, "--seeds", "2").returncode == 0
    before = (tmp_path / "compare.json").read_bytes()
    message = refused("compare", *words, "--seeds", "2", "--budget", "2")
    assert "compare.json" in message and "budget was 0.5 and is 2.0" in message and "--out" in message
    assert "methods differ" in refused("compare", *words, "--lr", "0.5")
    assert "holds 2 seeds" in refused("compare", *words, "--seeds", "1")
    assert (tmp_path / "compare.json").read_bytes() == before
    (tmp_path / "compare.json").write_text("{}")
    assert "--out" in refused("compare", *words)


def test_a_comparison_whose_runs_are_not_whole_is_refused(tmp_path):
    """Ragged or negative counts, a row without its partner, an unknown one: each was a traceback or a wrong mean."""
    words = ("compare", "toy", "--costs", "uniform", "--methods", "penalty", *QUICK, "--seeds", "1", "--out", tmp_path)
    assert inside(*words).returncode == 0
    file = tmp_path / "compare.json"
    whole = json.loads(file.read_text())

    def said(change):
        runs = json.loads(json.dumps(whole["runs"]))
        change(runs)
        file.write_text(json.dumps(whole | {"runs": runs}))
        return refused(*words)

    for change in (
        lambda runs: runs[0]["confusion"]["test"][1].pop(),
        lambda runs: runs[0]["confusion"].pop("test"),
        lambda runs: runs[0]["confusion"]["validation"][0].__setitem__(0, -3),
        lambda runs: runs[2]["confusion"]["test"][0].__setitem__(0, 2**50),
        lambda runs: runs[0].update(diverged=3, confusion={}),
        lambda runs: runs[2].update(row="strange"),
        lambda runs: runs[2].update(row="penalty + rule"),
        lambda runs: runs[2].update(seed=-1),
        lambda runs: runs.pop(1),
        lambda runs: runs.append(runs[0]),
    ):
        assert "its runs are not all whole rows of counts; give another --out" in said(change)
    assert "confusion.test is 'x'; a list" in said(lambda runs: runs[0]["confusion"].update(test="x"))
    file.write_text(json.dumps(whole))
    assert inside(*words).returncode == 0


def test_two_comparisons_at_once_do_not_write_to_the_same_folder(tmp_path):
    words = ("compare", "digits", "--costs", "uniform", "--methods", "penalty", "--out")
    with locked(tmp_path / "out") as mine:
        assert mine and "is in use by another run of csada" in refused(*words, tmp_path / "out")
    assert not (tmp_path / "out" / "compare.json").exists()
    (tmp_path / "file").write_text("")
    assert "cannot write to" in refused(*words, tmp_path / "file" / "out")


def test_a_method_does_not_depend_on_those_listed_before_it():
    def losses(methods):
        found = compare("toy", "pareto:0", methods, seeds=1, epochs=2, lr=0.05, baseline_epochs=2)
        return [line["loss"] for run in found.runs if run.row == "csada" for line in run.history]

    assert losses("penalty,sosr,csada") == losses("csada")


def test_a_method_that_diverges_says_so_in_its_row_and_the_others_are_finished(monkeypatch):
    monkeypatch.setitem(DEFAULTS["plain"], "penalty", {"lr": 1e30})
    found = compare("toy", "pareto:0", "penalty,csada", seeds=1, epochs=1, baseline_epochs=2)
    lines = {line.row: line for line in found.summary}
    assert lines["penalty"] == Summary("penalty", diverged="diverged in epoch 1 of seed 0")
    assert lines["csada"].accuracy[0] > 0.5 and lines["csada"].accuracy[1] is None


def test_json_prints_what_is_written_and_nothing_else(tmp_path):
    words = ("toy", "--costs", "uniform", "--methods", "csada", "--seeds", "1", "--json", *QUICK, "--out", tmp_path)
    assert json.loads(inside("compare", *words).stdout) == json.loads((tmp_path / "compare.json").read_text())


def test_the_paired_tests_are_over_seeds_and_on_cost():
    costs = csada.CostMatrix([[0, 5], [1, 0]])
    tables = {
        "baseline": [[[80, 20], [10, 90]], [[70, 30], [12, 88]], [[90, 10], [5, 95]]],
        "baseline + rule": [[[95, 5], [30, 70]], [[93, 7], [33, 67]], [[96, 4], [20, 80]]],
        "csada": [[[85, 15], [12, 88]], [[81, 19], [12, 88]], [[92, 8], [6, 94]]],
    }
    runs = [SeedRun(s, row, {"test": c}) for row, t in tables.items() for s, c in enumerate(t)]
    paid = {row: [(5 * c[0][1] + c[1][0]) / 200 for c in t] for row, t in tables.items()}
    lines = {line.row: line for line in summarise(costs, runs)}
    assert lines["csada"].p_baseline == pytest.approx(ttest_rel(paid["csada"], paid["baseline"]).pvalue)
    assert lines["csada"].p_rule == pytest.approx(ttest_rel(paid["csada"], paid["baseline + rule"]).pvalue)
    assert lines["baseline"].p_baseline is None and lines["csada"].critical_errors[0] == pytest.approx(14)
    assert summarise(costs, [run for run in runs if run.seed < 2])[2].p_baseline is None  # two seeds say nothing


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--costs", "uniform", "--methods", "csada,sosrr"), "unknown method 'sosrr'; did you mean 'sosr'?"),
        (("--costs", "letters.csv"), "other classes than the data: take out 'two'; add '2'"),
        (("--costs", "absent.csv"), "there is no cost table absent.csv; give a CSV file, uniform, pareto:SEED or pmi"),
        (("--costs", "pareto"), "write pareto:0"),
        (("--costs", "pmi"), "the PMI cost table names other classes than the data"),
        (("--costs", "uniform", "--model", "mpl"), "unknown model 'mpl'; did you mean 'mlp'?"),
        (("--costs", "uniform", "--lr", "-1"), "lr must be zero or more"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    csada.CostMatrix.from_pairs(["0", "1", "two", *"3456789"], {}).to_csv("letters.csv")
    assert message in refused("compare", "digits", *arguments)


def test_costs_follow_the_classes_by_name():
    given = csada.CostMatrix.from_pairs(["b", "a"], {("b", "a"): 7})
    assert costs_for(given, ("a", "b"))["b", "a"] == 7 and costs_for(given, ("a", "b")).classes == ("a", "b")
    with pytest.raises(InputError, match=r"than the data: take out 'b'$"):
        costs_for(csada.CostMatrix.from_pairs(["a", "b", "c"], {}), ("a", "c"))


def test_all_means_every_method_and_each_has_settings():
    assert method_names("all") == list(csada.METHODS)
    splits = csada.data.load("toy")
    for method in csada.METHODS:
        make_plan(splits, csada.CostMatrix.uniform(3), [method])


@pytest.mark.parametrize(
    "project, expected",
    [
        (None, ("cnn", 32, 60)),  # as csada train
        ('size = 24\n[train]\nmodel = "resnet9"\nrecipe = "pmi-fast"\nepochs = 7', ("resnet9", 24, 7)),
        ('[train]\nmodel = "mlp"\nepochs = 7\n[compare]\nmodel = "cnn"\nsize = 16', ("cnn", 16, 7)),
    ],
)
def test_model_size_and_length_are_those_of_train(project, expected, tmp_path, monkeypatch):
    save(csada.data.load("pills", scale=0.01, size=32), tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    if project is not None:
        (tmp_path / "csada.toml").write_text(project)
    words = ("--costs", "uniform", "--methods", "penalty", "--seeds", "1", "--epochs", "1", "--json")
    done = inside("compare", "./photos", *words)
    assert done.returncode == 0, done.stderr
    plan = build(Comparison, json.loads(done.stdout), "").plan
    assert (plan.model, plan.shape[-1], sum(stage.epochs for stage in plan.baseline)) == expected
    assert plan.baseline[0].schedule == "one_cycle" and plan.baseline[0].batch_size < 64  # few samples, as train


def test_images_of_a_folder_are_brought_to_the_size_that_is_asked_for(tmp_path):
    folder = save(csada.data.load("pills", scale=0.01, size=32), tmp_path / "pills")
    more = {"model": "cnn", "epochs": 1, "baseline_epochs": 1, "size": 16, "out": tmp_path / "out"}
    found = compare(folder, "uniform", ["penalty"], seeds=1, **more)
    assert found.plan.shape == (3, 16, 16)
    with borrowed_threads(2):  # on a machine with other cores it resumes
        assert compare(folder, "uniform", ["penalty"], seeds=2, **more).runs[:3] == found.runs


def test_broken_images_are_left_out_and_listed_and_the_cache_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CSADA_CACHE_GB", raising=False)
    folder = save(csada.data.load("pills", scale=0.01, size=32), tmp_path / "pills")
    broken = next(folder.glob("train/*/*"))
    broken.write_bytes(b"no image")
    words = (
        "compare",
        folder,
        "--costs",
        "uniform",
        "--methods",
        "penalty",
        "--seeds",
        1,
        "--model",
        "cnn",
        "--size",
        16,
    )
    words = (*words, "--epochs", 1, "--baseline-epochs", 1, "--out", tmp_path / "out")
    assert broken.name in inside(*words).stderr
    done = inside(*words, "--skip-bad", "--cache-gb", "1")
    assert done.returncode == 0 and f"left out: {broken.relative_to(folder)}" in done.stderr
    assert float(os.environ.pop("CSADA_CACHE_GB")) == 1
