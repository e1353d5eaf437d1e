"""The search's picture: accuracy against cost on validation, what the budget allows, and what is recommended."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from csada.report.style import BLUE, DARK, GREEN, GREY, RED, STYLE


def frontier_figure(record: dict[str, Any]) -> Figure:
    """From tuning.json. Trials that were given up are not shown; hollow ones lose more accuracy than allowed.

    What loses far more is counted instead of drawn: the picture is of what there is to choose from.
    """
    advice, baseline = record["recommendation"], record["baseline"]
    judged = [trial["validation"] for trial in record["trials"] if trial["validation"] is not None]
    needed = 100 * advice["validation"]["needed_accuracy"]
    highest = 100 * max(j["argmax"]["accuracy"] for j in (baseline, *judged))
    leftmost = needed - 2 * max(highest - needed, 0.5)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()

        def line(curve: dict[str, list[float]], **look: Any) -> None:
            accuracy, cost = (100 * np.array(curve[key]) for key in ("accuracy", "cost"))
            shown = accuracy >= leftmost
            axes.plot(accuracy[shown], cost[shown], linewidth=1.2, **look)

        def points(found: list[dict[str, float]], label: str, colour: str, hollow: bool = False, **look: Any) -> None:
            shown = [(100 * p["accuracy"], 100 * p["cost"]) for p in found if 100 * p["accuracy"] >= leftmost]
            if found:
                label += f" ({len(found) - len(shown)} further left)" if len(shown) < len(found) else ""
                fill = "none" if hollow else colour
                axes.scatter(
                    *zip(*shown, strict=True) if shown else ([], []),
                    facecolors=fill,
                    edgecolors=colour,
                    label=label,
                    zorder=3,
                    **look,
                )

        line(baseline["curve"], color=GREY, label="your model, its rule at every strength")
        if advice["trial"] is not None:
            line(advice["curve"], color=GREEN, alpha=0.5, label="the recommended one, likewise")
        within = [j for j in judged if j["rule"] is not None]
        points([j["argmax"] for j in within], "trials by argmax", BLUE, s=24, alpha=0.7)
        points([j["argmax"] for j in judged if j not in within], "trials over the budget", BLUE, hollow=True, s=24)
        points([j["rule"] for j in within], "trials with their rule", GREEN, s=20, alpha=0.7, marker="D")
        points([baseline["argmax"]], "your model by argmax", DARK, s=46, marker="s")
        points([baseline["rule"]], "your model with its rule", DARK, s=34, marker="D")
        points([advice["validation"]["rule"]], "recommended", RED, hollow=True, s=170, linewidths=2)
        axes.axvline(needed, color=RED, linewidth=1, linestyle="--")
        axes.text(needed, 1, "budget ", color=RED, ha="right", va="top", transform=axes.get_xaxis_transform())
        axes.set(xlabel="accuracy on validation (%)", ylabel="cost a hundred predictions, on validation")
        axes.set_title(f"{record['method']}, {len(judged)} of {len(record['trials'])} trials finished")
        axes.legend(fontsize=8)
    return figure
