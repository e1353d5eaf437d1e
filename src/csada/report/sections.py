"""The sections of the report: from evidence to what the template shows, one function per section."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from csada.costs import Pair
from csada.decisions import cost_coverage_curve
from csada.decisions import frontier as strengths
from csada.evidence import Evidence, side_of
from csada.metrics import REFER, Evaluation, PairError, at_most
from csada.report import charts
from csada.report.charts import Axis, Cell, Line

OUTCOMES = ("reached", "exhausted", "rejected", "skipped")
CRITICAL = 3  # pairs that count as critical
LISTED = 10  # pairs in a table
FEW = 20  # cases whose mean cost is still a matter of luck
MAPPED = 60  # classes in a heat map: of more, those that matter
LONG = 60  # letters of a value that is no text
NAME = 60  # letters of a file's name
SIDE = 192  # pixels: larger images are made smaller

Array = NDArray[Any]


def shown_classes(evidence: Evidence) -> list[int]:
    """The classes of the maps, in order: all, or of many those of the costliest mistakes, made or possible."""
    k = len(evidence.classes)
    if k <= MAPPED:
        return list(range(k))
    made = np.stack([e.confusion * e.costs.values for e in evidence.test.values()]).sum(0)
    order = [int(i) for key in (made, evidence.costs.values) for i in np.argsort(-key, axis=None, kind="stable")[:k]]
    found = dict.fromkeys(each for pair in order for each in divmod(pair, k) if pair // k != pair % k)
    return sorted(list(found)[:MAPPED])


def _note(evidence: Evidence, shown: Sequence[int]) -> str:
    k = len(evidence.classes)
    return f"The map shows {len(shown)} of {k:,} classes: those of the costliest mistakes." if len(shown) < k else ""


def critical(e: Evaluation, most: int = CRITICAL) -> list[PairError]:
    """The costliest pairs, as far as they cost more than the cheapest: with equal costs there is none."""
    return [e.pair_error(*pair) for pair in e.costs.critical_pairs(most)]


def comparisons(evidence: Evidence) -> list[tuple[str, str]]:
    """Rows to set side by side: what the user had against what is saved first."""
    others = (("before", row) for row in (evidence.chosen, "before + rule", "after"))
    pairs = dict.fromkeys((*others, ("before + rule", "after + rule")))
    return [pair for pair in pairs if pair[0] != pair[1] and pair[1] in evidence.test][:3]


def number(value: float, digits: int = 2) -> str:
    """With fewer decimals where it is large."""
    digits = digits if abs(value) < 100 else min(digits, 1) if abs(value) < 1000 else 0
    return f"{value:,.{digits}f}".replace("-", "−")


def price(value: float) -> str:
    """Whole costs without decimals."""
    return number(value, 0 if float(value).is_integer() else 2)


def signed(value: float, digits: int = 2) -> str:
    return ("+" if value > 0 else "") + number(value, digits)


def percent(value: float, digits: int = 2) -> str:
    return f"{number(100 * value, digits)}\u00a0%"


def compact(value: float) -> str:
    """Three digits, for the cells of a map."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def results(evidence: Evidence) -> dict[str, Any]:
    most = 100 * max(e.interval("mean_cost").high for e in evidence.test.values())
    lines = []
    for i, (name, e) in enumerate(evidence.test.items()):
        cost, (low, high) = 100 * e.mean_cost, (100 * end for end in e.interval("mean_cost"))
        interval = f"{number(low)} to {number(high)}"
        drawn = charts.whisker(f"cost-{i}", f"{name}: {number(cost)}, {interval}", side_of(name), cost, low, high, most)
        errors = sum(pair.errors for pair in critical(e))
        lines.append(
            {"name": name, "e": e, "cost": cost, "low": low, "interval": interval, "whisker": drawn, "errors": errors}
        )
    pairs = [f"{p.truth} labelled as {p.predicted} ({compact(p.cost)})" for p in critical(evidence.test["before"])]
    refers = any(e.referred for e in evidence.test.values())
    told = {"referral": evidence.test[evidence.chosen].referral, "refers": refers}
    return {"title": "Results", "lines": lines, "chosen": evidence.chosen, "pairs": pairs, **told}


