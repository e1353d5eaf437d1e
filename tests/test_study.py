"""The study: libraries that grow network by network, rows judged on stored scores, and a page that says what they say."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

from csada.cli import app
from csada.errors import InputError
from csada.folders import locked
from csada.metrics import bootstrap_paid, confusion_counts
from csada.paper import grow, problems, study, study_report
from csada.paper import library as libraries
from csada.paper.grow import extend
from csada.paper.library import MEMBERS, STUDENT, About, Library, Network, missing, read_library
from csada.paper.sources import SOURCES, Source
from csada.paper.study import AIMED, AUTO, EVERY, GENERIC, NOTHING, RULE, judge, read_study
from csada.paper.tables import markdown
from csada.reading import write_json
from csada.workflow.engine import Engine, Later

ROOT = Path(__file__).parents[1]
SOURCE = Source("made up", "mlp", 1, group=(0,), sides="the first class and the others")
N = {"train": 10, "validation": 200, "test": 800}


def made_up(folder, noise, aimed=None):
    """noise: what each network adds to the true scores; None: the baseline's scores.

    aimed: the same of a network that CSADA made for pareto:0; 0: it knows the labels.
    """
    rng = np.random.default_rng(0)
    arrays, networks = {}, {}
    names = [*MEMBERS, STUDENT, *(["csada@pareto:0"] if aimed is not None else [])]
    for part in ("validation", "test"):
        true = rng.normal(0, 2.0, (N[part], 3))
        arrays[f"{part}_labels"] = (softmax(true, axis=1).cumsum(1) > rng.random((N[part], 1))).argmax(1)
        for name, spread in zip(names, [*noise, noise[1], aimed], strict=False):
            for view in ("identity", "mirror"):
                scores = true + rng.normal(0, spread or 1.0, true.shape)
                if spread is None:
                    scores = arrays[f"0/{MEMBERS[0]}/{part}/{view}"]
                if name not in MEMBERS and spread == 0:
                    scores = 9 * np.eye(3)[arrays[f"{part}_labels"]]
                arrays[f"0/{name}/{part}/{view}"] = scores.astype(np.float16)
            method = name.split("@")[0] if "@" in name else "cross_entropy"
            networks[f"0/{name}"] = Network(method, {}, 1, 1.0, 1.0, 0.1, {}, "pareto:0" if "@" in name else None)
    libraries.write_library(folder, "digits", Library(About("made up", N, "mlp", None, (), networks), arrays))
    return judge(NOTHING, folder, "digits", SOURCE, jobs=1)


@pytest.fixture(scope="module", autouse=True)
def few_problems():
    with pytest.MonkeyPatch.context() as patch:
        for name, fewer in {"MATRICES": 1, "CONFUSED": 3, "RATIOS": (10,), "DIRECTIONS": ("both", "out")}.items():
            patch.setattr(problems, name, fewer)
        yield


@pytest.fixture(scope="module")
def helped(tmp_path_factory):
    """Networks that each know something else."""
    return made_up(tmp_path_factory.mktemp("helped"), [1.5, 1.5, 1.5, 1.5])


@pytest.fixture(scope="module")
def misled(tmp_path_factory):
    """Members that are the given model again, and CSADA that knows the labels."""
    return made_up(tmp_path_factory.mktemp("misled"), [1.5, None, None, None], aimed=0)


def test_every_row_has_a_line_for_every_kind_and_budget(helped):
    rows = {"argmax", RULE, "rule, all views", GENERIC, AUTO, "auto --single"}
    found = {(line.kind, line.budget): set() for line in helped.lines}
    for line in helped.lines:
        found[line.kind, line.budget].add(line.row)
    assert set(found) == {(k, b) for k in (*problems.KINDS, EVERY) for b in study.BUDGETS}
    assert all(own == rows for own in found.values())
    counts = {line.kind: line.problems for line in helped.lines}
    assert counts == {"pareto": 1, "pmi": 1, "block": 2, "pairs": 3, EVERY: 7}


def test_auto_wins_where_members_help(helped):
    for budget in study.BUDGETS:
        auto, rule = (helped.line("digits", EVERY, budget, row) for row in (AUTO, RULE))
        assert auto.removed > rule.removed + 5 and auto.points > rule.points
        assert auto.against[RULE].low > 0 and auto.against[RULE].mean == pytest.approx(
            auto.removed - rule.removed, abs=0.02
        )
    assert all(a.accepted for a in helped.acceptance if a.kind == EVERY)


def test_auto_does_not_win_where_members_know_nothing_more_and_another_row_does(misled):
    for budget in study.BUDGETS:
        assert misled.line("digits", EVERY, budget, AUTO).against[GENERIC].low <= 0
    aimed = [a for a in misled.acceptance if a.kind == AIMED]
    assert (
        len(aimed) == 4 and not any(a.accepted for a in aimed) and {a.best for a in aimed} <= {"csada", "csada + rule"}
    )
    assert misled.line("digits", AIMED, 0.0, "csada").removed == 100


def test_a_larger_budget_removes_more(helped):
    removed = [helped.line("digits", EVERY, budget, RULE).removed for budget in study.BUDGETS]
    assert removed[-1] > removed[0]


def test_the_interval_is_that_of_the_bootstrap():
    values = np.random.default_rng(1).normal(0.1, 1, 300)
    expected = bootstrap_paid(values, "total_cost")
    assert study.interval(values) == pytest.approx(tuple(expected), rel=1e-4)


def test_a_sample_in_two_test_parts_is_one_sample():
    ids = np.array([3, 4], np.uint64)
    sums = study.Sums({"argmax": np.array([1.0, 3.0])}, {"argmax": np.ones(2)}, 1)
    shares = study.Shares.of([(ids, sums), (ids[::-1], sums)], ids)
    assert shares.paid["argmax"].tolist() == [50, 50] and shares.problems == 2


def test_problems_come_from_validation_and_differ():
    confusion = np.array([[50, 3, 0], [1, 40, 9], [0, 0, 60]])
    found = problems.problems(confusion, (0,))
    assert list(found["pairs"]) == ["pair:1:2", "pair:0:1", "pair:1:0"]
    assert found["block"]["block:10:out"].values.tolist() == [[0, 10, 10], [1, 0, 1], [1, 1, 0]]
    assert len(problems.problems(np.eye(2, dtype=int))["pmi"]) <= 2 and "block" not in problems.problems(confusion)


def test_the_record_is_read_as_it_was_written_and_its_report_shows_it(misled, tmp_path):
    assert read_study(write_json(tmp_path / "study.json", misled)) == misled
    paths = study_report.render(misled, tmp_path)
    assert {p.name for p in paths} >= {"study-digits.md", "study-aimed.md", "study-frontier.png", "study-rows.png"}
    line = misled.line("digits", EVERY, 0.5, AUTO)
    assert f"{line.removed:.1f}" in (tmp_path / "study-digits.md").read_text()
    assert "0 of 1" in (tmp_path / "study-acceptance.md").read_text()


# -- training --------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    source = replace(
        SOURCES["digits"], model="mlp", baselines=1, targets=("pareto:0", "pairs:0"), aimed=(0,), samples=100
    )
    source = replace(source, epochs=1)
    monkeypatch.setitem(SOURCES, "digits", source)
    monkeypatch.setattr(libraries, "RIVALS", ("csada",))


def test_a_library_that_was_interrupted_grows_on(tiny, tmp_path, caplog):
    results, runs, trained = tmp_path / "results", tmp_path / "runs", []

    def stop(name, _):
        trained.append(name)
        if len(trained) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend("digits", results, runs, on_network=stop)
    before = read_library(results, "digits")
    assert list(before.about.networks) == trained == [f"0/{name}" for name in MEMBERS[:3]]
    assert before.seeds == []
    assert extend("digits", results, runs, on_network=stop) == []
    after = read_library(results, "digits")
    aimed = [f"0/{method}@{target}" for target in ("pareto:0", "pairs:0") for method in ("aimed", "csada")]
    assert trained[3:] == ["0/mixup-2", *aimed, "0/student"]
    assert after.seeds == [0] and all((after.arrays[key] == value).all() for key, value in before.arrays.items())
    assert after.aimed(0, "pareto:0") == {"mixup": "aimed@pareto:0", "csada": "csada@pareto:0"}
    given = after.scores(0, "validation", "baseline")["identity"].argmax(1)
    first = problems.problems(confusion_counts(after.labels(0, "validation"), given, 10))["pairs"]
    assert after.about.networks["0/csada@pairs:0"].costs == next(iter(first))  # what the study judges it on
    assert after.about.networks["0/restart"].start == "fresh" and after.arrays["0/test_ids"].dtype == np.uint64
    networks = {name: each for name, each in after.about.networks.items() if "@" not in name}
    libraries.write_library(results, "digits", Library(replace(after.about, networks=networks), after.arrays))
    assert extend("digits", results, tmp_path / "elsewhere") == aimed
    assert re.search(r"weights of baseline 0 of digits are not under .*--baselines 3", caplog.text)


def test_networks_that_are_trained_side_by_side_are_those_of_one_after_the_other(tmp_path):
    source = replace(SOURCES["wine"], targets=(), epochs=3)  # folds too
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "wine", source)
        found = {}
        for workers in (1, 2):
            folder, seen = tmp_path / str(workers), []
            more = {"engine": Engine(workers=workers), "on_progress": lambda *now, seen=seen: seen.append(now)}
            assert extend("wine", folder, folder / "runs", baselines=1, **more) == [] and seen[-1][1] == 6
            found[workers] = read_library(folder, "wine")
    one, two = found[1], found[2]
    assert set(one.arrays) == set(two.arrays) and one.seeds == two.seeds == [0]
    assert all(np.array_equal(one.arrays[key], two.arrays[key]) for key in one.arrays)
    assert {n: each.loss for n, each in one.about.networks.items()} == {
        n: each.loss for n, each in two.about.networks.items()
    }


def test_two_studies_at_once_keep_what_both_add(tiny, tmp_path):
    here = "digits", tmp_path / "results", tmp_path / "runs"

    def other(name, _):
        if name == "0/baseline":
            assert extend(*here, baselines=2) == []

    assert extend(*here, baselines=1, on_network=other) == []
    assert (
        read_library(tmp_path / "results", "digits").seeds == [0, 1]
        and missing("digits", read_library(tmp_path / "results", "digits"), 2) == []
    )


def test_a_library_does_not_grow_with_samples_in_another_order(tiny, tmp_path, monkeypatch):
    """Its other baselines would be judged by labels that are not theirs."""
    here = "digits", tmp_path / "results", tmp_path / "runs"
    one = replace(SOURCES["digits"], splits=False, targets=())
    monkeypatch.setitem(SOURCES, "digits", one)
    assert extend(*here) == []
    before = read_library(tmp_path / "results", "digits")
    turned = replace(one.load("digits", 0), test=one.load("digits", 0).test.take(range(358, -1, -1)))
    monkeypatch.setattr(Source, "load", lambda *_: turned)
    grow._splits.cache_clear()
    with pytest.raises(InputError, match="test samples are not those of its library, or are in another order"):
        extend(*here, baselines=2)
    after = read_library(tmp_path / "results", "digits")
    assert list(after.about.networks) == list(before.about.networks)
    grow._splits.cache_clear()


def test_a_network_that_another_study_trains_is_waited_for(tiny, tmp_path):
    one = task_of(tmp_path)
    with locked(tmp_path / "baseline"), pytest.raises(Later):
        one(lambda *_: pytest.fail("trained twice"))
    assert one(lambda *_: None).about.networks["0/baseline"].method == "cross_entropy"


def task_of(folder):
    return partial(grow._made, "digits", SOURCES["digits"], 0, "baseline", folder)


def test_no_network_is_begun_after_the_deadline(tiny, tmp_path):
    assert len(extend("digits", tmp_path, tmp_path / "runs", deadline=0.0)) == 9
    assert not list(tmp_path.iterdir())


# -- the command and the page ----------------------------------------------------------------------


def test_the_list_says_what_is_there(tmp_path):
    shown = CliRunner().invoke(app, ["study", "--list", "--results", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and all(name in shown.output for name in SOURCES) and "0 of 71" in shown.output
    for words, said in (
        (["cifar100"], "known: cifar10"),
        (["--results", str(tmp_path)], "csada study NAME trains one"),
    ):
        assert said in str(CliRunner().invoke(app, ["study", *words]).exception)


def test_the_committed_tables_are_those_of_the_record():
    record = read_study(ROOT / "results/study.json")
    for table in study_report.tables(record):
        assert (ROOT / f"results/{table.name}.md").read_text() == markdown(table)
    grown = study.to_judge(ROOT / "results", record, list(SOURCES))
    assert not grown, f"csada study judges {grown[0]} again"


def test_numbers_on_the_page_stand_in_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    member, record = pytest.importorskip("member"), json.loads((ROOT / "results/member.json").read_text())
    tables = "".join(path.read_text() for path in (ROOT / "results").glob("study-*.md"))
    for row in ("csada", "csada, uniform costs"):
        found = (member.more_than_generic(own, row, "0.0") for own in record.values())
        tables += "".join("{:+.1f} [{:.1f}, {:.1f}] ".format(*each).replace("-", "−") for each in found)
    page = re.sub(r"```.*?```|\]\([^)]*\)", "", (ROOT / "docs/study.md").read_text(), flags=re.DOTALL)
    quoted = re.findall(r"[+−]?\d+\.\d+", page)
    assert len(quoted) > 20
    for number in quoted:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", tables), f"the page says {number}"


def test_what_the_choice_of_strength_is_worth_on_small_sets_is_what_was_measured():
    record = json.loads((ROOT / "results/strength.json").read_text())
    found = {}
    for problem, rows in record["problems"].items():
        found[problem] = {row["choice"]: row for row in rows if row["budget"] == 0.5}
    page = " ".join((ROOT / "docs/study.md").read_text().split("**Strength on small sets.**")[1].split())
    tumours = found["breast cancer 20 : 1, logistic regression, 68"]
    off = [f"{100 * tumours[choice]['off']:.0f} %" for choice in ("counted", "within_budget")]
    assert f"a strength of 0 on {off[0]} of the splits, the budget on {off[1]};" in page
    assert f"{record['repetitions']} splits" in page
    for problem, before in (
        ("breast cancer 20 : 1, logistic regression, 68", "the cost removed is "),
        ("wine, logistic regression, 40", "Wine, 40 samples: "),
        ("digits, Pareto costs, logistic regression, 300", "Of 300 digits "),
    ):
        removed = [100 - found[problem][choice]["cost"] for choice in ("counted", "within_budget")]
        assert f"{before}{removed[0]:.0f} and {removed[1]:.0f} %" in page


def test_what_is_planned_for_later_is_said():
    later = (ROOT / "docs/study.md").read_text().split("## Not measured yet")[1]
    for name, source in SOURCES.items():
        left = missing(name, read_library(ROOT / "results", name))
        assert not left or (source.title in later and len(left) == 1), f"{name} lacks {left}"
