"""Versions of a classifier: a rule for other class frequencies, what two versions decide differently, and CHANGES.md.

A version is a folder of its own. Its CHANGES.md holds what changed, why and on what evidence, from the first version on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csada.classifier import Classifier
from csada.costs import CostMatrix, did_you_mean
from csada.data.splits import PARTS, Splits
from csada.decisions import Decision, prior_ratio
from csada.decisions.arrays import Floats, Labels
from csada.errors import InputError
from csada.evidence import HELD_OUT, side_of
from csada.files import StrPath
from csada.folders import CHANGES, CONFIG, reserved
from csada.metrics import REFER, Evaluation, Interval, bootstrap_paid
from csada.reading import read_text
from csada.report.card import escaped, verdict
from csada.report.difference import PICTURED, Changed
from csada.rows import decimal_sign, number, records
from csada.workflow.probe import is_pictures, pictures
from csada.workflow.runs import environment

SHARES = ("frequency", "count")  # names of the column of numbers
REFERRED = "(a person)"
TITLE = "# Changes\n\nThe first version is at the top, the newest at the end.\n"


# -- class frequencies -----------------------------------------------------------------------------


def read_priors(path: str | Path, classes: Sequence[str]) -> Floats:
    """[K]: the class frequencies of a CSV file with the columns class and frequency (or count)."""
    header, rows = records(path := Path(path))
    column = next((name for name in SHARES if name in header), None)
    if "class" not in header or column is None:
        raise InputError(
            f"{path} has the columns {', '.join(header) or 'none'}; class and {', '.join(SHARES)} are known"
        )
    decimal, found = decimal_sign(path), dict[str, float]()
    for line, row in rows:
        name, text = row["class"], row[column]
        if name not in classes or name in found:
            why = "is there already" if name in found else f"is unknown{did_you_mean(name, classes)}"
            raise InputError(f"{path}, line {line}: class {name!r} {why}")
        try:
            found[name] = number(line, column, text, decimal)
        except InputError as error:
            raise InputError(f"{path}, {error}") from None
        if found[name] < 0:
            raise InputError(f"{path}, line {line}: {column} is {text}; zero or more is needed")
    if missing := [name for name in classes if name not in found]:
        raise InputError(f"{path} lacks {', '.join(missing[:3])}; give each class, 0 for one that does not come")
    values = np.array([found[name] for name in classes])
    total = float(values.sum())
    if total == 0 or (column != "count" and abs(total - 1) > 0.01):
        raise InputError(
            f"{path}: the column {column} sums to {total:.4g}; it must sum to 1 (a count may be any number)"
        )
    return np.asarray(values / total)


def frequencies_of(splits: Splits) -> Floats:
    """[K] of training and validation: those that the calibrated probabilities are for."""
    counts = sum(
        np.bincount(part.y.numpy(), minlength=len(splits.classes)) for part in (splits.train, splits.validation)
    )
    return np.asarray(counts / np.sum(counts))


def reweighted(classifier: Classifier, own: Floats, deployment: Floats) -> Classifier:
    """The classifier with its rule for the class frequencies of deployment; calibration and strength stay as chosen.

    own: the frequencies that it was fitted at. Its evidence keeps all scores, but says what the new rule does, at the own
    frequencies of the data: `Difference` has the costs at those of deployment.
    """
    decision = replace(classifier.decision, priors=tuple(prior_ratio(own, deployment).tolist()))
    evidence = classifier.evidence
    if evidence is not None:
        side = side_of(evidence.chosen)
        arrays = {k: v for k, v in evidence.arrays.items() if k != f"{side}_held_out"}  # decisions of the former rule
        rules = evidence.rules | {side: decision}
        evidence = replace(evidence, rules=rules, chosen=f"{side} + rule", arrays=arrays)
    return replace(classifier, decision=decision, evidence=evidence)


def as_given(classifier: Classifier, decision: Decision, labelled: tuple[Any, Any] | None = None) -> Classifier:
    """The same networks with another decision, and evidence of them alone: the model as it was, and its rule.

    labelled: logits and truth of samples that take the place of validation; what was said of limits went with that.
    """
    evidence = classifier.evidence
    assert evidence is not None
    side = side_of(evidence.chosen)
    logits = {part: evidence.logits(side, part) for part in HELD_OUT}
    arrays = {k: v for k, v in evidence.arrays.items() if not k.startswith(("before_", "after_"))}
    limits, samples = evidence.limits, evidence.samples
    if labelled is not None:
        logits["validation"], arrays["validation_labels"] = np.asarray(labelled[0], np.float32), labelled[1]
        arrays.pop("limits_tested", None)
        limits, samples = None, {**samples, "validation": len(labelled[1])}
    evidence = replace(
        evidence,
        arrays=arrays | {f"before_{part}": values for part, values in logits.items()},
        rules={"before": decision},
        chosen="before + rule",
        architecture=classifier.architecture,
        passes=classifier.passes,
        method="none",
        samples=samples,
        limits=limits,
        history=(),
        admissions=(),
        environment=environment(),
        started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return replace(classifier, decision=decision, evidence=evidence)


# -- two versions on the same samples --------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """What two versions decide on the same samples. Costs and accuracy are of their answers, as if nobody were asked.

    frequencies: [K], at which costs are counted; None: those of the samples.
    """

    costs: CostMatrix
    labels: Labels
    old: Labels  # REFER where a person decides
    new: Labels
    answers: tuple[Labels, Labels]  # of the rules alone
    frequencies: Floats | None = None

    @classmethod
    def of(
        cls, pair: Sequence[tuple[Decision, Any]], costs: Sequence[CostMatrix], labels: Any, **more: Any
    ) -> Difference:
        """pair: each version's decision and its logits. costs: each version's own; the new one's count."""
        both = [(d, c, logits) for (d, logits), c in zip(pair, costs, strict=True)]
        old, new = (np.asarray(d.rule(c)(logits)) for d, c, logits in both)
        first, second = (np.asarray(d.automatic(c)(logits)) for d, c, logits in both)
        return cls(costs[-1], np.asarray(labels), old, new, (first, second), **more)

    @property
    def changed(self) -> Labels:
        """The samples that are decided differently, the largest change of cost first."""
        rows = np.flatnonzero(self.old != self.new)
        was, now = self.paid
        return rows[np.argsort(-np.abs(now - was)[rows], kind="stable")]

    @property
    def moves(self) -> list[tuple[str, str, int]]:
        """(old decision, new decision, how often), the most frequent first."""
        pairs = Counter(zip(self.old[self.changed].tolist(), self.new[self.changed].tolist(), strict=True))
        return [(self.name(a), self.name(b), n) for (a, b), n in pairs.most_common()]

    def name(self, k: int) -> str:
        return REFERRED if k == REFER else self.costs.classes[k]

    @cached_property
    def paid(self) -> tuple[Floats, Floats]:
        """[N] each: what every sample's answer cost, weighted so that their mean is at the frequencies."""
        weights = np.ones(len(self.labels))
        if self.frequencies is not None:
            own = np.bincount(self.labels, minlength=len(self.costs)) / max(len(self.labels), 1)
            known = own > 0  # nothing is known of a class without samples
            ratio = np.divide(self.frequencies, own, out=np.zeros(len(own)), where=known)
            weights = ratio[self.labels] / max(float(self.frequencies[known].sum()), 1e-12)
        was, now = (weights * self.costs.values[self.labels, answer] for answer in self.answers)
        return was, now

    @property
    def unknown(self) -> str:
        """The classes without samples that come in deployment, and how often."""
        if self.frequencies is None:
            return ""
        lost = np.flatnonzero((np.bincount(self.labels, minlength=len(self.costs)) == 0) & (self.frequencies > 0))
        names = ", ".join(self.name(k) for k in lost[:3]) + f" and {len(lost) - 3} more" * (len(lost) > 3)
        share = 100 * float(self.frequencies[lost].sum())
        return f" Without {names}, {share:.3g} % of the cases there: no sample of them was seen." * (len(lost) > 0)

    @property
    def evaluations(self) -> tuple[Evaluation, Evaluation]:
        """At the samples' own frequencies."""
        old, new = (Evaluation.of(self.labels, answer, self.costs) for answer in self.answers)
        return old, new

    @property
    def change(self) -> Interval:
        """The 95 % interval of the change in cost per 100 predictions: paired."""
        was, now = self.paid
        low, high = bootstrap_paid(now - was, "mean_cost")
        return Interval(100 * low, 100 * high)

    @property
    def verdict(self) -> str:
        (was, now), (low, high) = (100 * paid.mean() for paid in self.paid), self.change
        at = "the frequencies of deployment" if self.frequencies is not None else "the frequencies of the samples"
        sure = "beyond chance" if low > 0 or high < 0 else "not proven by these samples"
        old, new = self.evaluations
        return (
            f"{len(self.changed):,} of {len(self.labels):,} decisions differ. At {at}, the cost per 100 predictions goes from "
            f"{was:.2f} to {now:.2f}; the change, {now - was:+.2f} (95 %: {low:+.2f} to {high:+.2f}), is {sure}."
            f"{self.unknown} Accuracy at the frequencies of the samples "
            f"goes from {100 * old.accuracy:.2f} % to {100 * new.accuracy:.2f} %."
        )