def limits(evidence: Evidence) -> dict[str, Any] | None:
    """What validation shows of each limit, row by row, and the saved row on test."""
    rows = {row: evidence.judged(row) for row in evidence.test}
    test = evidence.judged(evidence.chosen, "test")
    lines = [
        {
            "limit": str(came.limit),
            "sure": percent(came.limit.confidence, 0),
            "cells": [
                (limit.share(bound), "kept" if line[i].kept else "not kept")
                for line in rows.values()
                for limit, _, _, bound in [line[i]]
            ],
            "test": f"{came.limit.share(came.rate)} ({came.bad:,} bad of {came.samples:,})",
        }
        for i, came in enumerate(test)
    ]
    return {"title": "Limits", "lines": lines, "rows": list(rows), "chosen": evidence.chosen} if lines else None


def costs(evidence: Evidence) -> dict[str, Any]:
    values, shown = evidence.costs.values, shown_classes(evidence)
    paid = values[values > 0]
    least, largest = (float(paid.min()), float(paid.max())) if len(paid) else (0.0, 0.0)
    values, names, cells = values[np.ix_(shown, shown)], [evidence.classes[k] for k in shown], {}
    for y, z in np.argwhere(values).tolist():
        tone = 0.08 + 0.87 * float(np.sqrt((values[y, z] - least) / ((largest - least) or 1.0)))
        hover = f"{names[y]} labelled as {names[z]}: {values[y, z]:g}"
        cells[y, z] = Cell("cost", tone, compact(values[y, z]), hover)
    title = f"What each mistake costs, from {compact(least)} to {compact(largest)}"
    drawn = charts.heat_map("costs-map", title, names, names, cells, 640)
    told = {"note": _note(evidence, shown), "referral": evidence.costs.referral_cost}
    return {"title": "What mistakes cost", "map": drawn, **told}


def confusion(evidence: Evidence) -> dict[str, Any]:
    """Rows that differ side by side, with the change; the saved row alone where none does."""
    shown_ones, panels = shown_classes(evidence), []
    classes = [evidence.classes[k] for k in shown_ones]
    counts = {row: _counts(evidence, row) for row in evidence.test}
    pairs = [pair for pair in comparisons(evidence) if not np.array_equal(counts[pair[0]], counts[pair[1]])]
    for i, pair in enumerate(pairs or [(evidence.chosen, evidence.chosen)]):
        before, after = (counts[row] for row in pair)
        width = max(before.shape[1], after.shape[1])  # one more than classes where a row refers cases to a person
        before, after = (np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in (before, after))
        columns = [*classes, *["referred"] * (width - len(evidence.classes))]
        wrong = {row: int((table * _mistakes(table)).sum()) for row, table in zip(pair, (before, after), strict=True)}
        total = {row: f"{n:,} mistake{'s' * (n != 1)} in all" for row, n in wrong.items()}
        of, kept = before.sum(1)[shown_ones], [*shown_ones, *range(len(evidence.classes), width)]
        before, after = (table[np.ix_(shown_ones, kept)] for table in (before, after))
        largest = max(_largest_mistake(before), _largest_mistake(after))
        prices = evidence.costs.values[np.ix_(shown_ones, shown_ones)]
        shown = {
            row: _counted(prices, table, of, columns, largest) for row, table in zip(pair, (before, after), strict=True)
        }
        if pairs:
            shown["change"] = _changed(before, after, columns)
            total["change"] = f"{signed(wrong[pair[1]] - wrong[pair[0]], 0)} in all"
        title = f"Confusion matrix, {' to '.join(shown)}: "
        maps = [
            (name, total[name], charts.heat_map(f"confusion-{i}-{j}", title + name, classes, columns, cells))
            for j, (name, cells) in enumerate(shown.items())
        ]
        panels.append({"label": " → ".join(pair), "maps": maps})
    return {"title": "Confusion matrix", "panels": panels, "note": _note(evidence, shown_ones)}


