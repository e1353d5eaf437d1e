"""From confusion counts to the cells of a table: a measure of every replication, their mean and sd, the change.

Baselines differ between the paper and us, so every method also shows its change against its own baseline; and every table
shows the rival that needs no training, the calibrated minimum-expected-cost decision ("rule").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from csada.costs import CostMatrix, Pair
from csada.errors import InputError
from csada.metrics import Counts, accuracy, mean_cost, pairwise_error_rates
from csada.paper.published import PrintedRow
from csada.paper.record import Result
from csada.paper.tables import Value

Array = NDArray[np.float64]


class Column(NamedTuple):
    method: str | None  # None: the baseline
    rule: bool = False  # decided by the rule?


BASELINE, CSADA = Column(None), Column("csada")
RULES = {"Baseline + rule": Column(None, True), "CSADA + rule": Column("csada", True)}
COLUMNS = {
    "Baseline": BASELINE,
    "CSADA": CSADA,
    "AP": Column("adjusted_penalty"),
    "SOSR": Column("sosr"),
    **RULES,
}


class Measure(NamedTuple):
    label: str
    of: Callable[[Counts], float]
    unit: str = "%"  # of its change: in percent of the baseline's, or in points
    decimals: int = 2


ACCURACY = Measure("Accuracy (%)", lambda counts: 100 * accuracy(counts), "points")


def wer(costs: CostMatrix) -> Measure:
    return Measure("WER (%)", lambda counts: 100 * mean_cost(counts, costs))


def pair_error(pair: Pair, label: str = "") -> Measure:
    return Measure(label, lambda counts: 100 * float(pairwise_error_rates(counts)[pair]))


def values(runs: Sequence[Result], column: Column, measure: Measure) -> tuple[Array, Array]:
    """What the column shows and its own baseline's, one value per replication; the baseline's column has each once."""
    if column.method is None:
        chosen = list({(run.baseline, run.matrix): run for run in runs}.values())
    else:
        chosen = [run for run in runs if run.method == column.method]
        if len(settings := {str(sorted(run.options.items())) for run in chosen}) > 1:
            raise InputError(
                f"runs of {column.method} with different options in one table: {' and '.join(sorted(settings))}"
            )
    shown = np.array([measure.of(run.counts[column.method is None, column.rule]) for run in chosen])
    return shown, np.array([measure.of(run.counts[True, False]) for run in chosen])


def cell(runs: Sequence[Result], column: Column, measure: Measure) -> Value | None:
    """The change is that of the means: rare errors make single ratios meaningless."""
    shown, baselines = values(runs, column, measure)
    if not len(shown):
        return None
    moved = None if column == BASELINE else change(shown.mean(), baselines.mean(), measure.unit)
    return Value(shown.mean(), sd(shown), moved, measure.unit, measure.decimals)


def printed_cells(row: PrintedRow, measure: Measure) -> list[Value | None]:
    """The paper's, under COLUMNS; it has no rule."""
    unit, decimals = measure.unit, measure.decimals
    baseline = row[0][0]
    others = [Value(mean, deviation, change(mean, baseline, unit), unit, decimals) for mean, deviation in row[1:]]
    return [Value(baseline, decimals=decimals), *others, *(None for _ in RULES)]


def change(value: float, baseline: float, unit: str = "%") -> float | None:
    if unit == "points":
        return value - baseline
    return 100 * (value - baseline) / baseline if baseline > 0 else None


def sd(of: Array) -> float | None:
    return float(of.std(ddof=1)) if len(of) > 1 else None


def count(things: Collection[object], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"