def difference(old: Classifier, new: Classifier, splits: Splits, part: str, *, seen: str = "refuse") -> Difference:
    """On a part of the data ("all": on all)."""
    if old.classes != new.classes:
        raise InputError("the two classifiers have other classes, or these in another order; nothing can be compared")
    first, second = (each.scores(splits, part, seen=seen) for each in (old, new))
    if len(first.labels) != len(second.labels):
        raise InputError("with --seen drop the two are judged on different samples; give --seen keep, or newer data")
    pair = [(each.decision, scores.logits.numpy()) for each, scores in ((old, first), (new, second))]
    return Difference.of(pair, [*map(_costs, (old, new))], second.labels.numpy())


def _costs(classifier: Classifier) -> CostMatrix:
    return classifier.costs or CostMatrix.from_pairs(classifier.classes, {})


def changed_samples(classifier: Classifier, splits: Splits, part: str, found: Difference, seen: str) -> list[Changed]:
    """The samples that change hands; the first few with their picture, where they are images."""
    known = classifier.adapt(splits, every_class=False)
    names = PARTS if part == "all" else (part,)
    parts = [known.train if name == "train" else classifier.unseen(known, name, seen) for name in names]
    places = [(each, i) for each in parts for i in range(len(each))]
    cards = []
    for n, row in enumerate(found.changed.tolist()):
        each, i = places[row]
        image = None
        if n < PICTURED and is_pictures(each):
            (image,) = pictures(each.batch(torch.tensor([i])).x, each.normalization)
        truth, old, new = (found.name(int(values[row])) for values in (found.labels, found.old, found.new))
        cards.append(Changed(each.names[i] if each.names else f"sample {row}", truth, old, new, image))
    return cards


