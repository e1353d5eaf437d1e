"""A record of one of the paper's experiments -> its tables and figures, in the paper's layout, the paper's own beside ours.

Every number derives from the confusion counts in the record. Baselines differ between the paper and us, so every method
also shows its change against its own baseline; and every table shows the rival that needs no training, the calibrated
minimum-expected-cost decision ("rule").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from csada.costs import CostMatrix, Pair
from csada.errors import InputError
from csada.metrics import Counts, accuracy, pairwise_error_rates, total_cost, weighted_error_rate
from csada.paper import published as paper
from csada.paper.figures import Sweep, convergence_figure, heat_maps, lambda_figure
from csada.paper.record import Record, Result, parse
from csada.paper.tables import Cell, Table, Value, write
from csada.paper.toy_figure import toy_figure
from csada.report.style import save

Array = NDArray[np.float64]

# heading -> (method, or None for the baseline; decided by the rule?)
COLUMNS: dict[str, tuple[str | None, bool]] = {
    "Baseline": (None, False),
    "CSADA": ("csada", False),
    "AP": ("adjusted_penalty", False),
    "SOSR": ("sosr", False),
    "Baseline + rule": (None, True),
    "CSADA + rule": ("csada", True),
}
PAIR_COLUMNS = {
    "Baseline": COLUMNS["Baseline"],
    "Penalty": ("penalty", False),
    **{name: COLUMNS[name] for name in ("CSADA", "Baseline + rule", "CSADA + rule")},
}
RULE = "Rule: the calibrated minimum-expected-cost decision, its temperature fitted on validation data; no training."
ONE_PAIR = (
    "All other mistakes being free, the plain rule would never predict the pair's class again; its strength is the one that "
    "loses at most half a point of accuracy on validation data."
)
CHANGE = "After the comma: the change against its own baseline, in percent of it, or in points where it says so."


def render(record: Record | Mapping[str, Any], out: str | os.PathLike[str]) -> list[Path]:
    """Write all tables and figures of a record into a folder; the paths written."""
    checked = record if isinstance(record, Record) else parse(record)
    return write_tables(checked, out) + write_figures(checked, out)


def write_tables(record: Record, out: str | os.PathLike[str]) -> list[Path]:
    return [path for table in TABLES[record.experiment](record) for path in write(table, out)]


def write_figures(record: Record, out: str | os.PathLike[str]) -> list[Path]:
    figure = FIGURES[record.experiment](record) if record.experiment in FIGURES else None
    return [] if figure is None else save(figure, Path(out) / f"{record.name}.png")


# From counts to cells


class Measure(NamedTuple):
    label: str
    of: Callable[[Counts], float]
    unit: str = "%"  # of its change: in percent of the baseline's, or in points
    decimals: int = 2


def accuracy_measure() -> Measure:
    return Measure("Accuracy (%)", lambda counts: 100 * accuracy(counts), "points")


def wer_measure(costs: CostMatrix) -> Measure:
    return Measure("WER (%)", lambda counts: 100 * weighted_error_rate(counts, costs))


def pair_measure(label: str, pair: Pair) -> Measure:
    return Measure(label, lambda counts: 100 * float(pairwise_error_rates(counts)[pair]))


def column(runs: Sequence[Result], method: str | None, rule: bool) -> list[tuple[Counts, Counts]]:
    """(what the column shows, its own baseline) for each replication; the baseline's column has each baseline once."""
    if method is None:
        baselines = {(run.baseline, run.matrix): run for run in runs}
        return [(run.counts[True, rule], run.counts[True, False]) for run in baselines.values()]
    chosen = [run for run in runs if run.method == method]
    if len(settings := {run.options for run in chosen}) > 1:
        raise InputError(f"runs of {method} with different options in one table: {' and '.join(sorted(settings))}")
    return [(run.counts[False, rule], run.counts[True, False]) for run in chosen]


def cell(pairs: Sequence[tuple[Counts, Counts]], measure: Measure, *, change: bool = True) -> Value | None:
    """Mean and sd over replications. The change is that of the means: rare errors make single ratios meaningless."""
    if not pairs:
        return None
    values, baselines = (np.array([measure.of(pair[i]) for pair in pairs]) for i in (0, 1))
    moved = _change(values.mean(), baselines.mean(), measure.unit) if change else None
    return Value(values.mean(), _sd(values), moved, measure.unit, measure.decimals)


