"""One look for every figure: colours that the colour-blind tell apart, and files that are never half written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # figures are files here; no screen is needed

from matplotlib.figure import Figure

from csada.files import whole

RED, GREEN, BLUE = "#D55E00", "#009E73", "#0072B2"  # Okabe and Ito
GREY, DARK = "#999999", "#222222"
METHOD_COLOURS = ("#555555", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "svg.hashsalt": "csada",  # the same figure, the same file
    "svg.fonttype": "none",
}


def save(
    figure: Figure, path: str | os.PathLike[str], formats: tuple[str, ...] = ("png", "svg"), **metadata: str
) -> list[Path]:
    """Write the figure beside `path` in each format; the paths written."""
    written = []
    for suffix in formats:
        target = Path(path).with_suffix(f".{suffix}")
        about = metadata | ({"Date": None} if suffix == "svg" else {})
        with whole(target) as partial, matplotlib.rc_context(STYLE):
            figure.savefig(partial, format=suffix, dpi=150, metadata=about)
        written.append(target)
    return written
