import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

import csada
from csada.data.folder import save
from csada.errors import InputError
from csada.workflow.compare import compare, costs_for, make_plan, method_names, summarise
from csada.workflow.runs import environment, read_json, write_json

QUICK = ("--scale", "0.3", "--epochs", "2", "--baseline-epochs", "8")


def run(*arguments, cwd):
    command = [sys.executable, "-W", "error", "-m", "csada", "compare", *arguments]
    own = {"PYTHONPATH": str(Path(csada.__file__).parents[1]), "COLUMNS": "160"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, env={**os.environ, **own})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two seeds of digits through the command, and the record that it wrote."""
    folder = tmp_path_factory.mktemp("compare")
    costs = csada.CostMatrix.pareto(10, seed=3)
    order = list(reversed(range(10)))  # the file's order is its own; names decide
    csada.CostMatrix(costs.values[np.ix_(order, order)], [costs.classes[i] for i in order]).to_csv(folder / "costs.csv")
    methods = "csada,sosr,cost_weighted,metacost"
    done = run("digits", "--costs", "costs.csv", "--methods", methods, "--seeds", "2", *QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "out" / "compare.json").read_text()), costs


def test_the_table_shows_what_the_counts_of_the_record_say(finished):
    shown, record, costs = finished
    rows = dict.fromkeys(run["row"] for run in record["runs"])
    expected = "baseline, baseline + rule, csada, csada + rule, sosr, cost_weighted, metacost"
    assert ", ".join(rows) == expected
    for row in rows:
        counts = [np.array(run["confusion"]["test"]) for run in record["runs"] if run["row"] == row]
        accuracies = [100 * np.trace(c) / c.sum() for c in counts]
        paid = [100 * (c * costs.values).sum() / c.sum() for c in counts]
        critical = [sum(c[pair] for pair in costs.top_pairs(3)) for c in counts]
        cells = [f"{np.mean(v):.2f} ({np.std(v, ddof=1):.2f})" for v in (accuracies, paid, critical)]
        line = next(line for line in shown.splitlines() if line.split("  ")[0].strip() == row)
        assert line.replace(row, "", 1).split() == [*" ".join(cells).split(), "-", "-"]


def test_the_record_holds_what_a_later_question_needs(finished):
    _, record, costs = finished
    assert np.array_equal(record["costs"], costs.values) and record["classes"] == list("0123456789")
    assert record["methods"]["sosr"]["epochs"] == 5 * record["methods"]["csada"]["epochs"] == 10
    for line in record["runs"]:
        for part in ("validation", "test"):
            assert np.sum(line["confusion"][part]) == record["data"]["samples"][part]
        if "rule" not in line["row"]:
            assert line["seconds"] > 0 and all(np.isfinite(e["loss"]) for e in line["history"])
    assert summarise(record) == [
        {k: tuple(v) if isinstance(v, list) else v for k, v in line.items()} for line in record["summary"]
    ]


def test_every_method_starts_from_the_same_baseline_and_split():
    """With a learning rate of zero nothing moves: each row by argmax is the baseline's, seed by seed."""
    methods = ["csada", "penalty", "sosr", "oversampling", "metacost", "pgd_training"]
    record = compare("digits", "pareto:0", methods, seeds=2, epochs=1, lr=0.0, baseline_epochs=3, scale=0.2)
    for seed in (0, 1):
        counts = {r["row"]: r["confusion"] for r in record["runs"] if r["seed"] == seed}
        assert all(counts[m] == counts["baseline"] for m in methods)
        assert counts["csada + rule"] == counts["baseline + rule"] != counts["baseline"]
    baselines = [r["confusion"] for r in record["runs"] if r["row"] == "baseline"]
    assert baselines[0] != baselines[1]


def test_a_method_does_not_depend_on_those_listed_before_it():
    def losses(methods):
        record = compare("toy", "pareto:0", methods, seeds=1, epochs=2, lr=0.05, baseline_epochs=2)
        return [line["loss"] for r in record["runs"] if r["row"] == "csada" for line in r["history"]]

    assert losses("penalty,sosr,csada") == losses("csada")


def test_a_method_that_diverges_says_so_in_its_row_and_the_others_go_on(monkeypatch):
    from csada.workflow.compare import DEFAULTS

    monkeypatch.setitem(DEFAULTS["plain"], "penalty", {"lr": 1e30})
    record = compare("toy", "pareto:0", "penalty,csada", seeds=1, epochs=1, baseline_epochs=2)
    lines = {line["row"]: line for line in record["summary"]}
    assert lines["penalty"]["diverged"] == "diverged in epoch 1 of seed 0"
    assert lines["csada"]["accuracy"][0] > 0.5 and lines["csada"]["accuracy"][1] is None