def _counts(evidence: Evidence, row: str) -> Array:
    """[K, K], with one more column where the row refers cases to a person."""
    e = evidence.test[row]
    if not e.charged:
        return e.confusion
    referred = np.bincount(evidence.labels()[evidence.decided(row) == REFER], minlength=len(e.costs))
    return np.column_stack([e.confusion, referred])


def mistakes(evidence: Evidence) -> dict[str, Any] | None:
    e, names = evidence.test[evidence.chosen], evidence.classes
    images, facts = (evidence.arrays.get(name, ()) for name in ("mistake_images", "mistakes"))
    facts = np.asarray(facts).tolist()
    # of a long file name the end: what comes first is the same for many
    names_of = [name if len(name) <= NAME else f"…{name[1 - NAME :]}" for name in evidence.mistaken]
    files = names_of or [f"test no. {i}" for i, _, _ in facts]
    cards = [
        {
            "image": picture(image),
            "file": file,
            "truth": names[y],
            "predicted": names[z],
            "cost": compact(e.costs[y, z]),
        }
        for image, file, (_, y, z) in zip(images, files, facts, strict=True)
    ]
    left = e.costliest_pairs(LISTED)
    every = int((e.confusion * _mistakes(e.confusion)).sum())
    times, paid = every - sum(pair.errors for pair in left), sum(pair.errors * pair.cost for pair in left)
    person = e.charged * (e.costs.referral_cost or 0.0)
    sums = [("Other mistakes", times, e.total_cost - paid - person)] if times else []
    sums += [("Left to a person", e.charged, person)] if e.charged else []
    sums.append(("Total", every + e.charged, e.total_cost))
    found = {
        "title": "Most expensive mistakes left",
        "cards": cards,
        "pairs": left,
        "sums": sums,
        "total": e.total_cost,
        "automatic": e.decided is not None,
    }
    return found if left else None


def pairs(evidence: Evidence) -> dict[str, Any] | None:
    sides = list(dict.fromkeys(("before", evidence.chosen)))
    found = list(zip(*(critical(evidence.test[row], LISTED) for row in sides), strict=True))
    most = max((at_most(p.errors, p.samples) for line in found for p in line if p.samples), default=1.0)
    lines = []
    for i, line in enumerate(found):
        cells = []
        for kind, pair in zip(("before", "after"), line, strict=False):
            rate, bound = (pair.rate, at_most(pair.errors, pair.samples)) if pair.samples else (0.0, 1.0)
            told = f"{kind}: {pair.errors} of {pair.samples}, at most {percent(bound, 1)}"
            drawn = charts.whisker(f"pair-{i}-{kind}", told, kind, rate, 0.0, bound, most) if pair.samples else ""
            cells.append({"pair": pair, "rate": rate, "bound": bound, "whisker": drawn})
        lines.append(cells)
    sums = [sum(cells[i]["pair"].errors for cells in lines) for i in range(len(sides))]
    return {"title": "Critical pairs", "lines": lines, "sides": sides, "sums": sums} if lines else None


def frontier(evidence: Evidence) -> dict[str, Any]:
    lines = []
    for side, decision in evidence.rules.items():
        curve = strengths(evidence.logits(side), evidence.labels(), decision.automatic(evidence.costs))
        x, y = 100 * curve.accuracy, 100 * curve.mean_cost
        points = zip(curve.strength, x, y, strict=True)
        hover = [f"{side}, strength {s:.3g}: accuracy {a:.2f} %, cost {number(c)}" for s, a, c in points]
        lines.append(Line(f"{side}, every strength", side, x, y, hover))
    for name in sorted(evidence.test, key=lambda row: "rule" in row):  # the legend has two columns, one per model
        a, c = 100 * evidence.test[name].accuracy, 100 * evidence.test[name].mean_cost
        told = f"{name}: accuracy {a:.2f} %, cost {number(c)} {evidence.test[name].referral}".rstrip()
        lines.append(Line(name, side_of(name), [a], [c], [told], "diamond" if "rule" in name else "disc"))
    title = "Cost against accuracy for every strength of the rule"
    axes = Axis("accuracy on the test part (%)"), Axis("cost per 100 predictions")
    return {"title": "Cost and accuracy", "chart": charts.line_chart("frontier-chart", title, *axes, lines)}


