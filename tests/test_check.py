"""Acceptance: `csada check`, its bounds, its record, and what a pipeline and a reader see of it."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from browser import chromium
from program import program
from scipy.stats import binomtest
from sklearn.datasets import load_wine
from test_cli import inside, refused
from test_docs import blocks, commands, text

import csada
from csada import Classifier, CostMatrix
from csada.data import folder as folders
from csada.decisions.acceptance import verdicts
from csada.decisions.limits import Limits
from csada.metrics import REFER
from csada.models.saved import signature
from csada.report.card import card
from csada.report.page import page
from csada.workflow.check import FILE, latest
from csada.workflow.fit import improve

NAMES = ('<b>one & "two"', "<script>alert(1)<\\script>", "seven\uffff")
SIZE = {"channels": 3, "size": 8}


def limits(**values):
    return Limits.of(values)


def criteria(file, *lines, confidence=0.95):
    file.write_text(f"confidence = {confidence}\n" + "\n".join(lines))
    return file


def pair(truth, predicted, at_most):
    return f"[[pair]]\ntruth = {json.dumps(truth)}\npredicted = {json.dumps(predicted)}\nat_most = {at_most}"


def of(kind, name, at_least):
    return f"[[{kind}]]\nclass = {json.dumps(name)}\nat_least = {at_least}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Images of three digits in class folders with odd names, a fitted model of them, and one that has learnt nothing."""
    root = tmp_path_factory.mktemp("check")
    digits = csada.data.load("digits")
    three = {}
    for name, part in digits.parts.items():
        few = part.take(np.flatnonzero(part.y.numpy() < 3))
        three[name] = replace(few, x=(few.x.float() * 255 / few.x.max()).to(torch.uint8))
    folders.save(replace(digits, **three, classes=NAMES, name="photos"), root / "photos")
    splits = csada.data.load(str(root / "photos"), size=8)
    torch.manual_seed(0)
    network = csada.models.create("cnn", 3, **SIZE)
    raw = Classifier.of(network, splits, architecture="cnn", arguments=SIZE)
    trained = csada.fit(network, splits, "cross_entropy", epochs=8, lr=0.05, batch_size=32).model
    costs = CostMatrix(CostMatrix.pareto(3, seed=1).values, NAMES)
    given = Classifier.of(trained, splits, costs, architecture="cnn", arguments=SIZE)
    improve(given, splits, costs, "csada", {"epochs": 0}).save(root / "model")
    replace(raw, costs=costs).save(root / "raw")
    return root, splits


@pytest.fixture
def model(made, tmp_path):
    """A copy of the fitted model's folder: a check writes to it."""
    shutil.copytree(made[0] / "model", tmp_path / "model")
    return tmp_path / "model"


def check(model, made, file, *words):
    run = inside("check", model, made[0] / "photos", "--criteria", file, *words)
    assert run.returncode in (0, 1, 3), run.stderr
    return run


# -- the bounds ------------------------------------------------------------------------------------


def drawn(bad, n):
    """Truth and predictions of n cases of class 0, `bad` of them labelled as class 1."""
    return np.zeros(n, np.int64), (np.arange(n) < bad).astype(np.int64)


@pytest.mark.parametrize(("bad", "n"), [(0, 1), (0, 299), (3, 40), (40, 40), (7, 2000)])
@pytest.mark.parametrize(("confidence", "groups"), [(0.95, 0), (0.9, 3)])
def test_bounds_are_exact_and_corrected_for_all_that_is_verdicts(bad, n, confidence, groups):
    stated = limits(
        pair=[{"truth": "a", "predicted": "b", "at_most": 0.02}],
        recall=[{"class": "a", "at_least": 0.99}],
        confidence=confidence,
    ).resolved("ab")
    masks = {f"g{i}": np.zeros(n, bool) for i in range(groups)}
    found = verdicts(stated, *drawn(bad, n), groups=masks)
    level = 1 - (1 - confidence) / (2 * (1 + groups))
    high = binomtest(bad, n, alternative="less").proportion_ci(level, "exact").high
    low = binomtest(bad, n, alternative="greater").proportion_ci(level, "exact").low
    assert len(found) == 2 * (1 + groups) and {c.level for c in found} == {level}
    assert (found[0].bound, found[0].best) == (pytest.approx(high), pytest.approx(low))
    assert (found[1].bound, found[1].best) == (pytest.approx(1 - high), pytest.approx(1 - low))
    for c, most in zip(found, (0.02, 0.01), strict=False):
        told = "pass" if high <= most else "fail" if low > most else "not enough samples"
        assert (c.verdict, c.samples, c.bad) == (told, n, bad)
    assert all((c.verdict, c.samples, c.rate) == ("not enough samples", 0, None) for c in found[2:])


