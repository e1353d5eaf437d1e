"""The page as its reader meets it: made of evidence, opened in a browser."""

import json
import os
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import chromium
from made import HOSTILE, RULE, made_evidence
from test_cli import inside as program

import csada
from csada.cli.evaluate import report
from csada.decisions import Admission, Decision, Scaling
from csada.evidence import ROWS
from csada.report import charts
from csada.report.card import card, verdict
from csada.report.page import details, page
from csada.report.sections import SECTIONS

EVIDENCE = made_evidence()


def saved(evidence, folder):
    """A classifier with that evidence, as `csada fit` saves it."""
    k = len(evidence.classes)
    splits = csada.Splits(*[csada.Part(torch.zeros(k, 4), torch.arange(k))] * 3, evidence.classes, evidence.data)
    network = csada.models.create("mlp", k, features=4)
    made = csada.Classifier.of(network, splits, evidence.costs, architecture="mlp", arguments={"features": 4})
    return replace(made, evidence=evidence).save(folder)


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    written = tmp_path_factory.mktemp("page") / "own name.html"
    written.write_text(page(EVIDENCE), encoding="utf-8")
    return written


@pytest.fixture
def opened(browser, file):
    """The page in a fresh tab; whatever goes wrong in it fails the test."""
    wrong, address = [], file.as_uri()
    tab = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
    tab.on("console", lambda message: wrong.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda r: r.url == address or r.url.startswith("data:") or wrong.append(f"request: {r.url}"))
    tab.goto(address)
    yield tab
    tab.close()
    assert not wrong


def numbers_in(tab, table, column):
    cells = tab.locator(f"{table} tbody td:nth-child({column})")
    return [float(value) for value in cells.evaluate_all("all => all.map(cell => cell.dataset.value)")]