def paper_cells(row: paper.Row, unit: str, decimals: int) -> list[Value | None]:
    baseline = row[0][0]
    others = [Value(mean, sd, _change(mean, baseline, unit), unit, decimals) for mean, sd in row[1:]]
    return [Value(baseline, decimals=decimals), *others, None, None]


def _change(value: float, baseline: float, unit: str) -> float | None:
    if unit == "points":
        return value - baseline
    return 100 * (value - baseline) / baseline if baseline > 0 else None


def _sd(values: Array) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None


def _replications(runs: Sequence[Result]) -> str:
    """How many there are, and of which method fewer."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.method, set()).add(run.seed)
    most = max(seeds.values(), key=len)
    fewer = [f"{method} has {len(own)}" for method, own in seeds.items() if len(own) < len(most)]
    text = f"Mean (sd) over {_count(most, 'replication')} from {_count({run.baseline for run in runs}, 'baseline')}"
    return f"{text} ({', '.join(fewer)})." if fewer else f"{text}."


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"


def _side_by_side(runs: Sequence[Result], measures: Sequence[Measure], theirs: Sequence[paper.Row]) -> list[list[Cell]]:
    """Two lines a measure, ours and the paper's; the columns are COLUMNS."""
    rows: list[list[Cell]] = []
    for measure, row in zip(measures, theirs, strict=True):
        ours = [cell(column(runs, *key), measure, change=name != "Baseline") for name, key in COLUMNS.items()]
        rows += [
            [measure.label, "ours", *ours],
            [measure.label, "paper", *paper_cells(row, measure.unit, measure.decimals)],
        ]
    return rows


# The experiments


def pareto_tables(record: Record, theirs: Sequence[paper.Row]) -> list[Table]:
    """The comparison within the first cost matrix, as the paper has it, and over all of them."""
    matrices = record.matrices()
    name, runs = next(iter(matrices.items()))
    costs = runs[0].costs
    pairs = [
        pair_measure(
            f"Top {i} cost pair, {record.classes[y]} → {record.classes[z]} ({costs[y, z]:.3g}), error (%)", (y, z)
        )
        for i, (y, z) in enumerate(costs.top_pairs(3), 1)
    ]
    sums = Measure("", lambda counts: float(np.nansum(pairwise_error_rates(counts) * costs.values)))
    by_code = {heading: cell(column(runs, *key), sums, change=False) for heading, key in COLUMNS.items()}
    listed = ", ".join(f"{heading} {value}" for heading, value in by_code.items() if value is not None)
    compared = Table(
        record.name,
        f"Comparison of methods on {record.data}: one cost matrix ({name})",
        ("", "from", *COLUMNS),
        tuple(map(tuple, _side_by_side(runs, [wer_measure(costs), *pairs, accuracy_measure()], theirs))),
        (
            f"Ours: {record.setting()} {_replications(runs)} {CHANGE}",
            "The paper's costs are other draws, so its pairs are other pairs and its WER another unit: only the changes "
            "can be compared.",
            "WER is the mean cost of a prediction, times 100. The authors' code reports instead the sum over pairs of "
            "cost times row-normalised error rate (with balanced classes: the number of classes times WER as a plain "
            f"number): {listed}.",
            RULE,
        ),
    )
    return [compared, over_matrices(record, matrices, theirs)]


def over_matrices(record: Record, matrices: dict[str, list[Result]], theirs: Sequence[paper.Row]) -> Table:
    """Nothing is concluded from one matrix: the change of WER and of accuracy by matrix, and their mean."""
    columns = {name: key for name, key in COLUMNS.items() if name != "Baseline"}
    rows: list[tuple[Cell, ...]] = []
    for label, measure_of, row in (
        ("Change of WER (%)", wer_measure, theirs[0]),
        ("Change of accuracy (points)", lambda _: accuracy_measure(), theirs[-1]),
    ):
        changes: dict[str, list[float | None]] = {name: [] for name in columns}
        for runs in matrices.values():
            measure = measure_of(runs[0].costs)
            for name, key in columns.items():
                value = cell(column(runs, *key), measure)
                changes[name].append(None if value is None else value.change)
        rows.append((label, f"ours, mean (sd) of {len(matrices)}", *map(_signed_mean, changes.values())))
        for i, matrix in enumerate(matrices):
            rows.append((label, f"ours, {matrix}", *(_signed_mean(own[i : i + 1]) for own in changes.values())))
        printed = [value and value.change for value in paper_cells(row, measure.unit, 2)[1:]]
        rows.append((label, "paper, one matrix", *(_signed_mean([change]) for change in printed)))
    return Table(
        f"{record.name}-matrices",
        f"Comparison of methods on {record.data}: change over {len(matrices)} cost matri{'x' if len(matrices) == 1 else 'ces'}",
        ("", "from", *columns),
        tuple(rows),
        (
            f"{record.setting()} Each matrix's change is that of the means over its replications, against its own baseline; "
            "the sd is over matrices. A mean is over the matrices its column has.",
            RULE,
        ),
    )