@pytest.mark.parametrize(("bad", "n"), [(0, 0), (0, 100), (1, 200), (9, 300)])
def test_the_number_needed_decides_and_one_less_does_not(bad, n):
    stated = limits(pair=[{"truth": "a", "predicted": "b", "at_most": 0.02}]).resolved("ab")
    (c,) = verdicts(stated, *drawn(bad, n))
    assert c.verdict == "not enough samples" and c.needed > n and f"{c.needed:,} samples" in c.why
    side = "greater" if bad / max(n, 1) > 0.02 else "less"

    def decides(m):
        ends = binomtest(round(bad / max(n, 1) * m), m, alternative=side).proportion_ci(0.95, "exact")
        return ends.low > 0.02 if side == "greater" else ends.high <= 0.02

    below = c.needed // n * n if bad else c.needed - 1  # where the same rate is a whole number of mistakes
    assert decides(below + (n if bad else 1)) and not decides(below)
    if bad == 0:
        assert c.needed == 149 and decides(149) and not decides(148)
    (never,) = verdicts(limits(recall=[{"class": "a", "at_least": 1}]).resolved("ab"), *drawn(0, 500))
    assert (
        never.verdict == "not enough samples" and never.needed is None and "no feasible number of samples" in never.why
    )


def test_a_share_of_referred_cases_is_certain_where_the_rule_refers_none():
    truth = np.zeros(20, np.int64)
    stated = limits(referred={"at_most": 0}).resolved("ab")
    assert verdicts(stated, truth, truth, refers=False)[0].verdict == "pass"
    assert verdicts(stated, truth, truth)[0].verdict == "not enough samples"
    assert verdicts(stated, truth, np.full(20, REFER))[0].verdict == "fail"


def test_accuracy_lost_is_paired_and_its_bound_conservative():
    stated = limits(accuracy_lost={"at_most": 0.05}).resolved("ab")
    truth = np.zeros(400, np.int64)
    before, after = truth.copy(), truth.copy()
    after[:12], before[12:32] = 1, 1  # 12 lost, 20 gained
    (c,) = verdicts(stated, truth, after, before)
    high = binomtest(12, 400, alternative="less").proportion_ci(0.975, "exact").high
    low = binomtest(20, 400, alternative="greater").proportion_ci(0.975, "exact").low
    assert c.bound == pytest.approx(high - low) and c.rate == pytest.approx(-0.02) and (c.bad, c.gained) == (12, 20)
    assert c.verdict == "pass"
    draw, wrong = np.random.default_rng(0), 0
    for _ in range(300):  # the true loss is 0.05 and a little more: passing is wrong
        kind = draw.choice(3, size=400, p=[0.09, 0.0399, 0.8701])
        (c,) = verdicts(stated, truth, (kind == 0).astype(int), (kind == 1).astype(int))
        wrong += c.verdict == "pass"
    assert wrong <= 0.05 * 300


def test_the_chance_of_any_wrong_verdict_is_at_most_5_percent():
    """True rates just beyond the limits: any pass is wrong. Just within them: any failure is. Far within: they pass."""
    most, n, runs = np.array([0.02, 0.05, 0.1, 0.2]), 300, 200
    pairs = [{"truth": str(k), "predicted": "x", "at_most": float(m)} for k, m in enumerate(most)]
    stated = limits(pair=pairs).resolved(["0", "1", "2", "3", "x"])
    truth = np.repeat(np.arange(4), n)
    draw = np.random.default_rng(0)

    def found(factor):
        predicted = np.where(draw.random(4 * n) < np.repeat(factor * most, n), 4, truth)
        return {c.verdict for c in verdicts(stated, truth, predicted)}

    slack = 3 * np.sqrt(0.05 * 0.95 / runs)
    assert sum("pass" in found(1.0001) for _ in range(runs)) / runs <= 0.05 + slack
    assert sum("fail" in found(0.9999) for _ in range(runs)) / runs <= 0.05 + slack
    assert sum(found(0.01) == {"pass"} for _ in range(50)) >= 40  # it is not that nothing ever passes
    assert sum(found(3) == {"fail"} for _ in range(50)) >= 40


# -- the command -----------------------------------------------------------------------------------