def coverage(evidence: Evidence) -> dict[str, Any]:
    """With a price: what all cases cost. Without: the price at which leaving that share to a person breaks even."""
    lines, labels, fee = [], evidence.labels(), evidence.costs.referral_cost
    for side, decision in evidence.rules.items():
        curve = cost_coverage_curve(evidence.logits(side), labels, decision.automatic(evidence.costs))
        kept = charts.spread(max(len(labels) - (FEW if fee is None else 0), 1), 200)
        share = curve.coverage[kept]
        y = curve.worth[kept] if fee is None else 100 * (share * curve.cost[kept] + (1 - share) * fee)
        what = "pays if a referral costs less than {}" if fee is None else "all cost {} per 100 predictions"
        x = 100 * (1 - share)
        hover = [f"{side} + rule: {a:.0f} % to a person, {what.format(number(c))}" for a, c in zip(x, y, strict=True)]
        lines.append(Line(f"{side} + rule", side, x, y, hover))
    title = "The price at which a referral breaks even" if fee is None else "Cost of all cases"
    up = "price that breaks even" if fee is None else "cost per 100 predictions"
    axes = Axis("left to a person (%), most doubtful first", from_zero=True), Axis(up, from_zero=True)
    drawn = charts.line_chart("coverage-chart", f"{title}, by the share left to a person", *axes, lines)
    return {"title": "Leaving doubtful cases to a person", "chart": drawn, "price": fee}


def examples(evidence: Evidence) -> dict[str, Any] | None:
    cards, names = [], evidence.classes
    columns = (
        evidence.arrays.get(a, ()) for a in ("original_images", "adversarial_images", "examples", "perturbations")
    )
    for original, changed, (truth, target), (largest, length) in zip(*columns, strict=True):
        difference = changed.astype(np.int16) - original
        factor = 127 // max(int(np.abs(difference).max()), 1)
        amplified = (128 + factor * difference).clip(0, 255).astype(np.uint8)
        images = [
            ("original", picture(original)),
            (f"change × {factor}" if difference.any() else "change: none to see", picture(amplified)),
            ("adversarial", picture(changed)),
        ]
        sizes = {"largest": f"{largest:.3g}", "length": f"{length:.3g}"}
        cards.append({"truth": names[truth], "target": names[target], "images": images, **sizes})
    return {"title": "Adversarial examples", "cards": cards} if cards else None


def attacks(evidence: Evidence) -> dict[str, Any] | None:
    names = evidence.classes
    counted: dict[Pair, list[tuple[str, list[int]]]] = {}
    for line in evidence.history:
        for found in line.attacks:
            bar = (str(line.epoch), [getattr(found, outcome) for outcome in OUTCOMES])
            counted.setdefault((found.truth, found.predicted), []).append(bar)
    if not counted:
        return None
    figures = []
    for i, ((y, z), bars) in enumerate(counted.items()):
        title = f"Attacks on {names[y]} towards {names[z]} by epoch"
        drawn = charts.share_bars(f"attack-{i}", title, OUTCOMES, bars)
        figures.append({"truth": names[y], "target": names[z], "cost": compact(evidence.costs[y, z]), "chart": drawn})
    last = np.sum([bars[-1][1] for bars in counted.values()], axis=0)
    shares = [(outcome, percent(n / max(last.sum(), 1), 0)) for outcome, n in zip(OUTCOMES, last, strict=True)]
    return {"title": "Attacks during training", "figures": figures, "shares": shares}


def training(evidence: Evidence) -> dict[str, Any] | None:
    drawn = []
    for key, label, factor in (
        ("loss", "training loss", 1),
        ("validation_accuracy", "validation accuracy (%)", 100),
        ("validation_cost", "validation cost", 100),
    ):
        history = [line for line in evidence.history if getattr(line, key) is not None]
        if history:
            x, y = [line.epoch for line in history], [factor * getattr(line, key) for line in history]
            curve = Line(label, "after", x, y, [f"epoch {e}: {v:,.4g}" for e, v in zip(x, y, strict=True)])
            title, axes = f"{label} by epoch".capitalize(), (Axis("epoch", whole=True), Axis(label))
            drawn.append(charts.line_chart(f"training-{key}", title, *axes, [curve], width=300))
    return {"title": "Training", "charts": drawn} if drawn else None


