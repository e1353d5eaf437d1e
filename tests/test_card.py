"""The verdict and the card: pure functions of the evidence."""

import subprocess
import sys

import numpy as np
import pytest
from made import RULE, made_evidence

from csada.decisions import Decision
from csada.evidence import ROWS
from csada.report.card import card, escaped, verdict

CLASSES = ("tra*zo|done", "<b>glip</b>_", "oxy`co`done")
COSTS = [[0, 10, 1], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("row", ROWS)
def test_the_verdict_names_what_validation_chose_and_its_numbers_on_test(row):
    evidence = made_evidence(row)
    told, e = verdict(evidence), evidence.test[row]
    low, high = (100 * end for end in e.interval("mean_cost"))
    assert told.startswith("Keep the model as it was." if row == "before" else f"Use {ROWS[row]}.")
    assert f"costs {100 * e.mean_cost:.2f} per 100 predictions (95 %: {low:.2f} to {high:.2f})" in told
    assert f"at {100 * e.accuracy:.2f} % accuracy" in told and ("The change" in told) == (row != "before")


@pytest.mark.parametrize(
    ("sure", "samples", "expected"),
    [
        ((2.0, 5.0), 300, "is a saving beyond chance"),
        ((5.0, 2.0), 300, "is an increase beyond chance"),
        ((2.5, 2.5), 300, "(95 %: +0.00 to +0.00), is not proven by these samples"),
        ((2.5, 2.8), 30, "is not proven by these samples"),
    ],
)
def test_the_verdict_says_whether_the_test_samples_prove_it(sure, samples, expected):
    assert expected in verdict(made_evidence("after", sure=sure, samples=samples))


def test_the_card_names_costs_results_and_limits_and_shows_strange_names_as_they_are():
    evidence = made_evidence(classes=CLASSES, costs=COSTS, samples=30)
    text = card(evidence, "8 x 8 pixels")
    assert verdict(evidence) in text and "It takes samples of 8 x 8 pixels." in text
    assert r"- tra\*zo\|done labelled as \<b\>glip\</b\>\_ costs 10" in text
    assert "1,200 training" in text and "for 2 epochs" in text and "strength 0.5" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 6 and len({line.count("|") - line.count(r"\|") for line in table}) == 1
    assert [line.split("|")[1].strip() for line in table[2:]] == [*list(ROWS)[:3], "**after + rule**"]
    assert "0 of 10, so at most 25.9 %" in text
    for command in ("csada predict FOLDER", "csada export FOLDER"):
        assert command in text


def test_the_card_of_a_model_that_was_not_trained_speaks_of_no_training():
    text = card(made_evidence("before + rule", CLASSES, {"before": RULE}, costs=COSTS), "8 numbers")
    assert "trained further" not in text and "the model as it was, with the decision rule" in text
    assert "least expected cost" in text
    assert "It takes the most probable class." in card(made_evidence("before", CLASSES, costs=COSTS), "8 numbers")


def test_a_class_without_a_decided_test_sample_is_named():
    evidence = made_evidence(classes=CLASSES, costs=COSTS)
    evidence.arrays["test_labels"][:] %= 2
    assert r"Nothing is known about oxy\`co\`done: no test sample" in card(evidence, "8 numbers")


def test_referred_cases_count_and_are_told():
    refers = Decision(0.35, strength=0.5, refer_above=0.25)
    evidence = made_evidence("before + rule", rules={"before": refers}, referral_cost=0.25)
    e, predicted = evidence.test["before + rule"], evidence.decided("before + rule")
    paid = np.where(predicted < 0, 0.25, evidence.costs.values[evidence.labels(), predicted])
    text = card(evidence, "8 numbers")
    assert 0 < e.referred < e.samples and e.mean_cost == pytest.approx(paid.mean())
    assert "more than 0.25 are left to a person" in text and f"| {100 * e.coverage:.1f} % |" in text
    assert f"on the {100 * e.coverage:.1f} % of cases that it decides itself" in verdict(evidence)


def test_a_name_stays_on_its_line():
    assert escaped("a\nb  # c") == r"a b \# c"


@pytest.mark.parametrize("module", ["card", "page"])
def test_a_report_needs_no_torch(module):
    code = f"import sys, csada.report.{module}; assert not {{'torch', 'matplotlib'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
