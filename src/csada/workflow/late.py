"""Labels that come after the decisions: the truth, and a re-calibration that is offered, never applied silently."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.classifier import Classifier
from csada.costs import did_you_mean
from csada.decisions import CALIBRATIONS, Scaling, as_array, choose_calibration, cross_fitted, fit_calibration
from csada.decisions.calibration import CLEAR, FEWEST
from csada.decisions.shift import LEAST
from csada.errors import InputError
from csada.evidence import side_of
from csada.files import StrPath
from csada.folders import reserved
from csada.logbook import Decisions, Key
from csada.rows import as_written, read_rows

LABELLED = 100_000  # decisions that a re-calibration is fitted on, at most

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


@dataclass
class Late:
    """Labels that came later, by what they name a case."""

    path: Path
    column: int  # of the keys in a log: 0 input, 1 id
    labels: dict[str, int]
    found: int = 0

    @classmethod
    def read(cls, path: Path, classes: Sequence[str]) -> Late:
        rows = read_rows(path)
        _, header = next(rows, (0, []))
        keys = [name for name in ("input", "id") if name in header]
        if not keys or "label" not in header:
            raise InputError(f"{path} has the columns {', '.join(header)}; label is needed, and input or id")
        key, label = header.index(keys[0]), header.index("label")
        labels: dict[str, int] = {}
        for line, row in ((line, [*map(as_written, row)]) for line, row in rows):
            if len(row) != len(header):
                raise InputError(f"{path}, line {line}: {len(row)} values; the header has {len(header)} columns")
            name = row[label]
            if name not in classes:
                raise InputError(f"{path}, line {line}: unknown class {name!r}{did_you_mean(name, classes)}")
            number = list(classes).index(name)
            if labels.setdefault(row[key], number) != number:
                raise InputError(
                    f"{path}, line {line}: {row[key]} has two labels, {classes[labels[row[key]]]} and {name}"
                )
        return cls(path, 0 if keys[0] == "input" else 1, labels)

    def of(self, found: Decisions) -> Array:
        """[n]: the number of the class, -1 where no label came."""
        truth = np.array([self.labels.get(keys[self.column] or "", -1) for keys in found.keys], np.int64)
        self.found += int((truth >= 0).sum())
        return truth

    def notes(self) -> Iterator[str]:
        yield f"{len(self.labels):,} labels of {self.path} belong to {self.found:,} logged decisions"
        if not self.found:
            name = ("input", "id")[self.column]
            yield f"no label belongs to a decision: the column {name!r} must hold what the log has as {name!r}"


# -- re-calibration: offered, never applied silently -----------------------------------------------------


@dataclass
class Labelled:
    """Each input once: the same one in two folds would flatter any calibration."""

    probabilities: list[Array] = field(default_factory=list)
    truth: list[Array] = field(default_factory=list)
    seen: set[Key] = field(default_factory=set)

    def add(self, found: Decisions, truth: Array) -> None:
        names = [(given, None) if given else (None, name) for given, name in found.keys]
        new = []
        for i in np.flatnonzero(truth >= 0):
            if names[i] not in self.seen:
                self.seen.add(names[i])
                new.append(i)
        if sum(map(len, self.truth)) < LABELLED:
            self.probabilities.append(found.probabilities[new])
            self.truth.append(truth[new])

    def offer(self) -> Offer | None:
        """The simplest calibration that is clearly better than what the model has."""
        n = sum(map(len, self.truth))
        if n < FEWEST:
            return None
        scores, truth = np.log(np.maximum(np.concatenate(self.probabilities), LEAST)), np.concatenate(self.truth)
        rows = np.arange(n)
        kind = choose_calibration(scores, truth, CALIBRATIONS)
        before, after = -scores[rows, truth], -cross_fitted(scores, truth, kind)[rows, truth]
        gain = before - after
        if gain.mean() <= CLEAR * gain.std() / math.sqrt(n):
            return None
        return Offer(n, kind, float(before.mean()), float(after.mean()), *fit_calibration(scores, truth, kind))


def recalibrate(model: StrPath, log: StrPath, offer: Offer | None, out: Path, *, trust: bool = False) -> Path:
    """The classifier with the calibration that is offered, in a new folder."""
    if offer is None:
        raise InputError(
            f"nothing is written to {out}: no {FEWEST} late labels (--labels) show that another calibration is better"
        )
    classifier = Classifier.load(model, trust=trust)
    decision = classifier.decision
    assert classifier.costs is not None and classifier.evidence is not None  # else there was nothing to compare with
    weights, bias = decision.automatic(classifier.costs).affine
    matrix = np.eye(len(bias)) if offer.scaling is None else offer.scaling.matrix
    more = np.zeros(len(bias)) if offer.scaling is None else as_array(offer.scaling.bias)
    weights, bias = weights @ matrix / offer.temperature, bias @ matrix / offer.temperature + more
    scaling = Scaling(tuple(map(tuple, weights.tolist())), tuple(bias.tolist()))
    new = replace(decision, temperature=1.0, scaling=scaling, priors=None)
    evidence, side = classifier.evidence, side_of(classifier.evidence.chosen)
    arrays = {name: values for name, values in evidence.arrays.items() if name != f"{side}_held_out"}
    evidence = replace(evidence, rules={**evidence.rules, side: new}, chosen=f"{side} + rule", arrays=arrays)
    told = (
        f"# Re-calibrated\n\nFrom {model} ({classifier.fingerprint}), with {offer.labelled:,} labelled decisions of "
        f"{log}.\n\n"
        f"Cross-entropy on folds that did not fit it: {offer.before:.4f} before, {offer.after:.4f} now ({offer.kind} "
        "calibration). Weights, costs and the rule's strength are unchanged. The report's numbers are of the old validation "
        "and test samples under the new calibration: judge it on new data with csada evaluate.\n"
    )
    with reserved(out) as folder:
        replace(classifier, decision=new, evidence=evidence).save(folder, told)
    return out
