"""The demo's picture: what each answer costs, seed by seed, and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from csada.report.style import METHOD_COLOURS, STYLE

MARKERS = "osD^vPX"


def demo_figure(costs: Mapping[str, NDArray[np.float64]], accuracies: Mapping[str, NDArray[np.float64]]) -> Figure:
    """`costs` and `accuracies` map a row's name to one value a seed; lines join the values of one seed."""
    names = list(costs)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        table = 100 * np.array([costs[name] for name in names])
        left.plot(table, color="#cccccc", linewidth=0.8, zorder=1)
        for i, name in enumerate(names):
            colour, marker = METHOD_COLOURS[i], MARKERS[i]
            left.scatter(np.full(table.shape[1], i), table[i], s=16, color=colour, marker=marker, alpha=0.6, zorder=2)
            left.hlines(table[i].mean(), i - 0.25, i + 0.25, color=colour, linewidth=3, zorder=3)
            right.scatter(100 * accuracies[name].mean(), table[i].mean(), s=70, color=colour, marker=marker, label=name)
        left.set_xticks(range(len(names)), [name.replace(" + ", "\n+ ") for name in names])
        left.set(ylabel="cost a hundred predictions", title="grey: one seed; bar: mean", ylim=(0, None))
        right.set(xlabel="accuracy (%)", ylabel="cost a hundred predictions", title="mean over the seeds")
        right.legend(loc="upper left")
        right.margins(0.25)
        right.set_ylim(0, None)
    return figure
