"""A record of one of the paper's experiments -> its tables and figures, in the paper's layout, the paper's own beside ours.

Every number derives from the confusion counts in the record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from csada.costs import Pair
from csada.errors import InputError
from csada.metrics import Counts, pairwise_error_rates, total_cost
from csada.paper import published
from csada.paper.cells import (
    ACCURACY,
    BASELINE,
    COLUMNS,
    CSADA,
    RULES,
    Array,
    Column,
    Measure,
    cell,
    change,
    count,
    pair_error,
    printed_cells,
    sd,
    values,
    wer,
)
from csada.paper.figures import LambdaPanel, convergence_figure, heat_maps, lambda_figure
from csada.paper.record import Record, Result
from csada.paper.tables import Cell, Table, Value, write
from csada.paper.toy_figure import toy_figure
from csada.report.style import save

PAIR_COLUMNS = {"Baseline": BASELINE, "Penalty": Column("penalty"), "CSADA": CSADA, **RULES}
RULE = "Rule: the calibrated minimum-expected-cost decision, its temperature fitted on validation data; no training."
ONE_PAIR = (
    "All other mistakes being free, the plain rule would never predict the pair's class again; its strength is the one that "
    "loses at most half a point of accuracy on validation data."
)
CHANGE = "After the comma: the change against its own baseline, in percent of it, or in points where it says so."

Row = Sequence[Cell]


def render(record: Record, out: str | os.PathLike[str]) -> list[Path]:
    """Write all tables and figures of a record into a folder; the paths written."""
    return write_tables(record, out) + write_figures(record, out)


def write_tables(record: Record, out: str | os.PathLike[str]) -> list[Path]:
    return [path for table in TABLES[record.experiment](record) for path in write(table, out)]


def write_figures(record: Record, out: str | os.PathLike[str]) -> list[Path]:
    figure = FIGURES[record.experiment](record) if record.experiment in FIGURES else None
    return [] if figure is None else save(figure, Path(out) / f"{record.name}.png")


def about(record: Record, runs: Sequence[Result]) -> str:
    """The setting, how many replications there are, and of which method fewer."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.method, set()).add(run.seed)
    most = max(seeds.values(), key=len)
    fewer = ", ".join(f"{method} has {len(own)}" for method, own in seeds.items() if len(own) < len(most))
    means = f"Mean (sd) over {count(most, 'replication')} from {count({run.baseline for run in runs}, 'baseline')}"
    return f"{record.setting()} {means}{f' ({fewer})' if fewer else ''}. {CHANGE}"


# -- comparisons of methods ------------------------------------------------------------------------


def comparison(record: Record, title: str, measures: Sequence[Measure], *notes: str) -> Table:
    """Two rows per measure, ours (of the first cost matrix) and the paper's."""
    rows: list[Row] = []
    for measure, theirs in zip(measures, published.TABLES[record.experiment], strict=True):
        ours = [cell(record.first, column, measure) for column in COLUMNS.values()]
        rows += [(measure.label, "ours", *ours), (measure.label, "paper", *printed_cells(theirs, measure))]
    notes = (f"Ours: {about(record, record.first)}", *notes, RULE)
    return Table(record.name, title, ("", "from", *COLUMNS), rows, notes)


def pareto_tables(record: Record) -> list[Table]:
    """The comparison within the first cost matrix, as the paper has it, and over all of them."""
    runs, costs = record.first, record.first[0].costs
    pairs = [
        pair_error(pair, f"Top {i} cost pair, {record.pair_name(pair)} ({costs[pair]:.3g}), error (%)")
        for i, pair in enumerate(costs.top_pairs(3), 1)
    ]
    sums = Measure("", lambda counts: float(np.nansum(pairwise_error_rates(counts) * costs.values)))
    by_code = {heading: cell(runs, column, sums) for heading, column in COLUMNS.items()}
    listed = ", ".join(f"{heading} {value._replace(change=None)}" for heading, value in by_code.items() if value)
    compared = comparison(
        record,
        f"Comparison of methods on {record.data}: one cost matrix ({runs[0].matrix})",
        [wer(costs), *pairs, ACCURACY],
        "The paper's costs are other draws, so its pairs are other pairs and its WER another unit: only the changes can be "
        "compared.",
        "WER is the mean cost of a prediction, times 100. The authors' code reports instead the sum over pairs of cost times "
        f"row-normalised error rate (with balanced classes: the number of classes times WER as a plain number): {listed}.",
    )
    return [compared, over_matrices(record)]