def test_json_prints_the_record_and_nothing_else(tmp_path):
    done = run("toy", "--costs", "uniform", "--methods", "csada", "--seeds", "1", "--json", *QUICK, cwd=tmp_path)
    assert json.loads(done.stdout) == read_json(tmp_path / "out" / "compare.json")


def test_the_paired_tests_are_over_seeds_and_on_cost():
    costs = csada.CostMatrix([[0, 5], [1, 0]])
    tables = {
        "baseline": [[[80, 20], [10, 90]], [[70, 30], [12, 88]], [[90, 10], [5, 95]]],
        "baseline + rule": [[[95, 5], [30, 70]], [[93, 7], [33, 67]], [[96, 4], [20, 80]]],
        "csada": [[[85, 15], [12, 88]], [[81, 19], [12, 88]], [[92, 8], [6, 94]]],
    }
    record = {
        "costs": costs.values.tolist(),
        "classes": list(costs.classes),
        "runs": [
            {"seed": s, "row": row, "confusion": {"test": c}} for row, t in tables.items() for s, c in enumerate(t)
        ],
    }
    paid = {row: [(5 * c[0][1] + c[1][0]) / 200 for c in t] for row, t in tables.items()}
    lines = {line["row"]: line for line in summarise(record)}
    assert lines["csada"]["p_baseline"] == pytest.approx(ttest_rel(paid["csada"], paid["baseline"]).pvalue)
    assert lines["csada"]["p_rule"] == pytest.approx(ttest_rel(paid["csada"], paid["baseline + rule"]).pvalue)
    assert lines["baseline"]["p_baseline"] is None and lines["csada"]["critical_errors"][0] == pytest.approx(14)
    record["runs"] = [line for line in record["runs"] if line["seed"] < 2]
    assert summarise(record)[2]["p_baseline"] is None  # two seeds say nothing


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--costs", "uniform", "--methods", "csada,sosrr"), "unknown method 'sosrr'; did you mean 'sosr'?"),
        (
            ("--costs", "letters.csv"),
            "other classes than the data: take out 'two'; add '2'",
        ),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_status_2(arguments, message, tmp_path):
    csada.CostMatrix.from_pairs(["0", "1", "two", *"3456789"], {}).to_csv(tmp_path / "letters.csv")
    done = run("digits", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "costs, model, message",
    [
        ("absent.csv", None, r"there is no cost table absent\.csv; give a CSV file, uniform, pareto:SEED or pmi"),
        ("pareto", None, "write pareto:0"),
        ("pmi", None, "the PMI cost table names other classes than the data"),
        ("uniform", "mpl", "unknown model 'mpl'; did you mean 'mlp'?"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_way_out(costs, model, message):
    with pytest.raises(InputError, match=message):
        compare("toy", costs, "csada", model=model)


def test_costs_follow_the_classes_by_name():
    given = csada.CostMatrix.from_pairs(["b", "a"], {("b", "a"): 7})
    assert costs_for(given, ("a", "b"))["b", "a"] == 7 and costs_for(given, ("a", "b")).classes == ("a", "b")
    with pytest.raises(InputError, match=r"than the data: take out 'b'$"):
        costs_for(csada.CostMatrix.from_pairs(["a", "b", "c"], {}), ("a", "c"))


def test_all_means_every_method_and_settings_are_refused_before_any_training():
    assert method_names("all") == list(csada.METHODS)
    splits = csada.data.load("toy")
    with pytest.raises(InputError, match="lr must be zero or more"):
        make_plan(splits, csada.CostMatrix.uniform(3), ["csada"], None, None, -1.0, None)
    for method in csada.METHODS:
        make_plan(splits, csada.CostMatrix.uniform(3), [method], None, None, None, None)


def test_a_record_is_written_whole_and_names_no_path(tmp_path):
    write_json(tmp_path / "new" / "record.json", {"a": [1, None]})
    assert read_json(tmp_path / "new" / "record.json") == {"a": [1, None]}
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["record.json"]
    with pytest.raises(ValueError):
        write_json(tmp_path / "new" / "record.json", {"a": float("nan")})
    assert read_json(tmp_path / "new" / "record.json") == {"a": [1, None]}
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match=r"broken\.json"):
        read_json(tmp_path / "broken.json")
    found = environment()
    assert found["csada"] == csada.__version__ and "/" not in json.dumps(found)


def test_images_of_a_folder_are_brought_to_the_size_that_is_asked_for(tmp_path):
    folder = save(csada.data.load("pills", scale=0.01, size=32), tmp_path / "pills")
    record = compare(folder, "uniform", ["penalty"], seeds=1, model="cnn", epochs=1, baseline_epochs=1, size=16)
    assert record["model"]["size"] == 16