def _signed_mean(changes: Sequence[float | None]) -> Value | None:
    known = np.array([change for change in changes if change is not None])
    return Value(known.mean(), _sd(known), signed=True) if len(known) else None


def pmi_table(record: Record, theirs: Sequence[paper.Row]) -> list[Table]:
    costs = record.runs[0].costs
    measures = [
        Measure("Total cost", lambda counts: total_cost(counts, costs), decimals=1),
        *(pair_measure(f"{_pair_name(record, pair)}, error (%)", pair) for pair in costs.top_pairs(4)),
        accuracy_measure(),
    ]
    return [
        Table(
            record.name,
            f"Comparison of methods on {record.data}, {record.runs[0].model}",
            ("", "from", *COLUMNS),
            tuple(map(tuple, _side_by_side(record.runs, measures, theirs))),
            (f"Ours: {record.setting()} {_replications(record.runs)} {CHANGE}", RULE),
        )
    ]


def pmi_errors(record: Record) -> list[Table]:
    costs = record.runs[0].costs
    critical = costs.top_pairs(4)

    def others(counts: Counts) -> float:
        return float(counts.sum() - np.trace(counts) - sum(counts[pair] for pair in critical))

    prices = [f"{costs[pair]:g}" for pair in critical] + ["1"]
    measures = [
        *(Measure(_pair_name(record, pair), lambda counts, p=pair: float(counts[p]), decimals=1) for pair in critical),  # type: ignore[misc]
        Measure("Non-critical pairs", others, decimals=1),
    ]
    rows = _side_by_side(record.runs, measures, paper.PMI_ERRORS)
    for i, row in enumerate(rows):
        row.insert(1, prices[i // 2])
    return [
        Table(
            record.name,
            f"Average number of errors on {record.data}",
            ("Error", "expert cost", "from", *COLUMNS),
            tuple(map(tuple, rows)),
            (f"Ours: {record.setting()} {_replications(record.runs)} {CHANGE}", RULE),
        )
    ]


def _pair_name(record: Record, pair: Pair) -> str:
    return f"{record.classes[pair[0]]} → {record.classes[pair[1]]}"


def failure_table(record: Record) -> list[Table]:
    """Means over the pairs that every method here was run on, each pair against its own baseline."""
    methods = {run.method for run in record.runs}
    done = [{run.pair for run in record.runs if run.method == method} for method in methods]
    pairs = sorted(set.intersection(*done))
    by_pair = {pair: [run for run in record.runs if run.pair == pair] for pair in pairs}
    wrong = [pair for pair in pairs if _pair_error(by_pair[pair], None, False, pair)[1] > 0]
    rows: list[tuple[Cell, ...]] = []
    for name, key in PAIR_COLUMNS.items():
        if key[0] not in {None, *methods} or not pairs:
            rows.append((name, None, None, None))
            continue
        cells = []
        for chosen in (pairs, wrong):
            errors = np.array([_pair_error(by_pair[pair], *key, pair) for pair in chosen]).reshape(-1, 2)
            value, baseline = errors.mean(0) if len(errors) else (np.nan, np.nan)
            change = None if key == (None, False) else _change(value, baseline, "%")
            cells.append(Value(value, None, change, decimals=3))
        gains = [cell(column(by_pair[pair], *key), accuracy_measure()) for pair in pairs]
        points = [value.change for value in gains if value is not None and value.change is not None]
        rows.append((name, *cells, None if key == (None, False) else Value(float(np.mean(points)), signed=True)))
    two = [pair for pair in pairs if len({run.baseline for run in by_pair[pair]}) > 1]
    mixed = f"; for {_count(two, 'pair')} each method had its own, and Baseline is their mean" if two else ""
    return [
        Table(
            record.name,
            f"Single critical pairs on {record.data}: {len(pairs)} of {_all_pairs(record)} pairs",
            (
                "",
                f"mean pair error (%), {_count(pairs, 'pair')}",
                f"mean pair error (%), {len(wrong)} with baseline errors",
                "accuracy change (points)",
            ),
            tuple(rows),
            (
                f"{record.setting()} Each pair is an experiment of its own, in which only this mistake costs anything; "
                "after the comma: the change of the mean against the baseline's, in percent of it. "
                f"From {_count({run.baseline for run in record.runs}, 'trained baseline')}{mixed}.",
                paper.FAILURE,
                f"{RULE} {ONE_PAIR}",
            ),
        )
    ]


def _pair_error(runs: Sequence[Result], method: str | None, rule: bool, pair: Pair) -> tuple[float, float]:
    """The pair's test error (%) and its own baseline's, means over replications."""
    measure = pair_measure("", pair)
    shown = column(runs, method, rule)
    return tuple(float(np.mean([measure.of(counts[i]) for counts in shown])) for i in (0, 1))  # type: ignore[return-value]


def failure_figure(record: Record) -> Figure:
    n = len(record.classes)
    every = [counts for counts, _ in column(record.runs, None, False)]
    maps = {"Baseline": 100 * np.mean([pairwise_error_rates(counts) for counts in every], axis=0)}
    for name in ("Penalty", "CSADA"):
        method = PAIR_COLUMNS[name][0]
        runs = [run for run in record.runs if run.method == method]
        rates = np.full((n, n), np.nan)
        for pair in {run.pair for run in runs}:
            own = [run for run in runs if run.pair == pair]
            rates[pair], maps["Baseline"][pair] = _pair_error(own, method, False, pair)
        maps[f"{name}: {int(np.isfinite(rates).sum())} of {_all_pairs(record)} pairs"] = rates
    title = f"{record.data}, {record.runs[0].model}, scale {record.scale}: test error of each critical pair"
    if any(np.isnan(rates[~np.eye(n, dtype=bool)]).any() for rates in maps.values()):
        title += " (hatched: not run)"
    return heat_maps(maps, record.classes, title)


def _all_pairs(record: Record) -> int:
    return len(record.classes) * (len(record.classes) - 1)


def by_lambda(runs: Sequence[Result]) -> dict[float, list[Result]]:
    own = [run for run in runs if run.method == "csada"]
    return {weight: [run for run in own if run.weight == weight] for weight in sorted({run.weight for run in own})}


def lambda_table(record: Record) -> list[Table]:
    rows: list[tuple[Cell, ...]] = []
    for name, runs in record.matrices().items():
        measures = (wer_measure(runs[0].costs), accuracy_measure())
        lines = {"baseline": (runs, None)} | {f"{weight:g}": (own, "csada") for weight, own in by_lambda(runs).items()}
        for label, (own, method) in lines.items():
            cells = [
                cell(column(own, method, rule), measure, change=rule or method is not None)
                for rule in (False, True)
                for measure in measures
            ]
            rows.append((name, label, *cells))
    headings = ("WER (%)", "accuracy (%)", "WER + rule (%)", "accuracy + rule (%)")
    notes = (f"{record.setting()} {_replications(record.runs)} {CHANGE}", paper.LAMBDA, RULE)
    return [
        Table(
            record.name,
            f"CSADA as lambda grows, {record.data}",
            ("cost matrix", "lambda", *headings),
            tuple(rows),
            notes,
        )
    ]


def lambda_plot(record: Record) -> Figure:
    sweeps = {}
    for name, runs in record.matrices().items():
        wer = wer_measure(runs[0].costs)
        groups = by_lambda(runs)
        costs = [np.array([wer.of(counts) for counts, _ in column(own, "csada", False)]) for own in groups.values()]
        lines = [float(np.mean([wer.of(counts) for counts, _ in column(runs, None, rule)])) for rule in (False, True)]
        sweeps[name] = Sweep(list(groups), costs, *lines)
    return lambda_figure(sweeps, f"{record.data}, scale {record.scale}: cost on the test data as lambda grows")


def curves(record: Record) -> tuple[dict[int, Array], dict[int, Array]]:
    """Loss and test WER (%): epoch -> one value a replication. Epoch 0 is the baseline, which has no loss of this kind."""
    losses: dict[int, list[float]] = {}
    costs: dict[int, list[float]] = {}
    for run in next(iter(record.matrices().values())):
        costs.setdefault(0, []).append(100 * weighted_error_rate(run.counts[True, False], run.costs))
        for line in run.history:
            if (epoch := int(line["epoch"])) > 0 and "test_wer" in line:
                losses.setdefault(epoch, []).append(line["loss"])
                costs.setdefault(epoch, []).append(100 * line["test_wer"])
    if not losses:
        raise InputError(f"the runs of {record.name} have no test WER by epoch; make them again with `csada reproduce`")
    return tuple({epoch: np.array(values) for epoch, values in curve.items()} for curve in (losses, costs))  # type: ignore[return-value]


def convergence_table(record: Record) -> list[Table]:
    loss, cost = curves(record)
    runs = next(iter(record.matrices().values()))
    wer = wer_measure(runs[0].costs)
    start = cell(column(runs, None, False), wer, change=False)
    ruled = {0: cell(column(runs, None, True), wer), max(cost): cell(column(runs, "csada", True), wer)}
    rows: list[tuple[Cell, ...]] = [("0", None, start, ruled[0])]
    for epoch in sorted(loss):
        values = cost[epoch]
        change = _change(values.mean(), cost[0].mean(), "%")
        first = Value(loss[epoch].mean(), _sd(loss[epoch]), decimals=4)
        rows.append((str(epoch), first, Value(values.mean(), _sd(values), change), ruled.get(epoch)))
    notes = (f"{record.setting()} {_replications(runs)} {CHANGE}", paper.CONVERGENCE, RULE)
    headings = ("epoch", "training loss", "test WER (%)", "test WER + rule (%)")
    return [Table(record.name, f"Convergence of CSADA, {record.data} ({runs[0].matrix})", headings, tuple(rows), notes)]


def convergence_plot(record: Record) -> Figure:
    loss, cost = curves(record)
    title = (
        f"{record.data}, scale {record.scale}: mean and 90 % prediction interval of {_count(cost[0], 'replication')}"
    )
    return convergence_figure({"training loss": loss, "test WER (%), epoch 0: baseline": cost}, title)


def toy_table(record: Record) -> list[Table]:
    """Green called blue: classes 1 and 2."""
    columns = {name: (method is None, rule) for name, (method, rule) in COLUMNS.items() if method in (None, "csada")}
    measures = (Measure("Critical errors a data set", lambda counts: float(counts[1, 2])), accuracy_measure())
    rows: list[tuple[Cell, ...]] = []
    for measure in measures:
        for spread in sorted({toy.spread for toy in record.toys}):
            toys = [toy for toy in record.toys if toy.spread == spread]
            cells = [
                cell(
                    [(toy.counts[key], toy.counts[True, False]) for toy in toys if key in toy.counts],
                    measure,
                    change=name != "Baseline",
                )
                for name, key in columns.items()
            ]
            rows.append((measure.label, f"ours, spread {spread:g}, {_count(toys, 'seed')}", *cells))
    rows.insert(len(rows) // 2, (measures[0].label, "paper, one data set", *paper.TOY, None, None))
    title = "The toy of three Gaussian classes: green called blue is the only costly mistake"
    spread_note = "Spread multiplies the standard deviations of the classes; 1 is as printed in the paper."
    notes = (f"Ours: scale {record.scale}, mean (sd) over seeds. {CHANGE}", spread_note, f"{RULE} {ONE_PAIR}")
    return [Table(record.name, title, ("", "from", *columns), tuple(rows), notes)]


def toy_plot(record: Record) -> Figure | None:
    for toy in record.toys:
        if toy.panels:
            return toy_figure(*toy.panels, record.classes, toy.epsilon)
    return None


TABLES: dict[str, Callable[[Record], list[Table]]] = {
    "toy": toy_table,
    "failure-mnist": failure_table,
    "failure-cifar10": failure_table,
    "lambda-cifar10": lambda_table,
    "convergence-cifar10": convergence_table,
    "table-cifar10": lambda record: pareto_tables(record, paper.CIFAR10),
    "table-mnist": lambda record: pareto_tables(record, paper.MNIST),
    "table-pmi-resnet34": lambda record: pmi_table(record, paper.PMI_RESNET34),
    "errors-pmi": pmi_errors,
    "table-pmi-resnet9": lambda record: pmi_table(record, paper.PMI_RESNET9),
}
FIGURES: dict[str, Callable[[Record], Figure | None]] = {
    "toy": toy_plot,
    "failure-mnist": failure_figure,
    "failure-cifar10": failure_figure,
    "lambda-cifar10": lambda_plot,
    "convergence-cifar10": convergence_plot,
}
