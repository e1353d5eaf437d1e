"""One HTML page about decisions in use: what they cost, and whether the estimate can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup

from csada.report.charts import Axis, Line, line_chart, short
from csada.report.page import render
from csada.report.sections import number, percent

if TYPE_CHECKING:
    from csada.workflow.monitor import Monitored, Period

LINES = 5  # pairs in the chart
FIRST = 10  # pairs that are not folded away
SHOWN = 100  # periods in the table
CHANGED = (
    "the scores changed in a way that class frequencies do not explain: the estimate is not to be trusted. "
    "Label some cases"
)
DISTRUST = f"{CHANGED[0].upper()}{CHANGED[1:]}."


def page(it: Monitored) -> str:
    newest = it.newest
    labelled = any(each.truth for each in it.periods)
    trusted = newest is None or newest.trusted
    alarms = [each for each in newest.alarms if each != CHANGED] if newest else []
    shares = (
        zip(it.validation_frequencies, newest.frequencies, newest.frequencies_by_counts, strict=True) if newest else ()
    )
    headline = "Do not trust these estimates." if not trusted else "Alarm." if alarms else "No alarm."
    told = f"In {newest.name}: {_cost(newest)}." if newest else "No period has enough decisions for an estimate."
    return render(
        "monitor.html.j2",
        it=it,
        newest=newest,
        alarm=bool(alarms) or not trusted,
        headline=headline,
        told=told if trusted else f"{DISTRUST} {told}",
        alarms=[each[:1].upper() + each[1:] for each in alarms],
        distrust=DISTRUST,
        tiles=_tiles(it, newest) if newest else [],
        labelled=labelled,
        first=FIRST,
        estimated=sum(each.cost is not None for each in it.periods),
        charts=_charts(it) if newest else None,
        frequencies=[(name, *row) for name, row in zip(it.classes, shares, strict=True)] if newest else [],
        periods=it.periods[-SHOWN:],
        hidden=max(len(it.periods) - SHOWN, 0),
        remark=_remark,
    )


def _cost(period: Period) -> str:
    assert period.cost is not None
    low, high = period.cost.band
    return f"about {number(100 * period.cost.value)} per 100 decisions (95\u00a0%: {number(100 * low)} to {number(100 * high)})"


def _tiles(it: Monitored, newest: Period) -> list[tuple[str, str, str]]:
    assert newest.cost is not None
    low, high = newest.cost.band
    return [
        (
            "Cost per 100, estimated",
            number(100 * newest.cost.value),
            f"{number(100 * low)} to {number(100 * high)}; validation {number(100 * it.validation_cost)}",
        ),
        ("Referred", percent(newest.referred / newest.decisions, 1), f"of {newest.decisions:,} decisions"),
        ("Frequencies moved", percent(newest.moved, 1), "of the cases, from validation"),
        (
            "More than frequencies changed",
            "no" if newest.trusted else "yes",
            "estimates hold" if newest.trusted else "trust no estimate",
        ),
    ]


def _remark(period: Period) -> str:
    if period.decisions == 0:
        return "no decisions"
    if period.cost is None:
        return "too few decisions for an estimate"
    found = ["not to be trusted: more than class frequencies changed"] if not period.trusted else []
    return "; ".join([*found, *(each for each in period.alarms if each != CHANGED)])


def _charts(it: Monitored) -> dict[str, Markup]:
    """A period without an estimate keeps its place and has a gap."""
    every, newest = it.periods, it.newest
    assert newest is not None
    x, names = [1.0 + i for i in range(len(every))], [each.name for each in every]
    axis, ends, none = Axis("period", names=names), [0.5, len(every) + 0.5], math.nan
    usual = 100 * it.validation_cost

    def line(name: str, kind: str, values: Iterable[float]) -> Line:
        found = list(values)
        return Line(name, kind, x, found, [f"{n}: {v:.4g}" for n, v in zip(names, found, strict=True)])

    def limit(name: str, value: float) -> Line:
        return Line(name, "before", ends, [value, value], [f"{name}: {value:.4g}"] * 2)

    def marks(name: str, kind: str, shape: str, values: dict[int, float]) -> list[Line]:
        told = [f"{names[i]}: {value:.4g}, {name}" for i, value in values.items()]
        return [Line(name, kind, [x[i] for i in values], list(values.values()), told, shape)] * bool(values)

    around: list[tuple[float, float]] = []
    for known, run in groupby(range(len(every)), lambda i: every[i].cost is not None):
        bands = [(x[i], cost.band) for i in run if (cost := every[i].cost)]
        there, back = [(at, 100 * b.high) for at, b in bands], [(at, 100 * b.low) for at, b in reversed(bands)]
        around += [*there, *back, (x[0], none)] * known
    costs = [none if each.cost is None else 100 * each.cost.value for each in every]
    doubtful = {i: costs[i] for i, each in enumerate(every) if each.cost and not each.trusted}
    real = {i: 100 * t.mean_cost for i, each in enumerate(every) if (t := each.truth)}
    of_cost = [
        Line("95 % band", "after", [at for at, _ in around], [end for _, end in around], (), "band"),
        line("estimate", "after", costs),
        limit("validation", usual),
        *marks("not to be trusted", "before", "diamond", doubtful),
        *marks("real, where labels came", "after", "disc", real),
    ]
    rates = [{(p.truth, p.predicted): 100 * p.rate for p in each.pairs} for each in every]
    of_pairs = [
        line(
            f"{short(p.truth)} \u2192 {short(p.predicted)}",
            f"pair-{i}",
            (r.get((p.truth, p.predicted), none) for r in rates),
        )
        for i, p in enumerate(newest.pairs[:LINES])
    ]
    shares = [
        line("referred, %", "before", (100 * e.referred / e.decisions if e.decisions else none for e in every)),
        line("frequencies moved, %", "after", (none if e.cost is None else 100 * e.moved for e in every)),
    ]
    ratios = (none if e.change is None else e.change.statistic / e.change.limit for e in every)
    change = [line("distance / limit", "after", ratios), limit("limit", 1.0)]
    charts = {
        "cost": line_chart("cost-chart", "Cost per 100 decisions by period", axis, Axis("cost per 100", True), of_cost),
        "shares": line_chart("shares-chart", "Shares by period", axis, Axis("% of decisions", True), shares),
        "change": line_chart("change-chart", "Change by period", axis, Axis("multiple of the limit", True), change),
    }
    if of_pairs:
        up = Axis("% of the true class", True, least=0.1)
        charts["pairs"] = line_chart("pairs-chart", "Critical pairs by period", axis, up, of_pairs)
    return charts