def seen(text):
    """What a reader of the HTML sees."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", text)).split())


REFERS = Decision(0.35, strength=0.5, refer_above=0.3)


MEMBERS = (Admission("given", 0.3, 0.9), Admission("restart", 0.2, 0.91), Admission("mixup", 0.4, 0.8, kept=False))


@pytest.mark.parametrize("members", [(), MEMBERS], ids=["one method", "members"])
@pytest.mark.parametrize("rule", [RULE, REFERS], ids=["decides", "refers"])
@pytest.mark.parametrize(("row", "sides"), [*((row, 2) for row in ROWS), ("before", 1), ("before + rule", 1)])
def test_page_card_and_verdict_agree(row, sides, rule, members):
    evidence = made_evidence(row, rules=dict.fromkeys(("before", "after")[:sides], rule), referral_cost=0.3)
    if members:
        evidence = replace(evidence, method="auto", admissions=members, passes=4)
    told, shown, text = verdict(evidence), page(evidence), card(evidence, "8 x 8 pixels")
    assert told in text and re.search(r'class="lead verdict">(.*?)</p>', shown)[1].count("<strong>") == 1
    assert seen(re.search(r'class="lead verdict">(.*?)</p>', shown)[1]) == told
    assert re.findall(r'<tr class="chosen"><th scope="row" data-value="\d">([^<]+)', shown) == [row]
    assert re.findall(r"^\| \*\*(.+?)\*\*", text, re.MULTILINE) == [row]
    for part, was in (("cost, validation", evidence.validation), ("cost, test", evidence.test)):
        column = [cell.strip() for cell in text.split("## Results")[1].split("|")].index(part)
        line = next(line for line in text.splitlines() if line.startswith(f"| **{row}**"))
        assert line.split("|")[column].strip() == f"{100 * was[row].mean_cost:.2f}"
    first = re.search(r'<span class="value">(.*?)</li>', shown)[1]
    assert f"{100 * evidence.test[row].mean_cost:.2f}</span>" in first and ("→" in first) == (row != "before")
    part = f"on the {100 * evidence.test[row].coverage:.1f} % of cases that it decides itself"
    assert (part in told) == (rule is REFERS and "rule" in row)
    assert ("What each network added" in shown) == ("mixup (left out)" in shown) == bool(members)
    assert ("A prediction takes 4 forward passes" in shown) == bool(members and sides == 2)


@pytest.mark.parametrize(("costs", "row"), [(None, "before + rule"), (1 - np.eye(10), "before")])
def test_of_rows_that_decide_alike_the_rule_is_chosen_unless_all_mistakes_cost_the_same(costs, row):
    alike = Decision(0.35, strength=1e-12)
    evidence = made_evidence(rules={"before": alike, "after": alike}, sure=(4.0, 2.5), costs=costs)
    assert evidence.validation["before"].mean_cost == evidence.validation["before + rule"].mean_cost
    assert evidence.cheapest() == row


def test_the_page_shows_what_the_logits_say(opened):
    shown = opened.locator("#results tbody tr").all()
    for row, (name, e) in zip(shown, EVIDENCE.test.items(), strict=True):
        critical = sum(pair.errors for pair in e.top_pairs(3))
        texts = [cell.inner_text().replace("\u00a0", " ") for cell in row.locator("th, td").all()]
        assert texts[0] == name and texts[1] == f"{100 * e.accuracy:.2f} %" and texts[-1] == str(critical)
        assert float(texts[2].replace(",", "")) == pytest.approx(100 * e.mean_cost, rel=1e-3)
    counts = EVIDENCE.test["before"].confusion
    title = opened.locator("#confusion-0-0 .cell title").first.text_content()
    assert title.startswith(f"{HOSTILE[0]} labelled as {HOSTILE[0]}: {counts[0, 0]} of {counts[0].sum()} (")


def test_every_figure_is_there(opened):
    assert opened.locator("nav a").evaluate_all("a => a.map(e => e.hash.slice(1))") == [
        name
        for name in SECTIONS
        if name != "limits"  # none were given
    ]
    assert opened.evaluate("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))")
    marks = "all => all.map(s => [s.id, s.querySelectorAll('rect, circle, path, polyline').length])"
    figures = dict(opened.locator("svg").evaluate_all(marks))
    maps, lines = ("costs-map", "confusion-0-2"), ("frontier-chart", "coverage-chart", "training-loss")
    assert all(figures[name] > 0 for name in (*maps, *lines, "attack-0", "cost-0", "pair-0-after"))
    images = opened.locator("img").evaluate_all("all => all.map(i => i.complete && i.naturalWidth)")
    assert len(images) > 6 and min(images) == 8
    assert opened.locator("#confusion-0-0").is_visible() and not opened.locator("#confusion-1-0").is_visible()
    opened.get_by_label("before → after", exact=True).check()
    assert opened.locator("#confusion-2-0").is_visible() and not opened.locator("#confusion-0-0").is_visible()


@pytest.mark.parametrize("by", ["click", "keyboard"])
def test_tables_sort_by_number(opened, by):
    table, column = "#pairs table", 3
    button = opened.locator(f"{table} th:nth-child({column}) button")

    def press():
        button.click() if by == "click" else button.press("Enter")

    values = numbers_in(opened, table, column)
    assert sorted(values) != sorted(values, key=str)
    press()
    assert numbers_in(opened, table, column) == sorted(values)
    assert opened.locator(f"{table} th[scope=col]:nth-child({column})").get_attribute("aria-sort") == "ascending"
    press()
    assert numbers_in(opened, table, column) == sorted(values, reverse=True)
    assert opened.locator(f"{table} th[aria-sort]").count() == 1


def test_the_first_screen_says_what_to_use_and_what_is_not_proven():
    shown = page(made_evidence(classes=("a", "b"), costs=[[0, 9], [1, 0]], sure=(9, 9)), "my model")
    banner = seen(re.search(r'class="banner">(.*?)</div>', shown, re.DOTALL)[1])
    assert banner.startswith("Use the improved model, with its decision rule. On test it costs ")
    assert "To use it: csada predict 'my model' INPUTS" in banner
    assert "Not proven: that a is rarely labelled as b (0 of 150 test samples: up to 2.0 % is possible)" in banner


def test_pictured_mistakes_are_named_by_their_files():
    names = ("test/<b>a</b>.png", "x" * 5000 + "/last.png", *("c.png",) * 4)
    text = page(made_evidence(mistaken=names))
    assert "test/&lt;b&gt;a&lt;/b&gt;.png" in text and "test no." not in text
    assert "…" + "x" * 50 + "/last.png" in text and "x" * 51 not in text
    assert "test no. 5" in page(EVIDENCE)
    with pytest.raises(csada.InputError, match="1 names of mistakes"):
        made_evidence(mistaken=("a.png",))


@pytest.mark.parametrize("refers", [False, True])
def test_tables_whose_rows_add_up_say_the_total(refers):
    rules = dict.fromkeys(("before", "after"), REFERS) if refers else None
    evidence = made_evidence(sure=(1.0, 1.5), rules=rules, referral_cost=0.3)
    text, e = page(evidence), evidence.test["after + rule"]
    foot = [seen(part) for part in re.findall(r"<tfoot>(.*?)</tfoot>", text, re.DOTALL)]
    wrong = e.confusion.sum() - np.trace(e.confusion)
    total = f"{e.total_cost:.1f}" if e.total_cost >= 100 else f"{e.total_cost:.2f}"
    assert f"Total{wrong + e.referred}{total}100.0 %" in foot[0].replace("\u00a0", " ")
    assert foot[0].startswith("Other mistakes") and ("Left to a person" in foot[0]) == refers
    both = [
        sum(evidence.test[row].pair_error(*p).errors for p in e.costs.critical_pairs(10)) for row in ("before", e.name)
    ]
    assert foot[1] == "Total" + "".join(map(str, both))
    assert f'<span class="soft">{wrong} mistakes in all</span>' in text


def test_names_are_shown_and_not_run(opened):
    assert opened.locator("h1").inner_text() == "<b>pills</b>: what mistakes cost, before and after"
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
    shown = ("#costs-map", "#results table", "#attack-0", "#training-loss", "#examples img >> nth=0")
    assert all(opened.locator(each).is_visible() for each in shown) and not opened.locator(".hint:visible").count()
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_folds_are_open_on_paper_and_as_they_were_afterwards(opened):
    opened.locator("#training summary").press("Enter")
    for event, count in (("beforeprint", 3), ("afterprint", 1)):
        opened.evaluate(f"dispatchEvent(new Event('{event}'))")
        assert opened.locator("details[open]").count() == count


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_of_a_chart_is_cut_off(opened, width):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    cut = """all => all.filter(text => {
        const [inner, outer] = [text, text.ownerSVGElement].map(e => e.getBoundingClientRect());
        return inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.top < outer.top - 1;
    }).map(text => `${text.ownerSVGElement.id}: ${text.textContent}`)"""
    assert opened.locator(".chart text, .bars text").evaluate_all(cut) == []


def test_attacks_and_training_are_folded_until_asked_for(opened):
    folds = {name: opened.locator(f"#{name} details") for name in ("examples", "attacks", "training")}
    assert opened.locator("details").count() == 3 and not opened.locator("details[open]").count()
    assert not opened.locator("#attack-0").is_visible()
    folds["examples"].locator("summary").press("Enter")
    opened.locator("nav a[href='#attacks']").press("Enter")  # a click may miss while the page still scrolls
    opened.locator("#attacks details[open]").wait_for()
    assert opened.locator("#attack-0").is_visible() and opened.locator("#examples img").first.is_visible()
    assert folds["training"].get_attribute("open") is None


def test_wide_tables_say_that_they_scroll(opened):
    hint = opened.locator(".hint:has(+ .scroll[aria-label^='Results'])")
    hint.wait_for(state="hidden")
    opened.set_viewport_size({"width": 390, "height": 844})
    hint.wait_for(state="visible")


def test_everyone_can_read_it(opened):
    assert opened.locator("h1").count() == 1
    twice = "[...document.querySelectorAll('[id]')].map(e => e.id).filter((v, i, a) => a.indexOf(v) != i)"
    assert opened.evaluate(twice) == []
    nameless = "all => all.filter(s => !document.getElementById(s.getAttribute('aria-labelledby'))?.textContent).map(s => s.id)"
    assert opened.locator("svg").evaluate_all(nameless) == []
    assert opened.locator("svg:not([role=img]), img:not([alt]), th:not([scope])").count() == 0
    assert opened.locator("table").count() == opened.locator("table > caption").count() > 0
    assert opened.locator("html").get_attribute("lang") == "en"
    assert opened.locator("main, nav, header, footer").count() == 4
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the results"
    for _ in range(40):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.matches('th button')"):
            break
    assert opened.evaluate("document.activeElement.textContent") == "Model"
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_it_is_complete_without_script(browser, file):
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto(file.as_uri())
    assert tab.locator("#results table").is_visible() and tab.locator("th button, .theme:visible").count() == 0
    tab.close()


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 390, "light")]
)
def test_screenshots(opened, tmp_path, name, width, scheme):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    tops = opened.locator("#panel-0 figure").evaluate_all("all => all.map(f => f.getBoundingClientRect().top)")
    assert (len(set(tops)) == 1) == (width > 390)  # before, after and change side by side
    kept = Path(os.environ.get("CSADA_ARTIFACTS") or tmp_path)
    kept.mkdir(parents=True, exist_ok=True)
    opened.screenshot(path=kept / f"page-{name}.png", full_page=True)


def test_forty_classes_on_a_telephone(browser, tmp_path):
    """Cells of a legible size, in a map that scrolls while the page does not; what is absent has no section."""
    classes = [f"digit {k // 4}, kind {k % 4}" for k in range(40)]
    (tmp_path / "page.html").write_text(page(made_evidence(classes=classes, pictures=False)), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto((tmp_path / "page.html").as_uri())
    left = [name for name in SECTIONS if name not in ("examples", "attacks", "limits")]
    assert tab.locator("main > section").evaluate_all("all => all.map(s => s.id)") == left
    assert tab.locator("nav a").evaluate_all("all => all.map(a => a.hash.slice(1))") == left
    assert tab.locator("img").count() == 0 and tab.locator("#mistakes tbody tr").count() == 10
    assert tab.locator("#costs-map .cell rect").first.bounding_box()["width"] >= 12
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.close()


@pytest.mark.parametrize(
    ("sure", "expected"),
    [
        (
            (2.5, 2.5),
            "cannot tell it from the improved model with its rule (95 % interval of what training adds to the rule: 0.00",
        ),
        ((2.0, 5.0), "training made it cheaper than that"),
        ((5.0, 2.0), "cheaper than the improved model with its rule"),
    ],
)
def test_it_admits_what_training_added_to_the_rule(sure, expected):
    assert expected in details(made_evidence("before + rule", sure=sure)).replace("\u00a0", " ")


def test_one_critical_pair_whole_costs_and_a_long_calibration():
    costs, k = np.ones((6, 6)) - np.eye(6), 6
    costs[0, 1] = 1000
    rule = replace(RULE, scaling=Scaling(tuple(map(tuple, np.eye(k) / 3)), (0.0,) * k))
    text = page(made_evidence(rules={"before": rule, "after": rule}, costs=costs, classes=tuple("abcdef")))
    shown = seen(text)
    assert "on the costliest pair " in shown and "Critical errors are those on the costliest pair: a" in shown
    assert "<dt>scaling</dt><dd>see model.json</dd>" in text and "0.3333333" not in text
    assert ">1,000</td>" in text and ">1</td>" in text and ">1.00</td>" not in text


@pytest.mark.parametrize("row", ["before", "before + rule"])
def test_without_training_nothing_is_said_of_it(row):
    text = page(made_evidence(row, rules={"before": RULE}))
    assert "was not trained further" in text and 'id="training"' not in text
    assert not {"training added", "the trained one", "after + rule"} & set(
        re.findall("training added|the trained one|after . rule", text)
    )
    assert seen(text).count("At most") == (
        1 if row == "before" else 2
    )  # critical pairs: the model beside itself would say the same twice
    assert "before and after" not in text


def test_rows_that_decide_alike_are_not_set_side_by_side():
    same = Decision(strength=0.0)
    text = page(made_evidence("before", rules={"before": same}))
    assert 'id="confusion-0-0"' in text and 'id="confusion-0-1"' not in text and 'id="confusion-1-0"' not in text
    text = page(made_evidence(rules={"before": same, "after": RULE}))
    assert "before → before + rule" not in text and "before → after + rule" in text


def test_referred_cases_have_a_column_and_a_price():
    evidence = made_evidence(
        rules={"before": RULE, "after": Decision(0.35, strength=0.5, refer_above=0.05)}, referral_cost=0.05
    )
    referred = np.unique(evidence.labels()[evidence.decided("after + rule") < 0])
    text = page(evidence)
    assert len(referred) and ">Referred</th>" in text and "that it decides itself" in text
    assert text.count("labelled as referred: ") >= len(referred)
    assert f"points, on {100 * evidence.test[evidence.chosen].coverage:.1f}\u00a0% of the cases" in text
    assert "cases are left to a person, at 0.05 each; accuracy and errors are of the others." in text
    everything = {"before": RULE, "after": Decision(strength=0.5, refer_above=0.0)}
    nobody = page(made_evidence(rules=everything, referral_cost=0.05))
    assert 'data-value="nan"' not in nobody  # all are referred: a pair without samples has no rate


@pytest.mark.parametrize("changes", [{"sure": (99.0, 99.0)}, {"costs": 1 - np.eye(10)}, {"costs": np.zeros((10, 10))}])
def test_a_perfect_model_and_equal_costs_have_a_page(changes):
    text = page(made_evidence("before", **changes))
    assert "nan" not in text
    assert ('id="mistakes"' in text) == (changes.get("costs", np.zeros(1)).any() > 0)


def test_the_command_writes_the_page_of_a_saved_classifier(tmp_path):
    folder = saved(EVIDENCE, tmp_path / "model")
    ran = program("report", folder, "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["verdict"] == verdict(EVIDENCE) and told["chosen"] == EVIDENCE.chosen
    for name, e in EVIDENCE.test.items():
        assert told["rows"][name]["test"]["mean_cost"] == pytest.approx(e.mean_cost)
    assert Path(told["report"]).read_text(encoding="utf-8") == page(EVIDENCE, "model")  # no path of this machine
    (folder / "model.safetensors").unlink()
    assert program("report", folder).returncode == 0  # the network is not needed
    (folder / "model.json").write_text("{}")
    Path(told["report"]).write_text("old")
    ran = program("report", folder)
    assert ran.returncode == 2 and len(ran.stderr.splitlines()) == 1 and "model.json" in ran.stderr
    assert Path(told["report"]).read_text() == "old" and not list(folder.glob(".*"))


def test_what_cannot_be_shown_or_written_is_refused(tmp_path):
    folder = saved(EVIDENCE, tmp_path / "model")
    with pytest.raises(csada.InputError, match="is a folder; name the file"):
        report(folder, out=tmp_path)
    with pytest.raises(csada.InputError, match=r"cannot write .*; choose another place with --out"):
        report(folder, out=folder / "model.json" / "page.html")
    bare = csada.Classifier.load(folder)
    replace(bare, evidence=None).save(tmp_path / "bare")
    with pytest.raises(csada.InputError, match="trained but not fitted to costs; run csada fit"):
        report(tmp_path / "bare")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (97.2, 98.1, [97.2, 97.4, 97.6, 97.8, 98.0, 98.2]),
        (0, 0, [0, 0.2]),
    ],
)
def test_ticks_enclose_the_values(low, high, expected):
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_long_numbers_of_an_axis_stay_clear_of_its_label():
    """0.000003 % stood on "% of the true class"."""
    line = charts.Line("pair", "after", [1, 2], [0, 3e-6], ["", ""])
    drawn = charts.line_chart("c", "c", charts.Axis("period"), charts.Axis("%", from_zero=True), [line])
    ends = [(float(x), text) for x, text in re.findall(r'class="tick end" x="([\d.]+)"[^>]*>([^<]+)<', drawn)]
    assert ends[-1][1] == "0.000003" and all(x - charts.LETTER * len(text) > 18 for x, text in ends)
    least = charts.Axis("%", from_zero=True, least=0.1)
    assert "0.000003" not in charts.line_chart("c", "c", charts.Axis("period"), least, [line])