def run(evidence: Evidence) -> dict[str, Any]:
    groups = {
        "Run": {
            "data": evidence.data,
            **{f"{part} samples": f"{n:,}" for part, n in evidence.samples.items()},
            "model": evidence.architecture,
            "method": evidence.method,
            "started": moment(evidence.started),
            "took": f"{evidence.seconds:,.0f} s",
        },
        "Options": evidence.options,
        "Decision rule": asdict(evidence.decision) | {"budget": f"{evidence.budget:g} points of accuracy"},
        "Environment": asdict(evidence.environment),
    }
    return {"title": "What was run", "groups": {name: _flat(facts) for name, facts in groups.items() if facts}}


PARTS = (results, limits, costs, confusion, mistakes, pairs, frontier, coverage, examples, attacks, training, run)
SECTIONS: dict[str, Callable[[Evidence], dict[str, Any] | None]] = {build.__name__: build for build in PARTS}


class Picture(NamedTuple):
    uri: Markup  # a PNG inside the page
    width: int  # as it is shown
    small: bool  # enlarged: its pixels stay squares


def picture(image: Array) -> Picture:
    """Large ones are made smaller, small ones are shown at a whole multiple of their size."""
    shown = Image.fromarray(image)
    shown.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    shown.save(file, "PNG", optimize=True)
    uri = Markup("data:image/png;base64,") + base64.b64encode(file.getvalue()).decode()
    return Picture(uri, shown.width * max(1, round(120 / shown.width)), shown.width < 100)


def moment(text: str) -> str:
    """ISO 8601 as people write it."""
    return text.replace("T", " ").replace("Z", " UTC")


def _mistakes(counts: Array) -> Array:
    """[K, K or K + 1]: where a count is one of mistakes; a referred case is none."""
    y, z = np.indices(counts.shape)
    return np.asarray((y != z) & (z < len(counts)))


def _largest_mistake(counts: Array) -> int:
    return max(int(np.abs(counts * _mistakes(counts)).max()), 1)


def _counted(prices: Array, counts: Array, samples: Array, names: Sequence[str], largest: int) -> dict[Pair, Cell]:
    """Right ones pale, mistakes as strong as they are frequent; `samples` of each truth."""
    cells = {}
    for y, z in np.argwhere(counts).tolist():
        n, of = int(counts[y, z]), int(samples[y])
        kind = "right" if y == z else "error" if z < len(counts) else "referred"
        tone = 0.45 * n / of if kind != "error" else _tone(n / largest)
        price = f", each costs {compact(prices[y, z])}" if kind == "error" else ""
        hover = f"{names[y]} labelled as {names[z]}: {n} of {of} ({percent(n / of, 1)}){price}"
        cells[y, z] = Cell(kind, tone, str(n), hover)
    return cells


def _changed(first: Array, second: Array, names: Sequence[str]) -> dict[Pair, Cell]:
    """Fewer and more mistakes; on the diagonal more is better, so it has no colour."""
    difference = second - first
    mistake, largest, cells = _mistakes(difference), _largest_mistake(difference), {}
    for y, z in np.argwhere(difference).tolist():
        n = int(difference[y, z])
        kind, tone = ("more" if n > 0 else "fewer", _tone(abs(n) / largest)) if mistake[y, z] else ("flat", 0.0)
        text = f"{n:+d}".replace("-", "−")
        hover = f"{names[y]} labelled as {names[z]}: {first[y, z]} → {second[y, z]} ({text})"
        cells[y, z] = Cell(kind, tone, text, hover)
    return cells


def _tone(share: float) -> float:
    return 0.15 + 0.8 * float(np.sqrt(share))


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as lines of name and text; what is not set is left out."""
    lines: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            lines += _flat(value, f"{name}: ")
        elif isinstance(value, float):
            lines.append((name, f"{value:.5g}"))
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append((name, text if isinstance(value, str) or len(text) <= LONG else "see model.json"))
    return lines