def test_exit_codes_of_real_processes_and_the_json_of_a_pipeline(made, model, tmp_path):
    photos = made[0] / "photos"
    file = criteria(tmp_path / "limits.toml", pair(NAMES[0], NAMES[1], 0.3), of("recall", NAMES[2], 0.5))
    run = program("check", model, photos, "--criteria", file, "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["verdict"] == "pass" and len(found["criteria"]) == 2 and found["again"] is False
    for c in found["criteria"]:
        assert {"name", "verdict", "bound", "samples"} <= set(c) and c["verdict"] == "pass"
        assert (c["bound"] <= c["limit"]) if c["kind"] == "pair" else (c["bound"] >= c["limit"])
    test = made[1].test.y.bincount()
    assert [c["samples"] for c in found["criteria"]] == [test[0], test[2]] and found["samples"] == len(made[1].test)

    few = check(model, made, criteria(tmp_path / "few.toml", of("recall", NAMES[2], 0.97)), "--json")
    assert few.returncode == 3 and json.loads(few.stdout)["criteria"][0]["needed"] > 40
    shutil.copytree(made[0] / "raw", tmp_path / "raw")
    strict = criteria(tmp_path / "strict.toml", *(of("recall", name, 0.95) for name in NAMES))
    broken = check(tmp_path / "raw", made, strict)
    assert broken.returncode == 1 and re.search(r"at most [\d.]+ % is proven", broken.stdout)
    assert not (tmp_path / "raw" / "README.md").exists()  # a model without evidence has no card


def test_the_samples_are_looked_at_once_per_criteria(made, model, tmp_path):
    first = check(
        model, made, criteria(tmp_path / "a.toml", pair(*NAMES[:2], 0.3), of("recall", NAMES[2], 0.97)), "--json"
    )
    told = json.loads(first.stdout)
    assert first.returncode == 3 and told["again"] is False and told["earlier"] == []
    recorded = json.loads((model / FILE).read_text())
    assert recorded["checks"][0]["criteria"] == told["sha256"] and recorded["checks"][0]["judged"] == told["judged"]

    # The record and not the model answers: a correctly signed record of something else is repeated word by word.
    recorded.pop("sha256")
    recorded["checks"][0]["results"][0] |= {"verdict": "fail", "bad": 99}
    (model / FILE).write_text(json.dumps(recorded | {"sha256": signature(recorded)}))
    same = criteria(tmp_path / "b.toml", of("recall", NAMES[2], 0.97), "# why", pair(*NAMES[:2], 0.3))  # comment, order
    again = check(model, made, same, "--json")
    repeated = json.loads(again.stdout)
    assert again.returncode == 1 and repeated["again"] is True and repeated["judged"] == told["judged"]
    assert repeated["criteria"][0]["bad"] == 99 and len(json.loads((model / FILE).read_text())["checks"]) == 1
    assert (
        f"Judged on {told['judged'].replace('T', ' ').replace('Z', ' UTC')}: the test samples are looked at once"
        in check(model, made, same).stdout
    )

    other = check(model, made, criteria(tmp_path / "c.toml", pair(*NAMES[:2], 0.4)))
    assert "Look 2 at these samples, with 2 sets of criteria so far." in other.stdout and "(fail)" in other.stdout
    third = check(model, made, criteria(tmp_path / "d.toml", pair(*NAMES[:2], 0.5)), "--json")
    assert [e["verdict"] for e in json.loads(third.stdout)["earlier"]] == ["fail", "pass"]


def test_a_new_model_in_the_folder_inherits_no_verdict_but_the_look_counts(made, model, tmp_path):
    file = criteria(tmp_path / "a.toml", of("recall", NAMES[2], 0.5))
    assert check(model, made, file).returncode == 0 and "## Acceptance" in (model / "README.md").read_text()
    assert latest(model).check.verdict == "pass"
    saved = Classifier.load(model)
    weaker = Classifier.load(made[0] / "raw").members
    replace(saved, members=weaker).save(model)
    assert latest(model) is None and "## Acceptance" not in (model / "README.md").read_text()
    assert inside("report", model).returncode == 0 and 'id="acceptance"' not in (model / "report.html").read_text()
    run = check(model, made, file, "--json")
    told = json.loads(run.stdout)
    assert (
        told["again"] is False and told["earlier"][0] | {"same_model": False, "verdict": "pass"} == told["earlier"][0]
    )
    assert (
        latest(model).check.verdict == told["verdict"] != "pass" and "of another model (pass)" in latest(model).history
    )


def test_corrected_labels_are_judged_again(made, model, tmp_path):
    shutil.copytree(made[0] / "photos", tmp_path / "photos")
    file = criteria(tmp_path / "a.toml", of("recall", NAMES[0], 0.5))
    words = ("check", model, tmp_path / "photos", "--criteria", file, "--json")
    first = json.loads(inside(*words).stdout)
    image = next((tmp_path / "photos" / "test" / NAMES[0]).iterdir())
    image.rename(tmp_path / "photos" / "test" / NAMES[1] / "moved.png")
    second = json.loads(inside(*words).stdout)
    assert second["again"] is False and len(second["earlier"]) == 1
    assert second["criteria"][0]["samples"] == first["criteria"][0]["samples"] - 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace("not enough samples", "pass"), "was changed after it was written"),
        (lambda text: text[: len(text) // 2], "is damaged"),
        (lambda text: "[]", "was changed after it was written"),
    ],
)
def test_a_record_that_was_edited_or_is_damaged_is_refused(made, model, tmp_path, damage, said):
    file = criteria(tmp_path / "a.toml", of("recall", NAMES[2], 0.97))
    assert check(model, made, file).returncode == 3
    (model / FILE).write_text(text := damage((model / FILE).read_text()))
    assert said in refused("check", model, made[0] / "photos", "--criteria", file) and said in refused("report", model)
    assert (model / FILE).read_text() == text


