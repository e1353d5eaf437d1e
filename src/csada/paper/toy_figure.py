"""The six-panel figure of section 4: decision regions, critical errors, and attacks in their epsilon boxes."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from csada.errors import InputError
from csada.report.style import BLUE, DARK, GREEN, GREY, RED, STYLE

COLOURS, MARKERS = (RED, GREEN, BLUE), ("o", "s", "^")


@dataclass(frozen=True)
class ToyPanel:
    """One model on the plane, as arrays."""

    extent: tuple[float, float, float, float]  # x from, to, y from, to
    regions: NDArray[np.int64]  # [H, W] predicted class on a grid over the extent
    train_x: NDArray[np.float64]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float64]
    test_y: NDArray[np.int64]
    critical: NDArray[np.bool_]  # [N] test samples of the critical class predicted as the target
    paths: NDArray[np.float64]  # [P, K + 1, 2] points visited by the attacks
    accuracy: float

    def __post_init__(self) -> None:
        points = [(self.train_x, self.train_y), (self.test_x, self.test_y), (self.test_x, self.critical)]
        drawn = self.paths.size and self.regions.size and self.paths.shape[2:] == (2,) and self.regions.ndim == 2
        if not drawn or any(x.shape != (y.size, 2) or y.ndim != 1 for x, y in points):
            raise InputError("the shapes of the arrays do not fit together")


def toy_figure(before: ToyPanel, after: ToyPanel, classes: tuple[str, ...], epsilon: float) -> Figure:
    """Rows: before and after. Columns: critical errors, attacks, the attacks enlarged (both rows on the same window)."""
    points = np.concatenate([before.paths, after.paths]).reshape(-1, 2)
    middle, half = (points.min(0) + points.max(0)) / 2, max(np.ptp(points, axis=0)) / 2 + 1.15 * epsilon
    window = (middle[0] - half, middle[0] + half, middle[1] - half, middle[1] + half)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 7), layout="constrained")
        axes = figure.subplots(2, 3)
        for row, panel, name in zip(axes, (before, after), ("before", "after"), strict=True):
            errors = int(panel.critical.sum())
            noun = "error" if errors == 1 else "errors"
            row[0].set_title(f"{name}: {errors} critical {noun}, accuracy {100 * panel.accuracy:.1f} %")
            row[1].set_title(f"adversarial examples ({name})")
            row[2].set_title("enlarged")
            for axis in row:
                draw_regions(axis, panel)
            draw_test(row[0], panel)
            for axis in row[1:]:
                draw_attacks(axis, panel, epsilon)
            row[1].add_patch(
                Rectangle((window[0], window[2]), 2 * half, 2 * half, fill=False, edgecolor=DARK, linewidth=1.5)
            )
            row[2].set(xlim=window[:2], ylim=window[2:])
        handles = [
            axes[0, 0].plot([], [], linestyle="", marker=m, markerfacecolor="none", color=c, label=f"{k} (training)")[0]
            for k, c, m in zip(classes, COLOURS, MARKERS, strict=True)
        ]
        handles += axes[0, 0].plot([], [], linestyle="", marker="X", color=DARK, label="critical error (test)")
        handles += axes[0, 0].plot([], [], linestyle="-", marker=".", color=GREY, label="steps of an attack")
        handles += axes[0, 0].plot([], [], linestyle="", marker="o", color=DARK, label="adversarial example")
        figure.legend(handles=handles, loc="outside lower center", ncol=6)
    return figure


def draw_regions(axis: Axes, panel: ToyPanel) -> None:
    axis.imshow(
        panel.regions, origin="lower", extent=panel.extent, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, alpha=0.18
    )
    for k, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        x = panel.train_x[panel.train_y == k]
        axis.scatter(x[:, 0], x[:, 1], s=18, marker=marker, facecolors="none", edgecolors=colour, linewidths=0.8)
    axis.set(xlim=panel.extent[:2], ylim=panel.extent[2:], aspect="equal")


def draw_test(axis: Axes, panel: ToyPanel) -> None:
    for k, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        x = panel.test_x[(panel.test_y == k) & ~panel.critical]
        axis.scatter(x[:, 0], x[:, 1], s=6, marker=marker, color=colour, alpha=0.25, linewidths=0)
    x = panel.test_x[panel.critical]
    axis.scatter(x[:, 0], x[:, 1], s=60, marker="X", color=GREEN, edgecolors=DARK, linewidths=1, zorder=5)


def draw_attacks(axis: Axes, panel: ToyPanel, epsilon: float) -> None:
    for path in panel.paths:
        axis.add_patch(
            Rectangle(path[0] - epsilon, 2 * epsilon, 2 * epsilon, fill=False, edgecolor=GREY, linewidth=0.8)
        )
        axis.plot(*path.T, "-", color=GREY, linewidth=0.8, marker=".", markersize=4)
        axis.plot(*path[-1], "o", color=DARK, markersize=4)
