"""One HTML page of what two versions decide differently: counts, costs, and pictures of the samples that change hands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from csada.report.page import render
from csada.report.sections import picture

PICTURED = 48


class Changed(NamedTuple):
    """A sample that is decided differently. image: [H, W, 3] bytes, None where there is none."""

    name: str
    truth: str
    old: str
    new: str
    image: Any = None


def difference_page(
    title: str,
    verdict: str,
    moves: Sequence[tuple[str, str, int]],
    rows: Sequence[tuple[str, ...]],
    cards: Sequence[Changed],
) -> str:
    """moves: old decision, new decision, count. rows: name, old value, new value. cards: at most PICTURED are shown."""
    shown = [
        card._asdict() | {"image": None if card.image is None else picture(card.image)} for card in cards[:PICTURED]
    ]
    told: dict[str, Any] = {"title": title, "verdict": verdict, "moves": moves, "rows": rows, "cards": shown}
    return render("difference.html.j2", left=len(cards) - len(shown), **told)
