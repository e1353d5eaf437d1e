"""The search's picture: accuracy against cost on validation, what the budget allows, and what validation chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from csada.decisions import frontier
from csada.evidence import Evidence
from csada.report.style import BLUE, DARK, GREEN, GREY, RED, STYLE

Points = Sequence[tuple[float, float]]  # accuracy, mean cost
LOOKS: tuple[dict[str, Any], ...] = (  # of the kinds of trials
    {"color": BLUE, "s": 24, "alpha": 0.7},
    {"edgecolors": BLUE, "facecolors": "none", "s": 24},
    {"color": GREEN, "s": 20, "alpha": 0.7, "marker": "D"},
)


def frontier_figure(title: str, evidence: Evidence, needed: float, trials: Mapping[str, Points]) -> Figure:
    """Points that lose far more accuracy than allowed are counted instead of drawn: the picture is of what one can choose.

    trials: by argmax within the budget, by argmax over it, with their rules.
    """
    found = evidence.validation
    highest = max([e.accuracy for e in found.values()] + [x for points in trials.values() for x, _ in points])
    leftmost = needed - 2 * max(highest - needed, 0.005)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()

        def scatter(points: Points, label: str, **look: Any) -> None:
            shown = [(100 * x, 100 * y) for x, y in points if x >= leftmost]
            label += f" ({len(points) - len(shown)} further left)" if len(shown) < len(points) else ""
            if points:
                axes.scatter(*zip(*shown, strict=True) if shown else ([], []), label=label, zorder=3, **look)

        names = {
            "before": ("your model, its rule at every strength", GREY),
            "after": ("the best trial, likewise", GREEN),
        }
        for side, decision in evidence.rules.items():
            scores = evidence.logits(side, "validation"), evidence.labels("validation")
            curve = frontier(*scores, decision.automatic(evidence.costs))
            kept = curve.accuracy >= leftmost
            label, colour = names[side]
            axes.plot(100 * curve.accuracy[kept], 100 * curve.mean_cost[kept], color=colour, linewidth=1.2, label=label)
        for (label, points), look in zip(trials.items(), LOOKS, strict=True):
            scatter(points, label, **look)
        for row, label, marker, size in (
            ("before", "your model by argmax", "s", 46),
            ("before + rule", "your model with its rule", "D", 34),
        ):
            scatter([(found[row].accuracy, found[row].mean_cost)], label, color=DARK, marker=marker, s=size)
        chosen = found[evidence.chosen]
        look = {"facecolors": "none", "edgecolors": RED, "s": 170, "linewidths": 2}
        scatter([(chosen.accuracy, chosen.mean_cost)], "chosen" + ", referring cases" * (chosen.charged > 0), **look)
        axes.axvline(100 * needed, color=RED, linewidth=1, linestyle="--")
        axes.text(100 * needed, 1, "budget ", color=RED, ha="right", va="top", transform=axes.get_xaxis_transform())
        axes.set(xlabel="accuracy on validation (%)", ylabel="cost per 100 predictions, on validation", title=title)
        axes.legend(fontsize=8)
    return figure
