"""Labels that come after the decisions: the truth, and a re-calibration that is offered, never applied silently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from csada.classifier import Classifier
from csada.costs import did_you_mean
from csada.decisions import CALIBRATIONS, Scaling, as_array, choose_calibration, cross_fitted, fit_calibration
from csada.decisions.calibration import CLEAR, FEWEST
from csada.errors import InputError
from csada.files import StrPath
from csada.logbook import PLACES, Decisions, key_of
from csada.rows import records
from csada.workflow.versions import as_given, save_version

LABELLED = 20_000  # decisions that a re-calibration is fitted on, at most: the newest
NAMES = ("input", "id")  # what names a case, as in Decisions.keys
LOWEST = -PLACES * math.log(10)  # of the logarithm of a probability: what a log keeps of one

Array = NDArray[Any]


@dataclass(frozen=True)
class Offer:
    """A calibration that fits the labelled decisions better: cross-entropies on folds that did not fit it."""

    labelled: int
    kind: str
    before: float
    after: float
    temperature: float
    scaling: Scaling | None
    samples: tuple[Array, Array] | None = field(default=None, repr=False, compare=False)  # centred scores, and truth


@dataclass
class Late:
    """Labels that came later. A row counts by its input where it has one, else by its id."""

    path: Path
    labels: tuple[dict[int, int], dict[int, int]]  # by `key_of` inputs and of ids: the number of the class
    unknown: int = 0  # rows without a label
    unclear: int = 0  # ids of several cases
    found: int = 0

    @classmethod
    def read(cls, path: Path, classes: Sequence[str]) -> Late:
        header, rows = records(path)
        known = [name for name in NAMES if name in header]
        if not known or "label" not in header:
            found = ", ".join(header) or "none"
            raise InputError(f"{path} has the columns {found}; label is needed, and input or id")
        late, numbers = cls(path, ({}, {})), {name: number for number, name in enumerate(classes)}
        for line, row in rows:
            column = next((name for name in known if row[name]), None)
            if column is None:
                needed = " and ".join(known)
                raise InputError(f"{path}, line {line}: {needed} is empty; name the case, or remove the line")
            key, name = row[column], row["label"]
            if not name:  # not known yet
                late.unknown += 1
                continue
            if name not in numbers:
                raise InputError(f"{path}, line {line}: unknown class {name!r}{did_you_mean(name, classes)}")
            if (first := late.labels[NAMES.index(column)].setdefault(key_of(key), numbers[name])) != numbers[name]:
                raise InputError(f"{path}, line {line}: {key} has two labels, {classes[first]} and {name}")
        return late

    def drop_unclear(self, batches: Iterable[Decisions]) -> None:
        """Ids that name different inputs in the log, as where the rows of every batch are counted from 0, have no label."""
        _, by_id = self.labels
        parts = [each.keys[[key in by_id for key in each.keys[:, 1].tolist()]] for each in batches] if by_id else []
        keys = np.concatenate([np.empty((0, 2), np.int64), *parts])
        keys = keys[np.lexsort(keys.T)]
        again = keys[1:, 1] == keys[:-1, 1]
        other = (keys[1:, 0] != keys[:-1, 0]) | (keys[1:, 0] == 0)  # without an input nobody knows
        for key in (twice := np.unique(keys[1:, 1][again & other])).tolist():
            del by_id[key]
        self.unclear = len(twice)

    def of(self, found: Decisions) -> Array:
        """[n]: the number of the class, -1 where no label came."""
        by_input, by_id = (
            np.array([known.get(key, -1) for key in keys], np.int64)
            for known, keys in zip(self.labels, found.keys.T.tolist(), strict=True)
        )
        if ((by_input >= 0) & (by_id >= 0) & (by_input != by_id)).any():
            raise InputError(f"{self.path} has two labels for one decision: one by its input, another by its id")
        truth = np.where(by_input >= 0, by_input, by_id)
        self.found += int((truth >= 0).sum())
        return truth

    def notes(self, repeated: int) -> Iterator[str]:
        """repeated: decisions on a case that another decision was on before."""
        given = sum(map(len, self.labels)) + self.unclear
        again = f"; {repeated:,} of these repeat an earlier one on the same case" * (repeated > 0)
        yield f"{given:,} labels of {self.path} belong to {self.found:,} logged decisions{again}"
        if self.unknown:
            rows = "1 row of {} has" if self.unknown == 1 else f"{self.unknown:,} rows of {{}} have"
            yield f"{rows.format(self.path)} no label yet"
        if self.unclear:
            yield (
                f"left out {self.unclear:,} labels of {self.path}: their id names several decisions, on different inputs or "
                "without one; give each case an id of its own, or name it by its input"
            )
        if not self.found:
            names = " or ".join(repr(name) for name, known in zip(NAMES, self.labels, strict=True) if known) or "'id'"
            yield f"no label belongs to a decision: the column {names} must hold what the log has under that name"


# -- re-calibration: offered, never applied silently -----------------------------------------------------


def centred(scores: Array) -> Array:
    """Without what is added to all scores of a row: it changes no probability, and a log does not have it."""
    return np.asarray(scores - scores.mean(-1, keepdims=True))


@dataclass
class Labelled:
    """Each case once: the same one in two folds would flatter any calibration."""

    probabilities: list[Array] = field(default_factory=list)
    truth: list[Array] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    repeated: int = 0

    def add(self, found: Decisions, truth: Array) -> None:
        names = np.where(found.keys[:, 0] != 0, found.keys[:, 0], found.keys[:, 1]).tolist()
        new = []
        for i in np.flatnonzero(truth >= 0).tolist():
            if names[i] in self.seen:
                self.repeated += 1
            else:
                self.seen.add(names[i])
                new.append(i)
        if some := new[-LABELLED:]:
            self.probabilities.append(found.probabilities[some])
            self.truth.append(truth[some])
        while sum(map(len, self.truth[1:])) >= LABELLED:
            del self.probabilities[0], self.truth[0]

    def offer(self) -> Offer | None:
        """The simplest calibration that is clearly better than what the model has."""
        n = min(sum(map(len, self.truth)), LABELLED)
        if n < FEWEST:
            return None
        truth, rows = np.concatenate(self.truth)[-n:], np.arange(n)
        p = np.concatenate(self.probabilities)[-n:].astype(float)
        scores = centred(np.log(np.maximum(p, math.exp(LOWEST))))
        kind = choose_calibration(scores, truth, CALIBRATIONS)
        before, after = (
            -each[rows, truth] for each in (log_softmax(scores, axis=1), cross_fitted(scores, truth, kind))
        )
        gain = before - after
        if gain.mean() <= CLEAR * gain.std() / math.sqrt(n):
            return None
        facts = float(before.mean()), float(after.mean()), *fit_calibration(scores, truth, kind)
        return Offer(n, kind, *facts, (scores, truth))


def recalibrate(model: StrPath, log: StrPath, offer: Offer | None, out: Path, *, trust: bool = False) -> Path:
    """The classifier with the calibration that is offered, in a new folder.

    The labelled decisions become its validation samples, so that later decisions are compared with them.
    """
    if offer is None or offer.samples is None:
        raise InputError(
            f"nothing is written to {out}: no {FEWEST} late labels (--labels) show that another calibration is better"
        )
    classifier = Classifier.load(model, trust=trust)
    decision = classifier.decision
    assert classifier.costs is not None and classifier.evidence is not None  # else there was nothing to compare with
    weights, bias = decision.automatic(classifier.costs).affine
    weights, bias = centred(weights), centred(np.maximum(bias, LOWEST))  # logits @ weights + bias: centred scores
    scores, truth = offer.samples
    logits = (scores - bias) @ np.linalg.pinv(weights, 1e-10)  # of the network, up to what no calibration sees
    if not np.allclose(logits @ weights + bias, scores, atol=1e-3):
        raise InputError(
            f"{model} has a calibration that cannot be undone; run csada fit with the labelled cases instead"
        )
    matrix = np.eye(len(bias)) if offer.scaling is None else offer.scaling.matrix
    more = np.zeros(len(bias)) if offer.scaling is None else as_array(offer.scaling.bias)
    weights, bias = weights @ matrix / offer.temperature, bias @ matrix / offer.temperature + more
    scaling = Scaling(tuple(map(tuple, weights.tolist())), tuple(bias.tolist()))
    new = as_given(classifier, replace(decision, temperature=1.0, scaling=scaling, priors=None), (logits, truth))
    why = (
        f"{offer.labelled:,} labelled decisions of {Path(log).name}; cross-entropy on folds that did not fit the {offer.kind} "
        f"calibration: {offer.before:.4f} before, {offer.after:.4f} now. They are the validation samples from here on, with "
        "which csada monitor compares; limits were not tested again"
    )
    return save_version(classifier, new, model, out, why=why)
