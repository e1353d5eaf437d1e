"""From a classifier and data to the page of `csada review`: its validation samples, as an expert may look at them."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import numpy as np
import torch
from PIL import Image

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data.splits import Part, Splits
from csada.decisions import Decision, fit_calibration
from csada.decisions.elicit import choose_pairs
from csada.errors import InputError
from csada.evaluation import predict_logits
from csada.models.saved import fingerprint
from csada.report.review import Review
from csada.sample import Sample
from csada.workflow.probe import is_pictures, pictures

CHUNK = 256  # images at once
SMALL = 32  # pixels: images up to this are kept as they are


def review(
    classifier: Classifier,
    splits: Splits,
    costs: CostMatrix | None = None,
    *,
    pairs: int = 12,
    thumbnails: int = 96,
    images: bool = True,
    seen: str = "refuse",
) -> Review:
    """costs: to begin with; by default the classifier's own, or 1 for every mistake.

    images: False leaves out the images, or the values of a table's rows. Cases that the classifier refers to a person are
    shown as it would decide them itself.
    """
    adapted = classifier.adapt(splits, every_class=False)
    part = classifier.unseen(adapted, "validation", seen) if len(adapted.validation) else adapted.validation
    if not len(part):
        raise InputError(
            f"{splits.name} has no validation samples to look at, or none that the model was not trained on"
        )
    own = classifier.costs or CostMatrix.from_pairs(classifier.classes, {})
    start = own if costs is None else costs.ordered(classifier.classes)
    logits, labels = (each.numpy() for each in predict_logits(classifier.network, part))
    decision = classifier.decision
    if (decision.temperature, decision.scaling, decision.strength) == (1.0, None, 0.0):  # trained, but not fitted
        temperature, scaling = fit_calibration(logits, labels, "temperature")
        decision = Decision(temperature, scaling, decision.priors)
    decided = decision.automatic(own).decide(logits)
    shown, side = thumbnails_of(part, thumbnails) if images and is_pictures(part) else ((), 0)
    # files, ids, or the numbers of a table's rows
    names = part.names or [f"sample {i + 1}" for i in range(len(part))]
    columns, rows = table_of(part, classifier.input) if images and classifier.input.columns else ((), [])
    return Review(
        splits.name,
        fingerprint(classifier.members, classifier.classes),  # costs and rule are what a review changes
        start,
        choose_pairs(decided.probabilities, labels, start, pairs),
        decided.probabilities.astype(np.float32),
        labels,
        decided.chosen,
        tuple(f"row {name}" if name.isdecimal() else name for name in names),
        decision.strength or 1.0,
        shown,
        side,
        columns,
        rows,
        f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
    )


def thumbnails_of(part: Part, side: int) -> tuple[tuple[bytes, ...], int]:
    """Each image encoded, at most `side` pixels, and how large the largest is. Small ones keep every pixel (PNG)."""
    form = "PNG" if max(part.x.shape[2:]) <= min(side, SMALL) else "JPEG"
    encoded, largest = [], 0
    for first in range(0, len(part), CHUNK):
        index = torch.arange(first, min(first + CHUNK, len(part)))
        for pixels in pictures(part.batch(index).x, part.normalization):
            image = Image.fromarray(pixels)
            image.thumbnail((side, side), Image.Resampling.LANCZOS)
            image.save(file := io.BytesIO(), form, optimize=True, **({"quality": 80} if form == "JPEG" else {}))
            encoded.append(file.getvalue())
            largest = max(largest, *image.size)
    return tuple(encoded), largest


def table_of(part: Part, sample: Sample) -> tuple[tuple[str, ...], list[list[str]]]:
    """The columns of a table and its rows as text; a missing value, or a category that training lacks, is empty."""
    x, at = part.x.numpy(), sample.numbers
    cells = [["" if np.isnan(value) else f"{value:.6g}" for value in values] for values in x[:, :at].T]
    for known in sample.categories:
        found = np.nan_to_num(x[:, at : at + len(known)])
        cells.append([known[int(row.argmax())] if row.any() else "" for row in found])
        at += len(known)
    return sample.columns or (), [list(row) for row in zip(*cells, strict=True)]