@pytest.mark.parametrize(
    ("lines", "words", "said"),
    [
        ([of("recall", "sevem", 0.9)], (), "unknown class 'sevem'; did you mean 'seven"),
        ([pair("one", "one", 0.1)], (), "name two classes"),
        ([of("recall", NAMES[2], 0.9), of("recall", NAMES[2], 0.8)], (), "two limits on recall of seven"),
        (["[referred]\nat_most = 0.1\nconfidence = 1"], (), "confidence is 1; no sample is proof"),
        (["[refered]\nat_most = 0.1"], (), "unknown key 'refered'"),
        ([], (), "no limit is given"),
        ([of("recall", NAMES[2], 0.9)], ("--part", "validation"), "unknown part 'validation'; known: auto, test, all"),
        ([of("recall", NAMES[2], 0.9)], ("--seen", "never"), "seen is 'never'"),
        (["[accuracy_lost]\nat_most = 0.1"], ("--scale", "0.5"), "on these very samples; csada fit saved those on the"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_recorded(made, model, tmp_path, lines, words, said):
    file = criteria(tmp_path / "limits.toml", *lines)
    assert said in refused("check", model, made[0] / "photos", "--criteria", file, *words)
    assert not (model / FILE).exists()


def test_accuracy_lost_needs_what_fit_saved(made, model, tmp_path):
    file = criteria(tmp_path / "a.toml", "[accuracy_lost]\nat_most = 0.1")
    evidence = Classifier.load(model).evidence
    found = json.loads(check(model, made, file, "--json").stdout)["criteria"][0]
    was, now = (evidence.decided(row) == evidence.labels() for row in ("before", evidence.chosen))
    assert (found["bad"], found["gained"]) == ((was & ~now).sum(), (now & ~was).sum()) and found["verdict"] == "pass"
    shutil.copytree(made[0] / "raw", tmp_path / "raw")
    words = ("check", tmp_path / "raw", made[0] / "photos", "--criteria", file)
    assert "needs the given model's predictions, which csada fit saves" in refused(*words)
    assert "limits.toml cannot be read" in refused("check", model, "digits", "--criteria", tmp_path / "limits.toml")


def test_new_data_are_judged_whole_and_seen_samples_only_knowingly(made, model, tmp_path):
    file = criteria(tmp_path / "a.toml", of("recall", NAMES[2], 0.5))
    new = tmp_path / "new"
    for name in NAMES:
        shutil.copytree(made[0] / "photos" / "test" / name, new / name)
    run = inside("check", model, new, "--criteria", file, "--json")
    assert json.loads(run.stdout)["part"] == "all" and json.loads(run.stdout)["samples"] == len(made[1].test)
    words = ("check", model, made[0] / "photos", "--criteria", file, "--part", "all")
    assert "judging by them flatters it" in refused(*words)
    assert "which flatters it" in inside(*words, "--seen", "keep").stdout


# -- groups ----------------------------------------------------------------------------------------


def grouped(path, names, header="file,group", group=lambda i: f"<i>site {i % 2}"):
    path.write_text(
        "\n".join([header, *(f'"{name.replace(chr(34), chr(34) * 2)}",{group(i)}' for i, name in enumerate(names))])
    )
    return path


def test_every_criterion_is_judged_within_each_group_with_its_cost(made, model, tmp_path):
    root, splits = made
    file = criteria(tmp_path / "a.toml", pair(*NAMES[:2], 0.3), of("recall", NAMES[2], 0.5))
    names = splits.test.names
    plain = json.loads(check(model, made, file, "--json").stdout)
    groups = grouped(tmp_path / "groups.csv", [f"{root / 'photos'}/{name}" for name in names])  # as predict names them
    found = json.loads(check(model, made, file, "--groups", groups, "--json").stdout)
    assert (
        found["again"] is False
        and len(found["criteria"]) == 6
        and found["criteria"][0]["level"] > plain["criteria"][0]["level"]
    )
    classifier = Classifier.load(model)
    for i in range(2):
        e = classifier.evaluate((splits.test.x[i::2], splits.test.y[i::2]))
        told = found["groups"][i]
        assert (told["name"], told["samples"]) == (f"<i>site {i}", e.samples)
        assert told["mean_cost"] == pytest.approx(e.mean_cost)
        expected = [e.pair_error(*p) for p in classifier.costs.critical_pairs()]
        assert [(p["truth"], p["predicted"], p["errors"], p["samples"]) for p in told["pairs"]] == [
            (p.truth, p.predicted, p.errors, p.samples) for p in expected
        ]
        recall = found["criteria"][3 + 2 * i]
        assert recall["group"] == f"<i>site {i}" and recall["samples"] == int((splits.test.y[i::2] == 2).sum())
    shown = check(model, made, file, "--groups", groups).stdout
    assert "<i>site 1: " in shown and "cost per 100 predictions" in shown and "Judged on" in shown
    assert "\\<i\\>site 0: " in (model / "README.md").read_text()


def test_groups_that_miss_samples_or_name_others_are_one_line(made, model, tmp_path):
    root, splits = made
    file, names = criteria(tmp_path / "a.toml", of("recall", NAMES[2], 0.5)), splits.test.names
    words = ("check", model, root / "photos", "--criteria", file, "--groups")
    path = tmp_path / "groups.csv"
    said = refused(*words, grouped(path, names[2:]))
    assert f"lacks 2 of the {len(names)} files that are judged, first {names[0]}; add them" in said
    said = refused(*words, grouped(path, [*names, "test/x/a.png", "test/y/b.png"]))
    assert "names 2 files that photos lacks, first test/x/a.png" in said
    said = refused(*words, grouped(path, [*names, names[0]], group=str))
    assert f"line {len(names) + 2}: {names[0]} is in the group '0' already" in said
    assert "file (or row) and group are needed" in refused(*words, grouped(path, names, "name,group"))
    assert "a file and its group are needed" in refused(*words, grouped(path, names, group=lambda i: ""))
    assert not (model / FILE).exists()
    digits = Classifier.of(
        csada.models.create("cnn", 10, channels=1, size=8),
        csada.data.load("digits"),
        architecture="cnn",
        arguments={"channels": 1, "size": 8},
    )
    digits.save(tmp_path / "digits")
    ten = criteria(tmp_path / "b.toml", of("recall", "3", 0.5))
    said = refused("check", tmp_path / "digits", "digits", "--criteria", ten, "--groups", path)
    assert "neither files nor rows" in said


def test_rows_of_a_table_are_numbered_as_predict_numbers_them(tmp_path):
    wine = load_wine(as_frame=True)
    frame = wine.frame.assign(target=wine.target.map(dict(enumerate(("barolo", "grignolino", "barbera")))))
    frame.to_csv(tmp_path / "wine.csv", index=False)
    assert inside("train", tmp_path / "wine.csv", "--epochs", "5", "--out", tmp_path / "m").returncode == 0
    file = criteria(tmp_path / "a.toml", of("recall", "barolo", 0.5), of("precision", "barbera", 0.5))
    truth = [*frame["target"]]
    groups = grouped(tmp_path / "g.csv", map(str, range(1, 179)), "Row,Group", group=lambda i: truth[i])
    run = inside("check", tmp_path / "m", tmp_path / "wine.csv", "--criteria", file, "--groups", groups, "--json")
    assert run.returncode in (0, 1, 3), run.stderr
    found = json.loads(run.stdout)
    recall = {c["group"]: c["samples"] for c in found["criteria"] if c["kind"] == "recall"}
    assert recall["barolo"] == recall[""] > 5 and recall["barbera"] == recall["grignolino"] == 0
    assert all(group["mean_cost"] is None for group in found["groups"])  # the model has no costs


# -- what others read ------------------------------------------------------------------------------


def test_junit_says_the_same_with_any_class_name(made, model, tmp_path):
    file = criteria(
        tmp_path / "a.toml", pair(*NAMES[:2], 0.3), of("recall", NAMES[2], 0.97), of("precision", NAMES[1], 0.5)
    )
    check(model, made, file, "--junit", tmp_path / "out" / "check.xml")
    raw = (tmp_path / "out" / "check.xml").read_text()
    assert "<script>" not in raw and "\uffff" not in raw
    (suite,) = ElementTree.fromstring(raw)
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["3", "0", "1"]
    first, second, third = suite.findall("testcase")
    assert first.get("name") == f"{NAMES[0]} labelled as {NAMES[1]}" and len(first) == len(third) == 0
    (error,) = second
    assert (
        error.tag == "error" and error.get("type") == "not enough samples" and "97 % is asked" in error.get("message")
    )
    (model / "check.xml").mkdir()
    assert "is a folder" in refused(
        "check", model, made[0] / "photos", "--criteria", file, "--junit", model / "check.xml"
    )
    shutil.copytree(made[0] / "raw", tmp_path / "raw")
    strict = criteria(tmp_path / "b.toml", *(of("recall", name, 0.95) for name in NAMES))
    check(tmp_path / "raw", made, strict, "--junit", tmp_path / "raw.xml")
    (suite,) = ElementTree.parse(tmp_path / "raw.xml").getroot()
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0


def test_report_and_card_show_the_verdict_to_a_reader(made, model, tmp_path):
    stated = (pair(*NAMES[:2], 0.3), of("recall", NAMES[2], 0.97), of("precision", NAMES[1], 0.5))
    spare = made[1].train.names[0]  # a group without test samples
    names = [*made[1].test.names, spare]
    groups = grouped(
        tmp_path / "groups.csv", names, group=lambda i: "nobody" if names[i] == spare else f"<i>site {i % 2}"
    )
    check(model, made, criteria(tmp_path / "a.toml", pair(*NAMES[:2], 0.4)))
    run = check(model, made, criteria(tmp_path / "b.toml", *stated), "--groups", groups, "--json")
    found = json.loads(run.stdout)
    assert inside("report", model).returncode == 0
    wrong = []
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        tab.goto((model / "report.html").as_uri())
        tab.get_by_role("link", name="Acceptance").click()
        section = tab.locator("#acceptance")
        assert section.is_visible() and "Look 2 at these samples" in section.inner_text()
        verdicts = section.locator("table").first.locator("tbody td:nth-child(7)").all_inner_texts()
        assert verdicts == [c["verdict"] for c in found["criteria"]] and len(set(verdicts)) > 1
        costs = section.locator("table").nth(1).locator("tbody td:nth-child(3)").all_inner_texts()
        assert costs == [*(f"{100 * g['mean_cost']:.2f}" for g in found["groups"][:2]), "–"]
        section.locator("table").nth(1).locator("th button").last.click()
        assert "<script>" in section.inner_text() and "<i>site 1" in section.inner_text()
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert not wrong
    text = (model / "README.md").read_text()
    assert text.count("## Acceptance") == 1 and f"**{found['verdict']}**" in text and "Look 2" in text
    saved = Classifier.load(model)
    assert "Acceptance" not in card(saved.evidence, "x") + page(saved.evidence)


def test_a_project_holds_the_settings_of_a_check(made, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    criteria(tmp_path / "limits.toml", of("recall", NAMES[2], 0.5))
    table = '[check]\nmodel = "model"\ncriteria = "limits.toml"\njunit = "check.xml"\njson = true\n'
    (tmp_path / "csada.toml").write_text(f"data = {json.dumps(str(made[0] / 'photos'))}\n{table}")
    run = inside("check")
    assert run.returncode == 0 and json.loads(run.stdout)["verdict"] == "pass" and Path("check.xml").exists()


def test_the_page_on_acceptance_runs_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(text("acceptance.md"), "python")[0], "acceptance.md", "exec"), {})
    for _, *words in commands("acceptance.md")[:4]:
        run = inside(*words)
        assert run.returncode == 0, run.stdout + run.stderr
    assert ElementTree.parse("check.xml").getroot()[0].get("tests") == "5"
    assert 'id="acceptance"' in Path("model/report.html").read_text()
