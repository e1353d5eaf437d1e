"""The story of docs/pharmacy.md: every command as it is printed, in order; two pharmacists answer in a real browser."""

import json
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

from browser import chromium
from test_cli import inside
from test_path import readable, steps
from test_review import saved

import csada

PAGE = Path(__file__).parents[1] / "docs" / "pharmacy.md"
WORST = (("trazodone", "glipizide"), ("lorazepam 1 mg", "lorazepam 0.5 mg"))
HARM = {"anna": (12, 5), "ben": (3, 5)}  # of these; any other mistake is 1


def compare(browser, who, folder):
    """Eleven answers of one pharmacist, by clicking; what is saved."""
    harm = dict(zip(WORST, HARM[who], strict=True))
    tab = browser.new_page(accept_downloads=True)
    tab.goto(Path("review.html").absolute().as_uri())
    tab.locator("#map td").first.wait_for()
    tab.locator("#who").fill(who.title())
    for _ in range(11):
        first, second = (
            harm.get(tuple(pair.split(" labelled as ")), 1)
            for pair in tab.locator("#question strong").all_inner_texts()
        )
        quick = tab.locator("#question .quick button").get_by_text(f"{first / second:g}", exact=True)
        if quick.count():
            quick.click()
        else:
            tab.locator("#ratio").fill(f"{first / second:.3g}")
            tab.locator("#answer").click()
    costs = csada.CostMatrix.from_csv(saved(tab, "costs.csv", folder))
    assert [costs[pair] for pair in WORST] == [*HARM[who]] and costs.referral_cost == 0.5  # what the page began with
    assert inside("costs", "check").returncode == 0
    saved(tab, "answers.json", folder).rename(f"{who}.json")
    tab.close()


def test_from_pictures_to_acceptance(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CSADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    text, said = PAGE.read_text(encoding="utf-8"), {}
    (limits,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    Path("limits.toml").write_text(limits)
    with chromium() as browser:
        for program, *words in steps(PAGE):
            if program == "costs":  # a line to add
                Path("costs.csv").write_text(Path("costs.csv").read_text() + words[0])
                continue
            assert program == "csada"
            run = inside(*words)
            assert run.returncode == 0, (words, run.stdout, run.stderr)
            said[" ".join(words[:2]) if words[0] in ("costs", "data") else words[0]] = run.stdout
            if words[0] == "review":
                for who in HARM:
                    compare(browser, who, tmp_path)
    assert [*said] == (
        ["data save", "data show", "init", "train", "review", "costs merge", "costs check", "fit", "check", "report"]
    )

    assert "more than a factor of 3 on 1" in said["costs merge"]
    assert "trazodone labelled as glipizide: 12, 3; mean 6" in said["costs merge"]
    costs = csada.CostMatrix.from_csv("costs.csv")
    assert [costs[pair] for pair in WORST] == [6, 5] and costs["glipizide", "trazodone"] == 1
    assert costs.referral_cost == 0.5

    fitted = csada.Classifier.load("model")
    assert fitted.costs == costs.ordered(fitted.classes) and fitted.evidence.limits.pair[0].predicted == "glipizide"
    assert len(re.findall(r"at most \d+ %: kept", said["fit"])) == 3
    assert said["check"].count(" pass ") == 3 and "pass: 3 criteria" in said["check"]
    assert ElementTree.parse("check.xml").getroot().find("testsuite").get("tests") == "3"
    report = readable(Path("report.html").read_text(encoding="utf-8"))
    assert all(f"{y} labelled as {z}" in report for y, z in WORST) and "pass" in report

    again = inside("check", "--criteria", "limits.toml", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["again"]
    project = Path("csada.toml")
    project.write_text(project.read_text().replace('# limits = "', 'limits = "'))
    assert tomllib.loads(project.read_text())["limits"] == "limits.toml"
    assert json.loads(inside("check", "--json").stdout)["sha256"] == json.loads(again.stdout)["sha256"]
