"""One HTML page in which an expert looks at a model's mistakes and says what they cost. It needs no server and no network.

Everything that the page computes (the rule, the scale, the merge) is in review.js; its data are plain JSON, and base64 where
there are many numbers or images. A class name is only ever text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from csada.costs import REFERRED, CostMatrix, Pair
from csada.decisions import TIE
from csada.decisions.answers import FORMAT
from csada.decisions.elicit import DIGITS, FACTOR
from csada.errors import InputError
from csada.report.page import render
from csada.report.sections import moment


@dataclass(frozen=True)
class Review:
    """Validation samples as the page holds them."""

    data: str
    model: str  # fingerprint of the classifier
    costs: CostMatrix  # to begin with
    pairs: Sequence[Pair]  # to ask about
    probabilities: NDArray[np.float32]  # [N, K], calibrated
    labels: NDArray[np.int64]
    decided: NDArray[np.int64]  # [N]: what the classifier predicts today
    names: Sequence[str]  # [N]: files or rows
    strength: float = 1.0  # of the rule that the page computes
    images: Sequence[bytes] = ()  # [N] encoded, or none
    side: int = 0  # pixels of the longer side of the largest image
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()  # [N] of a table, or none
    started: str = ""

    def __post_init__(self) -> None:
        if "*" in self.costs.classes:
            raise InputError("a class is named '*', which means every class in a list of costs; rename that class")

    @cached_property
    def contains(self) -> str:
        """What somebody who has the file can see in it."""
        n, what = len(self.labels), "names of files or rows"
        shown = [f"{n:,} thumbnails of validation images, {self.side} pixels at most"] if self.images else []
        shown += [f"{n:,} rows of the validation part with {len(self.columns)} columns"] if self.rows else []
        none = "" if shown else f" of {n:,} validation samples, but neither images nor values"
        return f"{', '.join([*shown, what])}, labels and the model's probabilities{none}"


def page(review: Review) -> str:
    facts: dict[str, Any] = {
        **{name: getattr(review, name) for name in ("data", "model", "strength", "pairs", "columns", "rows", "names")},
        "classes": review.costs.classes,
        "start": review.costs.values.tolist(),
        "referral": review.costs.referral_cost,
        "labels": review.labels.tolist(),
        "decided": review.decided.tolist(),
        "constants": {"TIE": TIE, "FACTOR": FACTOR, "DIGITS": DIGITS, "FORMAT": FORMAT, "REFERRED": REFERRED},
    }
    return render(
        "review.html.j2",
        title=review.data,
        contains=review.contains,
        samples=len(review.labels),
        started=moment(review.started) if review.started else "",
        program=Markup((Path(__file__).parent / "review.js").read_text(encoding="utf-8")),
        # inside <script>: no letter of it can end that element, and all of it is ASCII
        facts=Markup(json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c")),
        probabilities=_base64(np.ascontiguousarray(review.probabilities, "<f4").tobytes()),
        images=Markup("\n").join(map(_base64, review.images)),
        kind="png" if review.images and review.images[0].startswith(b"\x89PNG") else "jpeg",
    )


def _base64(content: bytes) -> Markup:
    return Markup(base64.b64encode(content).decode())
