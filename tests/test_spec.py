"""Experiment files: what they resolve to, and what is refused before any work."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from csada.errors import InputError
from csada.paper import EXPERIMENTS, record
from csada.paper import spec as specs
from csada.paper.spec import baseline_configs, choose_pairs, known_by, load_spec, run_configs
from csada.paper.sweep import plan_runs
from csada.reading import read_json
from csada.workflow.runs import identity

ROOT = Path(__file__).parents[1]
GOOD = """
title = "mine"
data = "digits"
model = "cnn"
costs = "pareto"
methods = ["csada", "sosr"]
[smoke]
"""


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_all_ten_experiments_resolve_at_their_scales_to_as_many_runs_as_they_say():
    assert len(EXPERIMENTS) == 10
    confusion = np.arange(100).reshape(10, 10)
    for name in EXPERIMENTS:
        for scale in specs.SCALES:
            if not specs.has_scale(name, scale):
                assert scale in specs.OVER
                continue
            spec = load_spec(name, scale)
            counts = {known_by(c): confusion for c in baseline_configs(spec)}
            runs = run_configs(spec, counts)
            assert len({known_by(c) for c in runs}) == len(runs) == spec.count
            assert {c.baseline for c in runs} == set(counts)


def test_paper_scale_has_the_values_of_the_text_and_script_those_of_the_authors_code():
    text, script = (load_spec("table-mnist", scale) for scale in ("paper", "script"))
    assert {"estimator": "paper", "epsilon": 10, "steps": 10, "weight": 2, "lr": 5e-7}.items() <= text.options[
        "csada"
    ].items()
    assert {"epsilon": 3, "steps": 5, "weight": 5, "estimator": "class_mean"}.items() <= script.options["csada"].items()
    assert text.options["sosr"]["schedule"] == "step:10:0.33" and script.options["sosr"]["epochs"] == 60
    assert load_spec("failure-cifar10", "paper").count == 180
    assert len(load_spec("lambda-cifar10", "paper").lambdas) * 3 == load_spec("lambda-cifar10", "paper").count


def test_what_was_chosen_on_validation_is_fast_but_for_the_settings_that_were():
    for name in ("table-pmi-resnet9", "table-pmi-resnet34"):
        fast, chosen = (load_spec(name, scale) for scale in ("fast", "chosen"))
        searched = read_json(ROOT / f"results/settings-{chosen.name.removeprefix('table-')}-chosen.json", dict)
        for method, settings in searched["chosen"].items():
            assert chosen.options[method] == fast.options[method] | settings


def test_the_first_matrix_may_have_more_replications_than_the_others():
    spec = load_spec("table-cifar10", "fast")
    runs = [(c.method, c.costs.seed, c.seed) for c in run_configs(spec, {})]
    assert {run[1:] for run in runs} == {(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (2, 0), (3, 0), (4, 0)}
    assert [run[1] for run in runs[:15:3]] == [0, 1, 2, 3, 4]  # all matrices before any second replication
    assert load_spec("table-cifar10", "paper").count == 75


def test_the_errors_table_shows_the_very_runs_of_the_comparison():
    a, b = load_spec("table-pmi-resnet34"), load_spec("errors-pmi")
    assert run_configs(a, {}) == run_configs(b, {}) and a.folder == b.folder and a.record != b.record
    assert load_spec("errors-pmi", data="pmi").data == "pmi"


def test_baselines_are_shared_by_experiments_on_the_same_data():
    on_cifar = [load_spec(n) for n in ("failure-cifar10", "lambda-cifar10", "convergence-cifar10", "table-cifar10")]
    assert len({known_by(c) for spec in on_cifar for c in baseline_configs(spec)}) == 1


def test_a_run_is_known_by_its_settings_not_by_their_order():
    config = run_configs(load_spec("table-cifar10"), {})[0]
    assert known_by(config) == identity(dict(reversed(record.written(config).items())))
    assert known_by(config) != known_by(replace(config, seed=1))


@pytest.mark.parametrize(
    ("name", "scale", "baseline", "first"),
    [
        ("toy", "fast", "fa529e1d868f1581", None),
        ("table-cifar10", "fast", "612fb06aa99f3963", "acc1873d8d6e8672"),
        ("lambda-cifar10", "smoke", "735338cd1d97bd7e", "36e9d6370b8a2f8d"),
        ("table-pmi-resnet34", "chosen", "ba5bcdb73d582404", "a91286189dc0f318"),
        ("convergence-cifar10", "script", "9b7a70418614f956", "ba7ee35e49e3b752"),
    ],
)
def test_a_run_keeps_its_hash_so_that_nothing_measured_is_run_again(name, scale, baseline, first):
    spec = load_spec(name, scale)
    assert known_by(baseline_configs(spec)[0]) == baseline
    assert first is None or known_by(run_configs(spec, {})[0]) == first


def test_every_run_of_the_committed_records_is_one_that_its_experiment_still_plans(tmp_path):
    found = [read_json(path, object) for path in sorted((ROOT / "results").glob("*.json"))]
    records = [held for held in found if isinstance(held, dict) and "scale" in held and "planned" in held]
    assert len(records) == 15
    for held in records:
        plan = plan_runs(load_spec(held["experiment"], held["scale"]), tmp_path, ROOT / "results")
        planned = {run.folder.name for run in (*plan.runs, *plan.baselines)}
        assert {identity(run["config"]) for run in (*held["runs"], *held["baselines"])} <= planned
        assert len(plan.missing()) == held["planned"] - len(held["runs"])


def test_pairs_are_the_most_confused_and_some_of_the_others_always_the_same():
    confusion = np.full((4, 4), 1) + np.diag([96] * 4)
    confusion[2, 0], confusion[3, 1] = 30, 20
    pairs = choose_pairs(confusion, 4)
    assert pairs[:2] == [(2, 0), (3, 1)] and pairs == choose_pairs(confusion, 4)
    assert len(set(pairs)) == 4 and all(y != z for y, z in pairs)
    assert len(set(choose_pairs(confusion, "all"))) == 12
    assert confusion[2, 0] == 30  # what it was given stays


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epocs = 3\n" + GOOD, r"mine\.toml, scale smoke: unknown key 'epocs'; known keys: .*title, data, model"),
        (GOOD + "replication = 3", "scale smoke: unknown key 'replication'; known keys: .*replications"),
        (GOOD + "options.csada = { epsilom = 1 }", "unknown option 'epsilom' for csada; did you mean 'epsilon'"),
        (GOOD + "options.cssda = { epsilon = 1 }", "unknown method 'cssda'; did you mean 'csada'"),
        (GOOD + "options.every = { lr = -1.0 }", "lr must be zero or more"),
        (GOOD + "baseline = { recipe = 'quick' }", "unknown recipe 'quick'"),
        (GOOD + "baseline = { rate = 1 }", "baseline: unknown key 'rate'; known keys: epochs, lr"),
        (GOOD + "replications = 0", "replications must be at least 1, got 0"),
        (GOOD + "replications = 1.5", "replications is 1.5; a whole number is needed"),
        (GOOD + "pairs = 'some'", "pairs is 'some'; 'all' or a whole number or a list"),
        (GOOD + "name = 'other'", r"mine\.toml: name cannot be set in the file"),
        (GOOD + "track = 'loss'", "track is 'loss'; 'test_wer' is needed"),
        (GOOD.replace("pareto", "paretto"), "no preset 'paretto'"),
        (GOOD.replace('title = "mine"', ""), r"mine\.toml, scale smoke: title is missing"),
        (GOOD + "= 3", r"mine\.toml is no TOML file"),
        ("runs_of = 3\n", r"mine\.toml: runs_of is 3, no experiment; known: "),
        ("runs_of = 'mine.toml'\n", "runs_of is 'mine.toml', no experiment"),
        ("runs_of = 'errors-pmi'\nname = 'x'\n", "name cannot be set in the file"),
        (GOOD.replace("[smoke]", "smoke = 3"), r"mine\.toml: smoke is 3; a table of names and values is needed"),
        (GOOD.replace('["csada", "sosr"]', "3"), r"methods is 3; a list \(text each\) is needed"),
        (GOOD.replace('["csada", "sosr"]', "[]"), "methods is empty"),
        (GOOD + "options.every = 3", "options.every is 3; a table of names and values is needed"),
        (GOOD + "options = 3", "options is 3; a table"),
        (GOOD + "baseline.recipe = []", r"baseline: recipe is \[\]; text is needed"),
        (GOOD + "data = 'toy'", "data_options: spread is None; a number is needed"),
        (GOOD + "replications = 100000\nmatrices = 100000", "20,000,000,000 runs; at most 100,000 are done"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        load_spec(written(tmp_path, text), "smoke")


def test_unknown_experiments_and_scales_are_named():
    with pytest.raises(InputError, match="did you mean 'table-cifar10'"):
        load_spec("table-cifar")
    with pytest.raises(InputError, match="known: smoke, fast, chosen, paper, script"):
        load_spec("toy", "huge")
    with pytest.raises(InputError, match=r"toy\.toml has no scale 'script'; it has smoke, fast, paper"):
        load_spec("toy", "script")