# -- CHANGES.md ------------------------------------------------------------------------------------


def changes(old: Classifier, new: Classifier, made_from: StrPath, *, why: str, deployment: Floats | None = None) -> str:
    """The text of CHANGES.md: what the old version's folder has there, and a section for the new one.

    deployment: [K], class frequencies at which costs are counted too.
    """
    before = Path(made_from).resolve()
    evidence = new.evidence
    if evidence is None:
        raise InputError("the new version has no evidence; csada fit makes it")
    side = side_of(evidence.chosen)
    pair = [(old.decision, evidence.logits("before")), (new.decision, evidence.logits(side))]
    found = [
        Difference.of(pair, [_costs(old), evidence.costs], evidence.labels(), frequencies=frequencies)
        for frequencies in ([None] if deployment is None else [deployment, None])
    ]
    lines = [
        f"\n## {evidence.started}\n",
        f"Made from {escaped(f'{before.name} ({old.fingerprint})')}. Why: {escaped(why)}.\n",
        "What changed:\n",
        *(f"- {line}" for line in _what(old, new, deployment)),
        "\nEvidence, on the test part of " + escaped(evidence.data) + ":\n",
        *(f"- {each.verdict}" for each in found),
        *(f"- {escaped(a)} -> {escaped(b)}: {n} sample{'s' * (n > 1)}" for a, b, n in found[0].moves[:10]),
        f"- {verdict(evidence)}",
    ]
    told = read_text(before / CHANGES).rstrip() + "\n" if (before / CHANGES).is_file() else TITLE
    return told + "\n".join(lines) + "\n"


def _what(old: Classifier, new: Classifier, deployment: Floats | None) -> list[str]:
    was, now = old.decision, new.decision
    lines = []
    if old.architecture != new.architecture:
        lines.append(f"networks: {escaped(old.architecture)}; now {escaped(new.architecture)}")
    if old.costs is None or new.costs is None or not np.array_equal(old.costs.values, new.costs.values):
        lines.append("the costs")
    numbers = {name: (getattr(was, name), getattr(now, name)) for name in ("temperature", "strength")}
    lines += [f"{name}: {a:.4g}; now {b:.4g}" for name, (a, b) in numbers.items() if a != b]
    if was.scaling != now.scaling:
        lines.append("the calibration of the scores")
    if was.priors != now.priors and deployment is not None:
        shares = (f"{escaped(n)} {100 * share:.3g} %" for n, share in zip(new.classes, deployment, strict=True))
        lines.append(f"class frequencies in deployment: {', '.join(shares)}")
    elif was.priors != now.priors and was.scaling == now.scaling:  # else the new calibration has them in it
        lines.append("class frequencies: those of the data again")
    return lines or ["nothing but the evidence"]


def check_new(out: Path) -> None:
    """A version never takes the place of another."""
    with reserved(out) as folder:  # and what a killed run left of it is removed
        if (folder / CONFIG).exists():
            raise InputError(f"{out} is there already; a new version gets a new folder")


def save_version(old: Classifier, new: Classifier, made_from: StrPath, out: Path, **told: Any) -> Path:
    """Into a new folder; made_from: the old one's. told: why, and deployment."""
    check_new(out)
    text = changes(old, new, made_from, **told)
    with reserved(out) as folder:
        new.save(folder, text)
    return out
