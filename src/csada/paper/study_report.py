"""The study's record -> its tables and figures. Every number derives from the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from csada.paper.library import MEMBERS
from csada.paper.problems import KINDS
from csada.paper.sources import SOURCES
from csada.paper.study import ALLOWED, BUDGETS, CURVES, EVERY, SHOWN, Difference, Line, Study
from csada.paper.study_rows import AIMED, ARGMAX, AUTO, CSADA, DRAWN, GENERIC, MEMBER, ROWS, RULE, SINGLE, VIEWS
from csada.paper.tables import Cell, Table, Value, write
from csada.report.style import BLUE, DARK, GREEN, GREY, METHOD_COLOURS, RED, STYLE, save

KIND_NAMES = {
    "pareto": "Pareto costs",
    "pmi": "four critical pairs",
    "block": "two groups",
    "pairs": "single pairs",
    EVERY: "all kinds",
}
LOOKS: dict[str, tuple[str, str, Any]] = {
    RULE: (GREY, "o", "--"),
    VIEWS: (BLUE, "s", ":"),
    GENERIC: ("#bbbbdd", "D", "-"),
    AUTO: (RED, "^", "-"),
    SINGLE: (GREEN, "v", (0, (3, 1, 1, 1))),
    CSADA: (METHOD_COLOURS[4], "*", ""),
}
CELL = "Cost removed on test, in percent of what the given model costs by argmax; after the comma: points of accuracy gained."
PAIRED = "Differences in percent of the given model's cost, with the paired 95 % interval over test samples."


def render(study: Study, out: Path) -> list[Path]:
    """All tables and figures into a folder; the paths written."""
    paths = [path for table in tables(study) for path in write(table, out)]
    if study.curves:
        paths += save(frontier_figure(study), out / "study-frontier.png")
    return paths + save(rows_figure(study), out / "study-rows.png")


def tables(study: Study) -> Iterator[Table]:
    for name in names(study):
        yield main_table(study, name)
    yield aimed_table(study)
    yield ingredients_table(study)
    yield acceptance_table(study)
    yield choices_table(study)


def names(study: Study) -> list[str]:
    """The data sets, in the order of the plan."""
    return sorted(study.samples, key=lambda name: list(SOURCES).index(name) if name in SOURCES else len(SOURCES))


def value(line: Line | None) -> Cell:
    if line is None or line.removed is None:
        return None
    return Value(line.removed, change=line.points, unit="points", decimals=1)


def told(difference: Difference | None) -> str | None:
    if difference is None:
        return None
    return f"{difference.mean:+z.1f} [{difference.low:z.1f}, {difference.high:z.1f}]".replace("-", "−")


def title(name: str) -> str:
    return SOURCES[name].title if name in SOURCES else name


def setting(study: Study, name: str) -> str:
    own, source = study.samples[name], SOURCES.get(name)
    count = f"{study.baselines[name]} baselines{', each on a split of its own' if source and source.splits else ''}"
    model = f"{source.model}, " if source else ""
    return (
        f"{model}{own['train']:,} / {own['validation']:,} / {own['test']:,} samples to train, choose and test; {count}."
    )


def main_table(study: Study, name: str) -> Table:
    kinds = [kind for kind in (*KINDS, EVERY) if study.line(name, kind, BUDGETS[0], RULE)]
    aims = study.line(name, AIMED, BUDGETS[0], AIMED) is not None
    rows: list[list[Cell]] = []
    for budget in BUDGETS:
        for kind in kinds:
            auto = study.line(name, kind, budget, AUTO)
            against = auto.against if auto else {}
            cells = [value(study.line(name, kind, budget, row)) for row in DRAWN]
            cells += [told(against.get(RULE)), told(against.get(GENERIC))]
            if aims:
                aimed = study.line(name, aimed_at(kind), budget, AIMED)
                cells += [value(aimed), told(aimed.against.get(GENERIC)) if aimed else None]
            rows.append([f"{budget:g}", KIND_NAMES[kind], *cells])
    more = (AIMED, f"{AIMED} − {GENERIC}") if aims else ()
    columns = ("budget", "problems", *DRAWN, f"{AUTO} − {RULE}", f"{AUTO} − {GENERIC}", *more)
    counts = {kind: line.problems for kind in kinds if (line := study.line(name, kind, BUDGETS[0], RULE))}
    told_counts = ", ".join(f"{KIND_NAMES[kind]} {count}" for kind, count in counts.items() if kind != EVERY)
    sides = f" Groups: {SOURCES[name].sides}." if name in SOURCES and SOURCES[name].sides else ""
    about = f"{setting(study, name)} Problems over all baselines: {told_counts}.{sides}"
    only = f"{aimed_counts(study, name)}: those for which networks were trained."
    notes = (about, CELL, PAIRED, legend(DRAWN)) + ((legend([AIMED]), f"The last two columns: {only}") if aims else ())
    return Table(f"study-{name}", f"Study on {title(name)}: rows by accuracy budget (points)", columns, rows, notes)


def aimed_at(kind: str) -> str:
    """The problems of this kind that networks were trained for."""
    return AIMED if kind == EVERY else f"{AIMED} {kind}"


def aimed_counts(study: Study, name: str) -> str:
    lines = {kind: study.line(name, aimed_at(kind), BUDGETS[0], ARGMAX) for kind in KINDS}
    return ", ".join(f"{KIND_NAMES[kind]} {line.problems}" for kind, line in lines.items() if line)


def legend(rows: Sequence[str]) -> str:
    return " ".join(f"{row}: {ROWS[row]}." for row in rows)


def aimed_table(study: Study) -> Table:
    shown = (RULE, GENERIC, AUTO, *list(ROWS)[6:])
    rows: list[list[Cell]] = []
    for name in names(study):
        for budget, kind in product((0.0, SHOWN), (*KINDS, EVERY)):
            lines = [study.line(name, aimed_at(kind), budget, row) for row in shown]
            if any(lines):
                members = (study.line(name, aimed_at(kind), budget, row) for row in (AIMED, MEMBER))
                against = (told(line.against.get(GENERIC)) if line else None for line in members)
                rows.append([title(name), f"{budget:g}", KIND_NAMES[kind], *map(value, lines), *against])
    counts = [f"{title(name)}: {counted}" for name in names(study) if (counted := aimed_counts(study, name))]
    notes = (
        f"Only problems and baselines for which networks were trained. {'; '.join(counts)}.",
        CELL,
        PAIRED,
        legend(list(ROWS)[6:]),
    )
    columns = ("data", "budget", "problems", *shown, *(f"{row} − {GENERIC}" for row in (AIMED, MEMBER)))
    return Table("study-aimed", "Study: networks trained for the costs", columns, rows, notes)


def ingredients_table(study: Study) -> Table:
    first = "cifar10" if "cifar10" in study.samples else next(iter(study.samples))
    own = {(line.data, line.kind, line.row): line for line in study.ingredients}
    columns = [(first, kind) for kind in (*KINDS, EVERY)] + [(name, EVERY) for name in names(study) if name != first]
    columns = [each for each in columns if (*each, ARGMAX) in own]
    tried = [row for row in dict.fromkeys(line.row for line in study.ingredients) if row != ARGMAX]
    rows = [[row, *(value(own.get((*each, row))) for each in columns)] for row in tried]
    headings = [f"{title(name)}, {KIND_NAMES[kind]}" for name, kind in columns]
    notes = (
        f"Accuracy budget {SHOWN:g} points. {CELL}",
        "Under the rule with the calibration that validation chose, unless one is named. Generic: given + restart + mixup, "
        "all views. Full strength keeps to no budget. Hindsight: the strength that is cheapest on test within the budget "
        "there, which nobody can know.",
    )
    return Table("study-ingredients", "Study: what each ingredient is worth", ("", *headings), rows, notes)


def acceptance_table(study: Study) -> Table:
    found = {(a.data, a.kind, a.budget): a for a in study.acceptance}
    rows: list[list[Cell]] = []
    for kind, heading in ((EVERY, "all kinds"), (AIMED, "trained for")):
        present = [name for name in names(study) if (name, kind, BUDGETS[0]) in found]
        for name in present:
            own = [found[name, kind, budget] for budget in BUDGETS]
            rows.append([heading, title(name), *(f"{told(a.difference)} {a.best}" for a in own)])
        counts = [sum(found[name, kind, budget].accepted for name in present) for budget in BUDGETS]
        if present:
            rows.append([heading, f"within {ALLOWED:g} %", *(f"{count} of {len(present)}" for count in counts)])
    notes = (
        f"{AUTO} minus the other row that removes most on test, which is named. {PAIRED} Counted: data sets whose interval "
        f"excludes that {AUTO} loses more than {ALLOWED:g} % of the given model's cost.",
        "Trained for: the problems for which an aimed mixup, CSADA, Adjusted Penalty and SOSR were trained.",
    )
    columns = ("problems", "data", *(f"budget {budget:g}" for budget in BUDGETS))
    return Table("study-acceptance", "Study: auto against the best other row", columns, rows, notes)


def choices_table(study: Study) -> Table:
    rows: list[list[Cell]] = []
    for c in sorted(study.choices, key=lambda choice: names(study).index(choice.data)):
        right = [f"{n} of {c.problems}" for n in (c.cheapest, c.within)]
        rows.append([title(c.data), f"{c.budget:g}", *right, *(str(c.members[m]) for m in MEMBERS), str(c.views)])
    notes = (
        "Picked: the row that costs least on validation within the budget, of the rows of the main tables. Right: it is the "
        "cheapest on test, or the paired 95 % interval of the difference to the cheapest includes 0.",
        "Members and views: for how many problems auto had them.",
    )
    columns = ("data", "budget", "cheapest", "right", *MEMBERS, "all views")
    return Table("study-choices", "Study: what validation chose", columns, rows, notes)


# -- figures ---------------------------------------------------------------------------------------


def frontier_figure(study: Study) -> Figure:
    """Cost against accuracy on test as strength grows, for one baseline."""
    name = "cifar10" if "cifar10" in study.samples else study.curves[0].data
    own = [curve for curve in study.curves if curve.data == name]
    problems = [problem for problem in CURVES if any(curve.problem == problem for curve in own)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 4.2 * len(problems), 4.3), layout="constrained")
        axes = figure.subplots(1, len(problems), squeeze=False)[0]
        for axis, problem in zip(axes, problems, strict=True):
            axis.plot(0, 0, "P", color=DARK, markersize=9, label="given model, argmax", zorder=4)
            for curve in own:
                if curve.problem == problem:
                    look = dict(zip(("color", "marker", "linestyle"), LOOKS[curve.row], strict=True))
                    width = 5 if curve.row == GENERIC else 1.5  # it may lie under auto
                    size = 12 if curve.row == CSADA else 3
                    axis.plot(
                        *zip(*curve.points, strict=True), label=curve.row, linewidth=width, markersize=size, **look
                    )
            axis.axvline(0, color=GREY, linewidth=0.8)
            lowest = min(0.0, *(x for curve in own if curve.problem == problem for x, _ in curve.points))
            axis.set_xlim(max(lowest, -2.5) - 0.2, None)
            heading = "Pareto costs (pareto:0)" if problem == CURVES[0] else f"{SOURCES[name].sides}, 10 to 1"
            axis.set(title=heading, xlabel="points of accuracy gained on test", ylabel="% of cost removed on test")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncol=4)
    return figure


def rows_figure(study: Study) -> Figure:
    """Cost removed by row, kind and data set."""
    kinds, budgets = [kind for kind in (*KINDS, EVERY) if any(x.kind == kind for x in study.lines)], (0.0, SHOWN)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.6 + 2.1 * len(kinds), 5.2), layout="constrained")
        axes = figure.subplots(len(budgets), len(kinds), squeeze=False, sharex=True, sharey=True)
        for y, budget in enumerate(budgets):
            for x, kind in enumerate(kinds):
                axis = axes[y, x]
                axis.axvline(0, color=GREY, linewidth=0.8)
                for i, name in enumerate(names(study)):
                    lines = [(j, study.line(name, kind, budget, row)) for j, row in enumerate(DRAWN)]
                    points = [
                        (line.removed, j + 0.8 * ((i + 0.5) / len(study.samples) - 0.5))
                        for j, line in lines
                        if line and line.removed is not None
                    ]
                    if points:
                        look = {"color": METHOD_COLOURS[(i + 2) % 7], "marker": "osD^vP"[i % 6], "label": title(name)}
                        axis.scatter(*zip(*points, strict=True), s=26, zorder=3, **look)
                axis.set_yticks(range(len(DRAWN)), DRAWN)
                axis.grid(axis="x", color="#eeeeee")
                if y == 0:
                    axis.set_title(KIND_NAMES[kind])
            axes[y, 0].set_ylabel(f"budget {budget:g} points")
        axes[0, 0].invert_yaxis()
        known = {
            label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        if known:  # data sets without a row of their own have none
            figure.legend(known.values(), known, loc="outside lower center", ncol=len(known))
        axes[-1, len(kinds) // 2].set_xlabel("% of the given model's cost removed on test")
    return figure
