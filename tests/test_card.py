"""The model card: a pure function of the record."""

import subprocess
import sys

from csada.report.card import advice, card, escaped, recommended

CLASSES = ["tra*zo|done", "<b>glip</b>_", "oxy`co`done"]
COSTS = [[0, 10, 1], [1, 0, 1], [1, 1, 0]]


def plain_rule(referral_cost=None, strength=0.5):
    return {"costs": COSTS, "temperature": 1.2, "strength": strength, "referral_cost": referral_cost}


def made_record(before, ruled, after, after_ruled, *, referral_cost=None, epochs=2):
    """Every row's counts are the same on validation and on test, unless they are a pair."""
    rows = dict(
        zip(("before", "before + rule", "after", "after + rule"), (before, ruled, after, after_ruled), strict=True)
    )
    both = {name: v if isinstance(v, tuple) else (v, v) for name, v in rows.items()}
    return {
        "data": {"name": "pills", "classes": CLASSES, "samples": {"train": 1200, "validation": 30, "test": 30}},
        "start": {"data": "pills", "recipe": "fast", "accuracy": {"test": 0.9}},
        "model": {"architecture": "cnn", "input": {"shape": [3, 8, 8], "dtype": "uint8"}},
        "method": "csada",
        "costs": COSTS,
        "budget": 0.5,
        "decision": plain_rule(referral_cost),
        "rows": {name: {"validation": v[0], "test": v[1]} for name, v in both.items()},
        "rules": {"before": plain_rule(referral_cost), "after": plain_rule(referral_cost)},
        "history": [{}] * epochs,
        "environment": {"csada": "0.1.0", "python": "3.11", "packages": {"torch": "2.6"}, "device": "CPU"},
        "seconds": 12.3,
        "started": "2026-01-01T00:00:00Z",
    }


BAD = [[8, 2, 0], [0, 10, 0], [0, 0, 10]]  # two dear mistakes
GOOD = [[9, 0, 1], [0, 10, 0], [0, 0, 10]]  # one cheap one
POOR = [[6, 0, 4], [0, 10, 0], [0, 0, 10]]  # cheap mistakes alone, but too many of them for the budget
UNSEEN = [[9, 0, 1], [0, 10, 0], [0, 0, 0]]


def test_the_cheapest_row_on_validation_within_the_budget_is_recommended():
    assert recommended(made_record(BAD, GOOD, BAD, BAD)) == "before + rule"
    assert recommended(made_record(BAD, BAD, BAD, GOOD)) == "after + rule"
    assert recommended(made_record(GOOD, GOOD, GOOD, GOOD)) == "before"  # of equals the one that changes least
    assert recommended(made_record(BAD, POOR, BAD, BAD)) == "before"
    assert recommended(made_record(BAD, POOR, BAD, BAD) | {"budget": 100}) == "before + rule"


def test_the_advice_says_when_the_test_part_disagrees():
    assert "dearer" not in advice(made_record(BAD, BAD, BAD, GOOD))
    assert "there it is dearer" in advice(made_record((BAD, GOOD), BAD, BAD, (GOOD, BAD)))
    assert advice(made_record(GOOD, GOOD, GOOD, GOOD)).startswith("Keep the model as it was")


def test_the_card_names_costs_results_and_limits_and_shows_strange_names_as_they_are():
    text = card(made_record(BAD, BAD, BAD, (GOOD, UNSEEN)))
    assert r"- calling tra\*zo\|done \<b\>glip\</b\>\_ costs 10" in text
    assert r"Nothing is known about oxy\`co\`done" in text
    assert "1,200 samples to learn from" in text and "for 2 epochs" in text and "strength 0.5" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 6 and len({line.count("|") - line.count(r"\|") for line in table}) == 1
    assert [line.split("|")[1].strip() for line in table[2:]] == [
        "before",
        "before + rule",
        "after",
        "**after + rule**",
    ]
    assert "0 of 10, so at most 25.9 %" in text
    for command in ("csada predict FOLDER", "csada export FOLDER"):
        assert command in text
    assert "as it was trained" in card(made_record(BAD, GOOD, BAD, GOOD, epochs=0))


def test_referred_cases_count_and_are_told():
    refer = [[8, 0, 0, 2], [0, 10, 0, 0], [0, 0, 10, 0]]
    record = made_record(BAD, refer, BAD, refer, referral_cost=0.25)
    text = card(record)
    assert "more than 0.25 are left to a person" in text and "| 93.3 % |" in text
    assert "| **before + rule** | 100.00 % | 1.67 |" in text  # two of thirty, a quarter each


def test_a_name_stays_on_its_line():
    assert escaped("a\nb  # c") == r"a b \# c"


def test_the_card_needs_no_torch():
    code = "import sys, csada.report.card; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