def over_matrices(record: Record) -> Table:
    """Nothing is concluded from one matrix: the change of WER and of accuracy by matrix, and their mean."""
    matrices, theirs = record.matrices(), published.TABLES[record.experiment]
    columns = [column for column in COLUMNS.values() if column != BASELINE]
    rows: list[Row] = []
    for label, wanted, printed in (("WER (%)", wer, theirs[0]), ("accuracy (points)", lambda _: ACCURACY, theirs[-1])):
        by_matrix = {
            f"ours, {name}": [cell(runs, column, wanted(runs[0].costs)) for column in columns]
            for name, runs in matrices.items()
        }
        lines = {f"ours, mean (sd) of {len(matrices)}": list(zip(*by_matrix.values(), strict=True))}
        lines |= {source: [(value,) for value in cells] for source, cells in by_matrix.items()}
        lines["paper, one matrix"] = [(value,) for value in printed_cells(printed, wanted(record.first[0].costs))[1:]]
        rows += [(f"Change of {label}", source, *map(_mean_change, line)) for source, line in lines.items()]
    title = f"Comparison of methods on {record.data}: change over {len(matrices)} cost matri"
    notes = (
        f"{record.setting()} Each matrix's change is that of the means over its replications, against its own baseline; "
        "the sd is over matrices. A mean is over the matrices its column has.",
        RULE,
    )
    headings = [heading for heading in COLUMNS if heading != "Baseline"]
    name = f"{record.name}-matrices"
    return Table(name, title + ("x" if len(matrices) == 1 else "ces"), ("", "from", *headings), rows, notes)


def _mean_change(cells: Sequence[Value | None]) -> Value | None:
    known = np.array([value.change for value in cells if value is not None and value.change is not None])
    return Value(known.mean(), sd(known), signed=True) if len(known) else None


def pmi_table(record: Record) -> list[Table]:
    costs = record.first[0].costs
    total = Measure("Total cost", lambda counts: total_cost(counts, costs), decimals=1)
    pairs = [pair_error(pair, f"{record.pair_name(pair)}, error (%)") for pair in costs.top_pairs(4)]
    title = f"Comparison of methods on {record.data}, {record.first[0].model}"
    return [comparison(record, title, [total, *pairs, ACCURACY])]


