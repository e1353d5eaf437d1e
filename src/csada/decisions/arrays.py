"""Scores, labels and probabilities as arrays, checked on the way in. A torch tensor goes in and a torch tensor comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.errors import InputError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def as_array(values: Any) -> Floats:
    """Any array or tensor, on any device, as float64."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def like(result: Labels, given: Any) -> Any:
    """A tensor where a tensor was given, on its device."""
    if hasattr(given, "detach"):
        import torch

        return torch.from_numpy(result).to(given.device)
    return result


def checked_logits(values: Any, classes: int | None = None) -> Floats:
    scores = as_array(values)
    if scores.ndim != 2 or (classes is not None and scores.shape[1] != classes):
        needed = "(samples, classes)" if classes is None else f"(samples, {classes})"
        raise InputError(f"scores of shape {scores.shape}; {needed} is needed: give one column per class")
    if not np.isfinite(scores).all():
        i = int(np.argwhere(~np.isfinite(scores))[0, 0])
        raise InputError(f"the scores of sample {i} are {scores[i].tolist()[:10]}; check the model and its inputs")
    return scores


def labelled(logits: Any, labels: Any, classes: int | None = None) -> tuple[Floats, Labels]:
    scores, truth = checked_logits(logits, classes), as_array(labels).astype(np.int64)
    if len(scores) == 0 or truth.shape != (len(scores),):
        raise InputError(f"{len(scores)} rows of logits and {truth.size} labels; a fit needs one label per row")
    if not (truth.min() >= 0 and truth.max() < scores.shape[1]):
        bad = truth[(truth < 0) | (truth >= scores.shape[1])][0]
        raise InputError(f"label {bad} is out of range; the logits score {scores.shape[1]} classes, counted from 0")
    return scores, truth


def checked_probabilities(values: Any, what: str = "probabilities") -> Floats:
    """Rows that sum to one, to within what half precision loses."""
    rows = as_array(values)
    sums = rows.sum(axis=-1)
    bad = ~((rows >= 0).all(axis=-1) & (np.abs(sums - 1) <= 2e-3))
    if bad.any():
        where = f" of sample {int(np.flatnonzero(bad)[0])}" if rows.ndim == 2 else ""
        row = rows[bad][0] if rows.ndim == 2 else rows
        raise InputError(
            f"the {what}{where} are {np.round(row, 4).tolist()[:10]} and sum to {row.sum():.4g}; "
            f"they must be zero or more and sum to 1 (softmax turns logits into probabilities)"
        )
    return rows
