"""The page as its reader meets it: written by the program, opened in a browser."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import chromium
from csada.cli.report import report
from test_cli import csada as program

import csada
from csada import decisions
from csada.data.splits import Part
from csada.evaluation import Scores, evaluate_scores
from csada.report import page
from csada.workflow.fit import fine_tune, save_fine_tuned
from csada.workflow.runs import write_json
from csada.workflow.train import save_baseline, train_baseline

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" & 'single'",
    "Ünïcødé 薬 🧪",
    "</title><img src=x onerror=alert(2)>",
    "a name that is much too long to be shown in full beside a row of a table",
    *("five", "six", "seven", "{{ 7 * 7 }}", "javascript:alert(3)"),
)


def fitted(folder, splits, model, method, **options):
    """What `csada fit` leaves behind, from a baseline that is trained here."""
    start = save_baseline(train_baseline(splits, model, epochs=4), splits, folder / "start")
    costs = csada.CostMatrix(csada.CostMatrix.pareto(len(splits.classes), seed=3).values, splits.classes)
    return save_fine_tuned(fine_tune(start, splits, costs, method, {"epochs": 2} | options), folder / "fitted")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits under hostile names, with everything that a page can show."""
    splits = dataclasses.replace(csada.data.load("digits"), classes=HOSTILE, name="<b>digits</b>")
    return fitted(tmp_path_factory.mktemp("digits"), splits, "cnn", "csada", tasks=8, step_size=0.05)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A table of 40 classes, and a method without an attack."""
    digits = csada.data.load("digits")
    parts = [
        Part(part.x.flatten(1) / 16, 4 * part.y + torch.arange(len(part)) % 4)
        for part in (digits.train, digits.validation, digits.test)
    ]
    splits = csada.data.Splits(*parts, tuple(f"digit {k // 4}, kind {k % 4}" for k in range(40)), "table")
    return fitted(tmp_path_factory.mktemp("table"), splits, "mlp", "cost_weighted")


@pytest.fixture(scope="module")
def written(folder):
    run = program("report", folder, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser, written):
    """The page in a fresh tab; whatever goes wrong in it fails the test."""
    wrong = []
    file = Path(written["report"]).as_uri()
    tab = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
    tab.on("console", lambda message: wrong.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda r: r.url == file or r.url.startswith("data:") or wrong.append(f"request: {r.url}"))
    tab.goto(file)
    yield tab
    tab.close()
    assert not wrong


def numbers_in(tab, table, column):
    cells = tab.locator(f"{table} tbody td:nth-child({column})")
    return [float(value) for value in cells.evaluate_all("all => all.map(cell => cell.dataset.value)")]


def test_the_page_shows_what_the_counts_say(opened, folder, written):
    record = json.loads((folder / "record.json").read_text())
    costs = csada.CostMatrix(record["costs"], record["data"]["classes"])
    shown = opened.locator("#results tbody tr").all()
    assert len(shown) == 4
    for row, (name, parts) in zip(shown, record["rows"].items(), strict=True):
        e = csada.metrics.Evaluation(np.array(parts["test"]), costs)
        low, high = (100 * v for v in e.interval("weighted_error_rate"))
        critical = sum(pair.errors for pair in e.top_pairs(3))
        texts = [cell.inner_text().replace("\u00a0", " ") for cell in row.locator("th, td").all()]
        assert texts[0] == name and texts[1] == f"{100 * e.accuracy:.2f} %" and texts[-1] == str(critical)
        assert float(texts[2].replace(",", "")) == pytest.approx(100 * e.weighted_error_rate, rel=1e-3)
        assert written["rows"][name]["interval"] == pytest.approx([low, high])
        assert written["rows"][name]["cost_per_100"] == pytest.approx(100 * e.weighted_error_rate)
    assert written["samples"] == 359


def test_every_figure_is_there(opened):
    assert opened.locator("nav a").evaluate_all("a => a.map(e => e.hash.slice(1))") == list(page.SECTIONS)
    assert opened.evaluate("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))")
    marks = "all => all.map(s => [s.id, s.querySelectorAll('rect, circle, path, polyline').length])"
    figures = dict(opened.locator("svg").evaluate_all(marks))
    for name in (
        "costs-map",
        "confusion-0-2",
        "frontier-chart",
        "coverage-chart",
        "attack-0",
        "training-loss",
        "cost-0",
    ):
        assert figures[name] > 0, name
    images = opened.locator("img").evaluate_all("all => all.map(i => i.complete && i.naturalWidth)")
    assert len(images) > 6 and min(images) == 8
    assert opened.locator("#confusion-0-0").is_visible() and not opened.locator("#confusion-1-0").is_visible()
    opened.get_by_label("before → after", exact=True).check()
    assert opened.locator("#confusion-1-0").is_visible() and not opened.locator("#confusion-0-0").is_visible()


def test_a_cell_says_who_was_taken_for_whom(opened, folder):
    record = json.loads((folder / "record.json").read_text())
    counts = np.array(record["rows"]["before"]["test"])
    title = opened.locator("#confusion-0-0 .cell title").first.text_content()
    assert title.startswith(f"{HOSTILE[0]} called {HOSTILE[0]}: {counts[0, 0]} of {counts[0].sum()} (")


@pytest.mark.parametrize("by", ["click", "keyboard"])
def test_tables_sort_by_number(opened, by):
    table, column = "#pairs table", 3
    button = opened.locator(f"{table} th:nth-child({column}) button")

    def press():
        button.click() if by == "click" else button.press("Enter")

    values = numbers_in(opened, table, column)
    assert sorted(values) != sorted(values, key=str)
    press()
    assert numbers_in(opened, table, column) == sorted(numbers_in(opened, table, column))
    assert opened.locator(f"{table} th[scope=col]:nth-child({column})").get_attribute("aria-sort") == "ascending"
    press()
    assert numbers_in(opened, table, column) == sorted(numbers_in(opened, table, column), reverse=True)
    assert opened.locator(f"{table} th[aria-sort]").count() == 1


def test_names_are_shown_and_not_run(opened):
    assert opened.locator("h1").inner_text() == "<b>digits</b>: what mistakes cost, before and after"
    assert opened.evaluate("[document.scripts.length, document.querySelectorAll('[onerror], b').length]") == [1, 0]
    titles = opened.locator("#costs-map .tick title").all_text_contents()
    assert titles == [*HOSTILE, *HOSTILE]
    assert "a name that…" in opened.locator("#costs-map").text_content()
    policy = opened.locator("meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; img-src data:;") and "unsafe" not in policy


def test_dark_by_preference_and_by_button(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = opened.evaluate(ground)
    opened.emulate_media(color_scheme="dark")
    dark = opened.evaluate(ground)
    assert light != dark
    opened.get_by_role("button", name="Light", exact=True).click()
    assert opened.evaluate(ground) == light
    opened.get_by_role("button", name="Dark", exact=True).click()
    assert opened.evaluate(ground) == dark


def test_on_paper_there_is_no_navigation(opened):
    opened.emulate_media(media="print", color_scheme="dark")
    assert not opened.locator("nav").is_visible() and not opened.locator(".theme").is_visible()
    assert opened.locator("#costs-map").is_visible() and opened.locator("#results table").is_visible()
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_everyone_can_read_it(opened):
    assert opened.locator("h1").count() == 1
    assert (
        opened.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id).filter((v, i, a) => a.indexOf(v) != i)")
        == []
    )
    nameless = "all => all.filter(s => !document.getElementById(s.getAttribute('aria-labelledby'))?.textContent).map(s => s.id)"
    assert opened.locator("svg").evaluate_all(nameless) == []
    assert opened.locator("svg:not([role=img]), img:not([alt]), th:not([scope])").count() == 0
    assert opened.locator("table").count() == opened.locator("table > caption").count() > 0
    assert (
        opened.locator("html").get_attribute("lang") == "en"
        and opened.locator("main, nav, header, footer").count() == 4
    )
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the results"
    for _ in range(40):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.matches('th button')"):
            break
    assert opened.evaluate("document.activeElement.textContent") == "Model"
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_it_is_complete_without_script(browser, written):
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto(Path(written["report"]).as_uri())
    assert tab.locator("#results table").is_visible() and tab.locator("th button, .theme:visible").count() == 0
    tab.close()


def test_what_is_absent_has_no_section(browser, plain):
    file = plain / "own name.html"
    run = program("report", plain, "--out", file)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("wrote ")
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(file.as_uri())
    left = [name for name in page.SECTIONS if name not in ("examples", "attacks")]
    assert tab.locator("main > section").evaluate_all("all => all.map(s => s.id)") == left
    assert tab.locator("nav a").evaluate_all("all => all.map(a => a.hash.slice(1))") == left
    assert tab.locator("img").count() == 0 and tab.locator("#mistakes tbody tr").count() == 10
    # 40 classes on a telephone: cells of a legible size, in a map that scrolls while the page does not
    assert tab.locator("#costs-map .cell rect").first.bounding_box()["width"] >= 12
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.close()


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1400, "light"), ("dark", 1400, "dark"), ("narrow", 390, "light")]
)
def test_screenshots(opened, tmp_path, name, width, scheme):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    kept = Path(os.environ.get("CSADA_ARTIFACTS") or tmp_path)
    kept.mkdir(parents=True, exist_ok=True)
    opened.screenshot(path=kept / f"page-{name}.png", full_page=True)


def copied(folder, to, **changes):
    """The folder with some keys of its record replaced."""
    shutil.copytree(folder, to)
    write_json(to / "record.json", json.loads((to / "record.json").read_text()) | changes)
    return to


def words(folder):
    return page.summary(page.read(folder)).striptags().replace("\u00a0", " ")


def test_the_summary_admits_that_training_added_nothing(folder, tmp_path):
    """The same model before and after; then the trained one with logits that are noise."""
    record, arrays = json.loads((folder / "record.json").read_text()), dict(np.load(folder / "evidence.npz"))
    rows, rules = record["rows"], record["rules"]
    same = {name: rows[name.replace("after", "before")] for name in rows}
    idle = copied(folder, tmp_path / "idle", rows=same, rules={"before": rules["before"], "after": rules["before"]})
    np.savez(
        idle / "evidence.npz", **arrays | {f"after_{part}": arrays[f"before_{part}"] for part in ("validation", "test")}
    )
    nothing = "as good as the trained model (95 % interval of what training adds to the rule: 0.00 to 0.00)"
    assert f"{nothing}, and it needs no training." in words(idle)
    untrained = copied(idle, tmp_path / "untrained", history=[])
    assert "it was not trained further" in words(untrained) and "training" not in words(untrained)
    assert "the better choice would be" not in words(untrained)  # the best row is the saved model itself

    noise = np.random.default_rng(0).normal(size=arrays["after_test"].shape).astype(np.float16)
    labels, costs = (
        torch.from_numpy(arrays["test_labels"]),
        csada.CostMatrix(record["costs"], record["data"]["classes"]),
    )
    scores = Scores(torch.from_numpy(noise), labels)
    counts = evaluate_scores(scores, costs, decisions.from_plain(rules["after"])).confusion.tolist()
    worse = {"test": counts, "validation": counts}
    spoilt = copied(folder, tmp_path / "spoilt", rows=rows | {"after + rule": worse})
    np.savez(spoilt / "evidence.npz", **arrays | {"after_test": noise})
    assert "more, beyond what chance explains" in words(spoilt)
    assert "cheaper than the trained model" in words(spoilt) and "better keep the old model" in words(spoilt)
    assert "the better choice would be the model as it was" in words(spoilt)


def test_referred_cases_have_a_column_and_a_price(folder, tmp_path):
    record, arrays = json.loads((folder / "record.json").read_text()), np.load(folder / "evidence.npz")
    classes = record["data"]["classes"]
    rule = csada.Abstention(decisions.from_plain(record["rules"]["after"], classes), 0.05)
    truth, predicted = arrays["test_labels"], rule(arrays["after_test"])
    counts = np.zeros((10, 11), int)
    np.add.at(counts, (truth, np.where(predicted < 0, 10, predicted)), 1)
    changed = copied(
        folder,
        tmp_path / "referring",
        rules=record["rules"] | {"after": decisions.to_plain(rule)},
        decision=decisions.to_plain(rule),
        rows=record["rows"] | {"after + rule": {"test": counts.tolist(), "validation": counts.tolist()}},
    )
    evidence = page.read(changed)
    paid = np.where(predicted < 0, 0.05, np.array(record["costs"])[truth, predicted]).mean()
    assert counts[:, 10].sum() > 0
    assert page.numbers(evidence)["rows"]["after + rule"]["cost_per_100"] == pytest.approx(100 * paid)
    text = page.page(evidence)
    assert ">Referred</th>" in text and "left to a person" in text and "of cases that it now decides itself" in text
    assert text.count("called referred: ") >= np.count_nonzero(counts[:, 10])


def test_a_perfect_model_has_a_page(folder, tmp_path):
    record, arrays = json.loads((folder / "record.json").read_text()), dict(np.load(folder / "evidence.npz"))
    right = np.diag(np.bincount(arrays["test_labels"])).tolist()
    changed = copied(
        folder, tmp_path / "perfect", rows={name: {"test": right, "validation": right} for name in record["rows"]}
    )
    kept = {name: array for name, array in arrays.items() if "mistake" not in name}
    sure = 20 * np.eye(10, dtype=np.float16)[arrays["test_labels"]]
    np.savez(changed / "evidence.npz", **kept | {"before_test": sure, "after_test": sure})
    text = page.page(page.read(changed))
    assert 'id="mistakes"' not in text and "no change" in text and "nan" not in text


def broken(name, folder, tmp_path):
    """A folder in that state, and what the refusal must say."""
    if name == "missing":
        return tmp_path / "nowhere", "is no folder"
    copy = copied(folder, tmp_path / name)
    record, evidence = copy / "record.json", copy / "evidence.npz"
    if name == "no record":
        record.unlink()
        return copy, "holds no record.json, which `csada fit` writes"
    if name == "no evidence":
        evidence.unlink()
        return copy, "holds no evidence.npz, which `csada fit` writes"
    if name == "cut":
        evidence.write_bytes(evidence.read_bytes()[:5000])
        return copy, "evidence.npz is damaged"
    if name == "bit":
        data = bytearray(evidence.read_bytes())
        data[len(data) // 2] ^= 255
        evidence.write_bytes(data)
        return copy, "evidence.npz is damaged"
    if name == "pickle":
        np.savez(evidence, test_labels=np.array([{"a": 1}], dtype=object))
        return copy, "evidence.npz is damaged"
    if name == "no json":
        record.write_text("{")
        return copy, "cannot read"
    if name == "baseline":
        write_json(record, {"experiment": "baseline"})
        evidence.unlink()  # as `csada train` leaves its folder
        return copy, "no record of `csada fit` but of 'baseline'"
    if name == "old":
        write_json(record, {key: value for key, value in json.loads(record.read_text()).items() if key != "rules"})
        return copy, "'rules' is missing; run `csada fit` again"
    arrays = dict(np.load(evidence))
    np.savez(evidence, **arrays | {"test_labels": arrays["test_labels"][:-1]})
    return copy, "do not fit together"


STATES = ("missing", "no record", "no evidence", "cut", "bit", "pickle", "no json", "baseline", "old", "shorter")


@pytest.mark.parametrize("name", STATES)
def test_what_cannot_be_shown_is_refused_in_one_line(name, folder, tmp_path):
    given, message = broken(name, folder, tmp_path)
    with pytest.raises(csada.InputError) as refused:
        page.read(given)
    assert message in str(refused.value) and str(given) in str(refused.value) and "\n" not in str(refused.value)


def test_a_refusal_is_one_line_and_leaves_the_old_page(folder, tmp_path):
    copy = copied(folder, tmp_path / "copy", experiment="compare")
    (copy / "report.html").write_text("old")
    run = program("report", copy)
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and "'compare'" in run.stderr
    assert (copy / "report.html").read_text() == "old" and not list(copy.glob(".*"))
    with pytest.raises(csada.InputError, match="is a folder; name a file"):
        report(folder, out=tmp_path)
    with pytest.raises(csada.InputError, match=r"cannot write .*; choose another place with --out"):
        report(folder, out=copy / "record.json" / "page.html")


def test_a_page_needs_no_torch():
    code = "import sys, csada.report.page; assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (97.2, 98.1, [97.2, 97.4, 97.6, 97.8, 98.0, 98.2]),
        (0, 0, [0, 0.2]),
    ],
)
def test_ticks_enclose_the_values(low, high, expected):
    assert page.charts.ticks(low, high) == pytest.approx(expected)
