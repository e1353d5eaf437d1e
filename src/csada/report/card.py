"""The card that lies beside a fitted model: what it is, what its mistakes cost, what was shown and what was not.

A function from the record of `csada fit` to Markdown. Which of the four rows to use is decided on validation; the test part
only says what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from csada.costs import CostMatrix
from csada.metrics import Evaluation, at_most

ROWS = {
    "before": "the model as it was",
    "before + rule": "the model as it was, with the decision rule",
    "after": "the trained model",
    "after + rule": "the trained model, with its decision rule",
}
DEAREST = 5  # pairs that are named

Record = Mapping[str, Any]


def evaluations(record: Record, part: str = "test") -> dict[str, Evaluation]:
    """The rows of the record, each as what it got right and wrong in that part."""
    costs = CostMatrix(record["costs"], record["data"]["classes"])
    found = {}
    for row in ROWS:
        counts = np.array(record["rows"][row][part], dtype=np.int64)
        referral_cost = record["rules"][row.split()[0]]["referral_cost"] or 0.0
        referred = int(counts[:, len(costs) :].sum())
        found[row] = Evaluation(
            counts[:, : len(costs)], costs, name=row, referred=referred, referral_cost=referral_cost
        )
    return found


def recommended(record: Record) -> str:
    """The row that is cheapest on validation among those within the budget; of equals the one that changes least."""
    rows = evaluations(record, "validation")
    needed = rows["before"].accuracy - record["budget"] / 100 - 1e-12
    return min((row for row, e in rows.items() if e.accuracy >= needed), key=lambda row: rows[row].weighted_error_rate)


def advice(record: Record) -> str:
    """What to use, what speaks for it, and what the test part says to that."""
    row = recommended(record)
    on = {part: evaluations(record, part) for part in ("validation", "test")}

    def numbers(part: str, row: str) -> str:
        e = on[part][row]
        return f"{_cost(e)} per 100 at {100 * e.accuracy:.2f} % accuracy"

    before, use = on["test"]["before"], on["test"][row]
    if row == "before":
        return (
            f"Keep the model as it was: on validation nothing is cheaper within {record['budget']:g} points of accuracy. "
            f"There it costs {numbers('validation', row)}, on test {numbers('test', row)} (95 %: {_interval(use)})."
        )
    dearer = use.weighted_error_rate > before.weighted_error_rate
    return (
        f"Use {ROWS[row]}: on validation it costs {numbers('validation', row)}, the model as it was "
        f"{numbers('validation', 'before')}. On test it costs {numbers('test', row)} (95 %: {_interval(use)}), the model as "
        f"it was {numbers('test', 'before')}{': there it is dearer' if dearer else ''}."
    )


def card(record: Record) -> str:
    """The whole card."""
    data, start, model = record["data"], record["start"], record["model"]
    costs = CostMatrix(record["costs"], data["classes"])
    names = [escaped(name) for name in costs.classes]
    test = evaluations(record)["after + rule"]
    shape = " x ".join(map(str, model["input"]["shape"]))
    samples = {part: f"{count:,}" for part, count in data["samples"].items()}
    epochs = len(record["history"])
    trained = "as it was trained, and a decision rule that knows the costs"
    if epochs:
        further = f"trained further with the method {escaped(record['method'])} for {epochs} epoch{'s' * (epochs > 1)}"
        trained = f"{further} so that its expensive mistakes become rarer"
    begun = escaped(", ".join(f"{key} {value}" for key, value in start.items() if isinstance(value, str | int)))
    dearest = [f"- calling {names[y]} {names[z]} costs {costs[y, z]:.4g}" for y, z in costs.top_pairs(DEAREST)]
    takes = "rows.csv" if len(model["input"]["shape"]) == 1 else "photos/"
    about = record["environment"]
    lines = [
        f"# {escaped(data['name'])}: a classifier that knows what mistakes cost",
        "",
        f"A {escaped(model['architecture'])} for {len(costs)} classes, {trained}. "
        f"It takes samples of {shape} ({model['input']['dtype']})." + (f" Its start: {begun}." if begun else ""),
        "",
        f"Classes: {', '.join(names)}.",
        "",
        f"Data: {escaped(data['name'])}, {samples['train']} samples to learn from, {samples['validation']} to choose by, "
        f"{samples['test']} to judge by.",
        "",
        "## What mistakes cost",
        "",
        "The dearest; costs.csv has them all:",
        "",
        *dearest,
        "",
        "## How it decides",
        "",
        in_words(record["decision"]),
        "",
        "## Results",
        "",
        *results(record),
        "",
        advice(record),
        "",
        "## What this does not show",
        "",
        *limits(test, names),
        "",
        "## How to use it",
        "",
        "With FOLDER for the folder that holds this file:",
        "",
        "```",
        f"csada predict FOLDER {takes}",
        "csada export FOLDER",
        "csada report FOLDER",
        "```",
        "",
        f"Made {record['started']} with csada {about['csada']}, Python {about['python']}, "
        f"PyTorch {about['packages']['torch']}, on {escaped(about['device'])}, in {record['seconds']:,.0f} s of training.",
    ]
    return "\n".join(lines) + "\n"


def results(record: Record) -> list[str]:
    """The table of the four rows; decisions were chosen on validation, test was looked at once."""
    validation, test = evaluations(record, "validation"), evaluations(record)
    refers = any(e.referred for e in (*validation.values(), *test.values()))
    headings = ["", "accuracy, validation", "cost, validation", "accuracy, test", "cost, test", "95 %"]
    headings += ["decided itself, test"] * refers
    lines = [f"| {' | '.join(headings)} |", "| --- |" + " ---: |" * (len(headings) - 1)]
    use = recommended(record)
    for row, e in test.items():
        cells = [f"{100 * e.accuracy:.2f} %", _cost(e), _interval(e)]
        before = [f"{100 * validation[row].accuracy:.2f} %", _cost(validation[row])]
        cells = [f"**{row}**" if row == use else row, *before, *cells, *[f"{100 * e.coverage:.1f} %"] * refers]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "Cost per 100 cases, with its 95 % interval on test. The row in bold was chosen on validation."]


def limits(test: Evaluation, names: list[str]) -> list[str]:
    """What the test part is too small, or too narrow, to say."""
    seen = test.confusion.sum(1)
    unseen = [name for name, count in zip(names, seen, strict=True) if count == 0]
    lines = [f"- Nothing is known about {', '.join(unseen)}: no test sample of it was decided."] if unseen else []
    lines += [
        f"- Calling {names[test.costs.index(pair.truth)]} {names[test.costs.index(pair.predicted)]}: "
        f"{pair.errors} of {pair.samples}, so at most {100 * at_most(pair.errors, pair.samples):.1f} % (one-sided 95 %)."
        for pair in test.top_pairs(DEAREST)
        if pair.samples
    ]
    return [
        *lines,
        "- All numbers are from samples like those it was trained on; other cameras, places or times may give others.",
        "- It is no medical device and no safety component: where a mistake can do harm, a person has to check it.",
    ]


def in_words(rule: Mapping[str, Any]) -> str:
    refer = rule["referral_cost"]
    person = "" if refer is None else f" Cases that are expected to cost more than {refer:.3g} are left to a person."
    if rule["strength"] == 0:
        return f"It takes the most probable class: on validation no weight on the costs paid off.{person}"
    return (
        f"It takes the class of least expected cost, with strength {rule['strength']:.3g} (0: the most probable class, 1: the "
        f"costs alone) and probabilities at temperature {rule['temperature']:.3g}.{person}"
    )


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", " ".join(str(text).split()))


def _cost(e: Evaluation) -> str:
    return f"{100 * e.weighted_error_rate:.2f}"


def _interval(e: Evaluation) -> str:
    low, high = e.interval("weighted_error_rate")
    return f"{100 * low:.2f} to {100 * high:.2f}"
