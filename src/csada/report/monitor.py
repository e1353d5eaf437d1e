"""One HTML page about decisions in use: what they cost, and whether the estimate can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from csada.report.charts import Axis, Line, line_chart
from csada.report.page import templates
from csada.report.sections import number, percent

if TYPE_CHECKING:
    from csada.workflow.monitor import Monitored, Period

SHOWN = 100  # periods in the table
CHANGED = (
    "the scores changed in a way that class frequencies do not explain: the estimate is not to be trusted. "
    "Label some cases"
)
DISTRUST = f"{CHANGED[0].upper()}{CHANGED[1:]}."


def page(it: Monitored) -> str:
    judged, newest = [each for each in it.periods if each.cost is not None], it.newest
    labelled = any(each.truth for each in it.periods)
    trusted = newest is None or newest.trusted
    alarms = [each for each in newest.alarms if each != CHANGED] if newest else []
    shares = (
        zip(it.validation_frequencies, newest.frequencies, newest.frequencies_by_counts, strict=True) if newest else ()
    )
    headline = "Do not trust these estimates." if not trusted else "Alarm." if alarms else "No alarm."
    told = f"In {newest.name}: {_cost(newest)}." if newest else "No period has enough decisions for an estimate."
    return (
        templates()
        .get_template("monitor.html.j2")
        .render(
            it=it,
            newest=newest,
            alarm=bool(alarms) or not trusted,
            headline=headline,
            told=told if trusted else f"{DISTRUST} {told}",
            alarms=[each[:1].upper() + each[1:] for each in alarms],
            distrust=DISTRUST,
            tiles=_tiles(it, newest) if newest else [],
            labelled=labelled,
            charts=_charts(it, judged) if judged else None,
            frequencies=[(name, *row) for name, row in zip(it.classes, shares, strict=True)] if newest else [],
            periods=it.periods[-SHOWN:],
            hidden=max(len(it.periods) - SHOWN, 0),
            remark=_remark,
        )
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


def _charts(it: Monitored, judged: list[Period]) -> dict[str, Markup]:
    x = [1.0 + i for i in range(len(judged))]
    costs = [each.cost for each in judged if each.cost is not None]
    names, ends = [each.name for each in judged], [x[0], x[-1]]
    axis = Axis("period", whole=True)

    def line(name: str, kind: str, values: list[float], shape: str = "line") -> Line:
        return Line(name, kind, x, values, [f"{n}: {v:.4g}" for n, v in zip(names, values, strict=True)], shape)

    around = [100 * c.band.high for c in costs] + [100 * c.band.low for c in reversed(costs)]
    usual = 100 * it.validation_cost
    lines = [
        Line("95 % band", "after", x + x[::-1], around, [], "band"),
        line("estimate", "after", [100 * c.value for c in costs]),
        Line("validation", "before", ends, [usual, usual], [f"validation: {usual:.4g}"] * 2),
    ]
    for label, kind, shape, marks in (
        (
            "not to be trusted",
            "before",
            "diamond",
            [(i, 100 * c.value) for i, c in enumerate(costs) if not judged[i].trusted],
        ),
        (
            "real, where labels came",
            "after",
            "disc",
            [(i, 100 * t.mean_cost) for i, each in enumerate(judged) if (t := each.truth)],
        ),
    ):
        if marks:
            told = [f"{names[i]}: {value:.4g}, {label}" for i, value in marks]
            lines.append(Line(label, kind, [x[i] for i, _ in marks], [value for _, value in marks], told, shape))
    shares = [
        line("referred, %", "before", [100 * each.referred / each.decisions for each in judged]),
        line("frequencies moved, %", "after", [100 * each.moved for each in judged]),
    ]
    ratios = [each.change.statistic / each.change.limit for each in judged if each.change is not None]
    change = [line("distance / limit", "after", ratios), Line("limit", "before", ends, [1.0, 1.0], ["limit"] * 2)]
    return {
        "cost": line_chart("cost-chart", "Cost per 100 decisions by period", axis, Axis("cost per 100", True), lines),
        "shares": line_chart("shares-chart", "Shares by period", axis, Axis("% of decisions", True), shares),
        "change": line_chart("change-chart", "Change by period", axis, Axis("multiple of the limit", True), change),
    }