def pmi_errors(record: Record) -> list[Table]:
    costs = record.first[0].costs
    critical = costs.top_pairs(4)

    def errors(pair: Pair) -> Measure:
        return Measure(record.pair_name(pair), lambda counts: float(counts[pair]), decimals=1)

    def others(counts: Counts) -> float:
        return float(counts.sum() - np.trace(counts) - sum(counts[pair] for pair in critical))

    measures = [*map(errors, critical), Measure("Non-critical pairs", others, decimals=1)]
    table = comparison(record, f"Average number of errors on {record.data}", measures)
    prices = [f"{costs[pair]:g}" for pair in critical] + ["1"]
    rows = [(row[0], prices[i // 2], *row[1:]) for i, row in enumerate(table.rows)]
    return [replace(table, columns=("Error", "expert cost", "from", *COLUMNS), rows=rows)]


# -- single critical pairs -------------------------------------------------------------------------


def failure_table(record: Record) -> list[Table]:
    """Means over the pairs that every method here was run on, each pair against its own baseline."""
    methods = {run.method for run in record.runs}
    done = [{run.pair for run in record.runs if run.method == method} for method in methods]
    pairs = sorted(set.intersection(*done))
    by_pair = {pair: [run for run in record.runs if run.pair == pair] for pair in pairs}
    wrong = [pair for pair in pairs if _error_means(by_pair[pair], BASELINE, pair)[1] > 0]
    rows: list[Row] = []
    for name, column in PAIR_COLUMNS.items():
        if column.method not in {None, *methods} or not pairs:
            rows.append((name, None, None, None))
            continue
        cells: list[Cell] = []
        for chosen in (pairs, wrong):
            errors = np.array([_error_means(by_pair[pair], column, pair) for pair in chosen]).reshape(-1, 2)
            value, baseline = errors.mean(0) if len(errors) else (np.nan, np.nan)
            cells.append(Value(value, None, None if column == BASELINE else change(value, baseline), decimals=3))
        gained = _mean_change([cell(by_pair[pair], column, ACCURACY) for pair in pairs])
        rows.append((name, *cells, gained and gained._replace(sd=None)))
    two = [pair for pair in pairs if len({run.baseline for run in by_pair[pair]}) > 1]
    mixed = f"; for {count(two, 'pair')} each method had its own, and Baseline is their mean" if two else ""
    shares = (count(pairs, "pair"), f"{len(wrong)} with baseline errors")
    columns = ("", *(f"mean pair error (%), {share}" for share in shares), "accuracy change (points)")
    notes = (
        f"{record.setting()} Each pair is an experiment of its own, in which only this mistake costs anything; "
        "after the comma: the change of the mean against the baseline's, in percent of it. "
        f"From {count({run.baseline for run in record.runs}, 'trained baseline')}{mixed}.",
        published.FAILURE,
        f"{RULE} {ONE_PAIR}",
    )
    title = f"Single critical pairs on {record.data}: {len(pairs)} of {_all_pairs(record)} pairs"
    return [Table(record.name, title, columns, rows, notes)]


def _error_means(runs: Sequence[Result], column: Column, pair: Pair) -> list[float]:
    """The pair's test error (%) and its own baseline's, means over replications."""
    return [float(errors.mean()) for errors in values(runs, column, pair_error(pair))]


def failure_figure(record: Record) -> Figure:
    n = len(record.classes)
    baselines = {(run.baseline, run.matrix): run.counts[True, False] for run in record.runs}
    maps = {"Baseline": 100 * np.mean([pairwise_error_rates(counts) for counts in baselines.values()], axis=0)}
    for name in ("Penalty", "CSADA"):
        runs = [run for run in record.runs if run.method == PAIR_COLUMNS[name].method]
        rates = np.full((n, n), np.nan)
        for pair in {run.pair for run in runs}:
            own = [run for run in runs if run.pair == pair]
            rates[pair], maps["Baseline"][pair] = _error_means(own, PAIR_COLUMNS[name], pair)
        maps[f"{name}: {int(np.isfinite(rates).sum())} of {_all_pairs(record)} pairs"] = rates
    title = f"{record.data}, {record.runs[0].model}, scale {record.scale}: test error of each critical pair"
    if any(np.isnan(rates[~np.eye(n, dtype=bool)]).any() for rates in maps.values()):
        title += " (hatched: not run)"
    return heat_maps(maps, record.classes, title)


def _all_pairs(record: Record) -> int:
    return len(record.classes) * (len(record.classes) - 1)


# -- lambda and convergence ------------------------------------------------------------------------


def by_lambda(runs: Sequence[Result]) -> dict[float, list[Result]]:
    own = [run for run in runs if run.method == "csada" and "weight" in run.options]
    if not own:
        raise InputError("no run of csada names its weight; make them again with `csada reproduce`")
    return {weight: [run for run in own if run.weight == weight] for weight in sorted({run.weight for run in own})}


def lambda_table(record: Record) -> list[Table]:
    rows: list[Row] = []
    for name, runs in record.matrices().items():
        lines = {"baseline": (runs, BASELINE)} | {f"{w:g}": (own, CSADA) for w, own in by_lambda(runs).items()}
        for label, (own, column) in lines.items():
            shown = [(Column(column.method, rule), m) for rule in (False, True) for m in (wer(runs[0].costs), ACCURACY)]
            rows.append((name, label, *(cell(own, *each) for each in shown)))
    columns = ("cost matrix", "lambda", "WER (%)", "accuracy (%)", "WER + rule (%)", "accuracy + rule (%)")
    notes = (about(record, record.runs), published.LAMBDA, RULE)
    return [Table(record.name, f"CSADA as lambda grows, {record.data}", columns, rows, notes)]


def lambda_plot(record: Record) -> Figure:
    panels = {}
    for name, runs in record.matrices().items():
        measure, groups = wer(runs[0].costs), by_lambda(runs)
        costs = [values(own, CSADA, measure)[0] for own in groups.values()]
        lines = [float(values(runs, Column(None, rule), measure)[0].mean()) for rule in (False, True)]
        panels[name] = LambdaPanel(list(groups), costs, *lines)
    return lambda_figure(panels, f"{record.data}, scale {record.scale}: cost on the test data as lambda grows")


def curves(record: Record) -> tuple[dict[int, Array], dict[int, Array]]:
    """Loss and test WER (%): epoch -> one value per replication. Epoch 0 is the baseline, which has no such loss."""
    runs = [run for run in record.first if run.method == CSADA.method]
    told = [line for run in runs for line in run.history if line.epoch > 0 and line.test_wer is not None]
    if not told:
        raise InputError(f"the runs of {record.name} have no test WER by epoch; make them again with `csada reproduce`")
    epochs = dict.fromkeys(line.epoch for line in told)
    loss, cost = (
        {epoch: np.array([getattr(line, key) for line in told if line.epoch == epoch]) for epoch in epochs}
        for key in ("loss", "test_wer")
    )
    start = values(record.first, CSADA, wer(record.first[0].costs))[1]
    return loss, {0: start} | {epoch: 100 * paid for epoch, paid in cost.items()}


def convergence_table(record: Record) -> list[Table]:
    loss, cost = curves(record)
    runs, measure = record.first, wer(record.first[0].costs)
    ruled = {0: cell(runs, Column(None, True), measure), max(cost): cell(runs, Column("csada", True), measure)}
    rows: list[Row] = [("0", None, cell(runs, BASELINE, measure), ruled[0])]
    for epoch in sorted(loss):
        paid = cost[epoch]
        first = Value(loss[epoch].mean(), sd(loss[epoch]), decimals=4)
        second = Value(paid.mean(), sd(paid), change(paid.mean(), cost[0].mean()))
        rows.append((str(epoch), first, second, ruled.get(epoch)))
    columns = ("epoch", "training loss", "test WER (%)", "test WER + rule (%)")
    notes = (about(record, runs), published.CONVERGENCE, RULE)
    return [Table(record.name, f"Convergence of CSADA, {record.data} ({runs[0].matrix})", columns, rows, notes)]


def convergence_plot(record: Record) -> Figure:
    loss, cost = curves(record)
    interval = f"mean and 90 % prediction interval of {count(cost[0], 'replication')}"
    panels = {"training loss": loss, "test WER (%), epoch 0: baseline": cost}
    return convergence_figure(panels, f"{record.data}, scale {record.scale}: {interval}")


# -- the toy ---------------------------------------------------------------------------------------


def toy_table(record: Record) -> list[Table]:
    """Green labelled as blue: classes 1 and 2."""
    columns = {name: column for name, column in COLUMNS.items() if column.method in (None, "csada")}
    critical = Measure("Critical errors per data set", lambda counts: float(counts[1, 2]))
    rows: list[Row] = []
    for measure in (critical, ACCURACY):
        for spread in sorted({run.spread for run in record.runs}):
            runs = [run for run in record.runs if run.spread == spread]
            cells = [cell(runs, column, measure) for column in columns.values()]
            rows.append((measure.label, f"ours, spread {spread:g}, {count(runs, 'seed')}", *cells))
    rows.insert(len(rows) // 2, (critical.label, "paper, one data set", *published.TOY, None, None))
    title = "The toy of three Gaussian classes: green labelled as blue is the only costly mistake"
    spread_note = "Spread multiplies the standard deviations of the classes; 1 is as printed in the paper."
    notes = (f"Ours: scale {record.scale}, mean (sd) over seeds. {CHANGE}", spread_note, f"{RULE} {ONE_PAIR}")
    return [Table(record.name, title, ("", "from", *columns), rows, notes)]


def toy_plot(record: Record) -> Figure | None:
    for run in record.runs:
        if run.panels and "epsilon" in run.options:
            return toy_figure(*run.panels, record.classes, run.options["epsilon"])
    return None


TABLES: dict[str, Callable[[Record], list[Table]]] = {
    "toy": toy_table,
    "failure-mnist": failure_table,
    "failure-cifar10": failure_table,
    "lambda-cifar10": lambda_table,
    "convergence-cifar10": convergence_table,
    "table-cifar10": pareto_tables,
    "table-mnist": pareto_tables,
    "table-pmi-resnet34": pmi_table,
    "errors-pmi": pmi_errors,
    "table-pmi-resnet9": pmi_table,
}
FIGURES: dict[str, Callable[[Record], Figure | None]] = {
    "toy": toy_plot,
    "failure-mnist": failure_figure,
    "failure-cifar10": failure_figure,
    "lambda-cifar10": lambda_plot,
    "convergence-cifar10": convergence_plot,
}
