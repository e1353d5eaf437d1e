"""The figures of section 5 and of the demo: pair errors as heat maps, cost against lambda, convergence, four answers.

One hue from light to dark, with the numbers in the cells; lines differ in dash and marker too. So all of it reads in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from csada.metrics import Evaluation, mean_interval
from csada.report.style import BLUE, DARK, GREY, METHOD_COLOURS, RED, STYLE

Array = NDArray[np.float64]


def heat_maps(maps: Mapping[str, Array], classes: Sequence[str], title: str) -> Figure:
    """maps: heading -> [K, K] error rates in percent; NaN off the diagonal is a pair without an experiment: hatched."""
    n = len(classes)
    shown = {name: np.where(np.eye(n, dtype=bool), np.nan, rates) for name, rates in maps.items()}
    highest = max(float(rates[np.isfinite(rates)].max(initial=0.1)) for rates in shown.values())
    norm = PowerNorm(0.5, 0, highest)  # the root: a few pairs are far above the rest
    labels = [literal(name) for name in classes]
    longest = max(map(len, classes))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.42 * n * len(maps) + 1.6, 0.42 * n + 1.0 + 0.07 * longest), layout="compressed")
        axes = figure.subplots(1, len(maps), sharey=True, squeeze=False)[0]
        for axis, (name, rates) in zip(axes, shown.items(), strict=True):
            image = axis.imshow(np.ma.masked_invalid(rates), cmap="Blues", norm=norm)
            for y, z in np.ndindex(n, n):
                _cell(axis, y, z, float(rates[y, z]), norm)
            axis.set(title=name, xlabel="predicted")
            axis.set_xticks(range(n), labels, rotation=90 if longest > 2 else 0)
            axis.set_yticks(range(n), labels)
            axis.tick_params(length=0)
        axes[0].set_ylabel("truth")
        figure.colorbar(image, ax=axes, label="error rate of the pair (%)", shrink=0.8, aspect=25, pad=0.01)
        figure.suptitle(literal(title), fontsize=10)
    return figure


def _cell(axis: Axes, y: int, z: int, rate: float, norm: PowerNorm) -> None:
    if y != z and not np.isnan(rate):
        colour = "white" if norm(rate) > 0.6 else DARK
        axis.text(z, y, f"{rate:.1f}" if rate else "0", ha="center", va="center", fontsize=8, color=colour)
        return
    look: dict[str, Any] = {"facecolor": "#dddddd", "edgecolor": "none"}
    if y != z:
        look = {"facecolor": "white", "edgecolor": "#bbbbbb", "hatch": "////", "linewidth": 0}
    axis.add_patch(Rectangle((z - 0.5, y - 0.5), 1, 1, **look))


class LambdaPanel(NamedTuple):
    """The cost by one cost matrix as lambda grows."""

    weights: list[float]
    costs: list[Array]  # for each lambda one value per replication
    baseline: float
    rule: float  # the calibrated decision rule on the baseline


def lambda_figure(panels: Mapping[str, LambdaPanel], title: str) -> Figure:
    """A panel for each cost matrix."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 4.4 * len(panels), 3.9), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (name, panel) in zip(axes, panels.items(), strict=True):
            means = [float(values.mean()) for values in panel.costs]
            spreads = [float(values.std(ddof=1)) if len(values) > 1 else 0.0 for values in panel.costs]
            steps = range(len(means))  # evenly spaced: lambdas grow by factors, and 0 may be one of them
            for step, values in zip(steps, panel.costs, strict=True):
                points = axis.plot(np.full(len(values), step), values, "x", color=GREY, markersize=5)
            points[0].set_label("one replication")
            axis.errorbar(
                steps, means, spreads, fmt="o-", color=BLUE, capsize=3, markersize=5, label="CSADA, mean and sd"
            )
            axis.axhline(panel.baseline, color=DARK, linestyle="--", linewidth=1.2, label="baseline")
            axis.axhline(panel.rule, color=RED, linestyle=":", linewidth=1.8, label="baseline + decision rule")
            axis.set_xticks(steps, [f"{weight:g}" for weight in panel.weights])
            axis.set(title=name, xlabel="lambda", ylabel="test WER (%)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=2 * len(panels))
        figure.suptitle(literal(title), fontsize=10)
    return figure


def convergence_figure(panels: Mapping[str, Mapping[int, Array]], title: str) -> Figure:
    """panels: what is drawn -> epoch -> one value per replication. The band is the 90 % prediction interval."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.7), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (name, curve) in zip(axes, panels.items(), strict=True):
            epochs = sorted(curve)
            means = np.array([curve[epoch].mean() for epoch in epochs])
            half = np.nan_to_num([prediction_half_width(curve[epoch]) for epoch in epochs])
            axis.fill_between(epochs, means - half, means + half, color=BLUE, alpha=0.2, linewidth=0)
            for side in (-1, 1):
                axis.plot(epochs, means + side * half, "--", color=BLUE, linewidth=0.8)
            axis.plot(epochs, means, "o-", color=BLUE, markersize=4)
            axis.set(title=name, xlabel="epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
        figure.suptitle(literal(title), fontsize=10)
    return figure


def demo_figure(rows: Mapping[str, Sequence[Evaluation]]) -> Figure:
    """What each answer costs, seed by seed, and what it costs in accuracy; lines join the values of one seed."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        costs = 100 * np.array([[e.mean_cost for e in seeds] for seeds in rows.values()])
        left.plot(costs, color="#cccccc", linewidth=0.8, zorder=1)
        for i, (name, seeds) in enumerate(rows.items()):
            colour, marker = METHOD_COLOURS[i], "osD^vPX"[i]
            left.scatter(np.full(len(seeds), i), costs[i], s=16, color=colour, marker=marker, alpha=0.6, zorder=2)
            left.hlines(costs[i].mean(), i - 0.25, i + 0.25, color=colour, linewidth=3, zorder=3)
            accuracy = 100 * np.mean([e.accuracy for e in seeds])
            right.scatter(accuracy, costs[i].mean(), s=70, color=colour, marker=marker, label=name)
        left.set_xticks(range(len(rows)), [name.replace(" + ", "\n+ ") for name in rows])
        left.set(ylabel="cost per 100 predictions", title="grey: one seed; bar: mean", ylim=(0, None))
        right.set(xlabel="accuracy (%)", ylabel="cost per 100 predictions", title="mean over the seeds")
        right.legend(loc="upper left")
        right.margins(0.25)
        right.set_ylim(0, None)
    return figure


def prediction_half_width(values: Array, confidence: float = 0.9) -> float:
    """Where one more replication would fall: t * sd * sqrt(1 + 1/n), that is sqrt(n + 1) times the mean's interval."""
    return float(mean_interval(values, confidence).half_width * np.sqrt(len(values) + 1))


def literal(name: str) -> str:
    """Matplotlib reads formulas between dollar signs; a class name is only a name."""
    return name.replace("$", r"\$")
