"""What a log of decisions says about a deployed classifier: period by period, without labels, and with those that came late."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.classifier import Classifier
from csada.costs import CostMatrix, did_you_mean
from csada.decisions import CALIBRATIONS, Scaling, as_array, choose_calibration, cross_fitted, fit_calibration
from csada.decisions.calibration import CLEAR, FEWEST
from csada.decisions.shift import LEAST, Change, Chunk, Estimate, Reference
from csada.errors import InputError
from csada.evidence import side_of
from csada.files import write_text
from csada.logbook import SKEW, Decisions, Key, Reading
from csada.manifest import Deployed, deployed
from csada.metrics import REFER, Evaluation, Interval
from csada.report.monitor import CHANGED
from csada.rows import read_rows

PAIRS = 5
LABELLED = 100_000  # decisions that a re-calibration is fitted on, at most
DAYS = {"day": 1, "week": 7}

Array = NDArray[Any]


@dataclass(frozen=True)
class Bounds:
    """What raises an alarm. A pair or a cost does so when its whole 95 % band is above the bound."""

    pair: Mapping[tuple[str, str], float]  # (truth, predicted): of the cases of that class
    cost_rise: float | None = None  # against validation: 0.5 is half as much again
    frequency_change: float | None = None  # the share of cases whose class would have to change
    change: bool = True  # beyond frequencies


@dataclass(frozen=True)
class PairCount:
    truth: str
    predicted: str
    cost: float
    expected: float
    low: float
    high: float
    rate: float  # of the cases of that class
    rate_low: float
    counted: int | None = None  # among the decisions whose label came


@dataclass(frozen=True)
class Truth:
    """What the labels that came say."""

    labelled: int
    accuracy: float
    mean_cost: float
    interval: Interval


@dataclass(frozen=True)
class Period:
    name: str
    first: str  # moments
    last: str
    decisions: int
    referred: int = 0
    cost: Estimate | None = None  # of a decision; None: too few decisions
    pairs: tuple[PairCount, ...] = ()
    frequencies: tuple[float, ...] = ()
    frequencies_by_counts: tuple[float, ...] = ()
    moved: float = 0.0  # total variation from validation's frequencies
    change: Change | None = None
    truth: Truth | None = None
    alarms: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        return self.change is not None and not self.change.found


@dataclass(frozen=True)
class Offer:
    """A calibration that fits the labelled decisions better: cross-entropies on folds that did not fit it."""

    labelled: int
    kind: str
    before: float
    after: float
    temperature: float
    scaling: Scaling | None


@dataclass(frozen=True)
class Monitored:
    model: str
    fingerprint: str
    log: str
    classes: tuple[str, ...]
    validation_cost: float
    validation_frequencies: tuple[float, ...]
    lines: int
    skipped: dict[str, int]
    notes: tuple[str, ...]
    periods: tuple[Period, ...]
    offer: Offer | None = None

    @property
    def newest(self) -> Period | None:
        """The last period with enough decisions; its alarms count."""
        return next((period for period in reversed(self.periods) if period.cost is not None), None)


def monitor(
    folder: str | os.PathLike[str],
    log: str | os.PathLike[str],
    every: str = "1000",
    bounds: Bounds | None = None,
    labels: str | os.PathLike[str] | None = None,
) -> Monitored:
    """every: day, week or a number of decisions. labels: a CSV file with the columns `input` or `id`, and `label`."""
    if every not in DAYS and not (every.isdecimal() and int(every) >= FEWEST):
        raise InputError(f"--every is {every!r}; give day, week or a number of decisions, {FEWEST} or more")
    known = deployed(folder)
    reference, bounds = _reference(folder, known), bounds or Bounds({})
    for name in (name for pair in bounds.pair for name in pair):
        if name not in known.classes:
            raise InputError(f"a bound on a pair names the unknown class {name!r}{did_you_mean(name, known.classes)}")
    late = None if labels is None else _Late.read(Path(labels), known.classes)
    reading = Reading(Path(log), known.fingerprint, known.classes, keys=late is not None)
    sizes = _by_count(reading.batches(), int(every)) if every.isdecimal() else _by_days(reading.batches(), DAYS[every])
    costs = CostMatrix(reference.costs, known.classes)
    periods, offered = [], _Labelled()
    for name, found in sizes:
        truth = None if late is None else late.of(found)
        if truth is not None:
            offered.add(found, truth)
        periods.append(_period(name, found, reference, costs, bounds, truth))
    _refuse_empty(reading, folder)
    return Monitored(
        os.fspath(folder),
        known.fingerprint,
        os.fspath(log),
        known.classes,
        float(_paid(reference.truth, reference.predicted, reference).mean()),
        tuple(reference.frequencies.tolist()),
        reading.lines,
        dict(reading.skipped),
        (*_notes(reading), *(late.notes() if late else ())),
        tuple(periods),
        offered.offer(),
    )


def _reference(folder: str | os.PathLike[str], known: Deployed) -> Reference:
    """The validation samples that the folder keeps, decided as the saved classifier decides."""
    evidence, decision = known.evidence, known.decision
    if evidence is None:
        raise InputError(
            f"{folder} holds no validation scores, which decisions are compared with; run csada fit (--epochs 0 is enough)"
        )
    logits = evidence.logits(side_of(evidence.chosen), "validation")
    rule = decision.rule(evidence.costs)
    p = decision.automatic(evidence.costs).probabilities(logits)
    price = decision.referral_cost or 0.0
    return Reference(p, evidence.labels("validation"), np.asarray(rule(logits)), evidence.costs.values, price)


def _paid(truth: Array, predicted: Array, reference: Reference) -> Array:
    return np.where(predicted == REFER, reference.referral_cost, reference.costs[truth, predicted])


# -- periods ----------------------------------------------------------------------------------------


def _by_count(batches: Iterator[Decisions], size: int) -> Iterator[tuple[str, Decisions]]:
    """In the order of the file; only the decisions of one period are held."""
    held, first = Decisions.none(), 1
    for batch in batches:
        held = Decisions.joined([held, batch]) if len(held) else batch
        while len(held) >= size:
            yield f"{first:,} to {first + size - 1:,}", held.part(slice(0, size))
            held, first = held.part(slice(size, None)), first + size
    if len(held):
        yield f"{first:,} to {first + len(held) - 1:,}", held


def _by_days(batches: Iterator[Decisions], days: int) -> Iterator[tuple[str, Decisions]]:
    """By the time of the decisions in UTC, whatever their order; weeks start on Monday. Days without any are one period."""
    groups: dict[int, list[Decisions]] = {}
    monday = 3 if days == 7 else 0  # 1 January 1970 was a Thursday
    for batch in batches:
        numbers = (np.floor(batch.time / 86400).astype(np.int64) + monday) // days
        for number in np.unique(numbers):
            groups.setdefault(int(number), []).append(batch.part(numbers == number))

    def day(number: int) -> date:
        return date(1970, 1, 1) + timedelta(days=number * days - monday)

    before = None
    for number in sorted(groups):
        if before is not None and number > before + 1:
            last = day(number) - timedelta(days=1)
            yield f"{day(before + 1)} to {last}" if last > day(before + 1) else f"{last}", Decisions.none()
        before = number
        yield f"{'week of ' * (days == 7)}{day(number)}", Decisions.joined(groups.pop(number))


def _period(
    name: str, found: Decisions, reference: Reference, costs: CostMatrix, bounds: Bounds, truth: Array | None
) -> Period:
    n, referred = len(found), int((found.predicted == REFER).sum())
    if n == 0:
        return Period(name, "", "", 0)
    first, last = (_moment(each) for each in (found.time.min(), found.time.max()))
    told = None if truth is None else _truth(found, truth, reference, costs)
    if n < FEWEST:
        return Period(name, first, last, n, referred, truth=told)
    chunk = Chunk(reference, found.probabilities.astype(np.float64), found.predicted)
    listed = list(
        dict.fromkeys([(costs.index(y), costs.index(z)) for y, z in bounds.pair] + costs.critical_pairs(PAIRS))
    )
    pairs = tuple(_pair(chunk, costs, y, z, found, truth) for y, z in listed)
    made = Period(
        name,
        first,
        last,
        n,
        referred,
        chunk.mean_cost(),
        pairs,
        tuple(chunk.frequencies.tolist()),
        tuple(chunk.frequencies_by_counts.tolist()),
        float(np.abs(chunk.frequencies - reference.frequencies).sum() / 2),
        chunk.change,
        told,
    )
    usual = float(_paid(reference.truth, reference.predicted, reference).mean())
    return replace(made, alarms=tuple(_alarms(made, bounds, usual)))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _pair(chunk: Chunk, costs: CostMatrix, y: int, z: int, found: Decisions, truth: Array | None) -> PairCount:
    only = np.zeros(costs.values.shape)
    only[y, z] = 1.0
    n, (value, (low, high), _) = len(found), chunk.estimate(only)
    cases = max(float(chunk.frequencies[y]) * n, 1.0)
    counted = None if truth is None else int(((truth == y) & (found.predicted == z)).sum())
    rates = min(value * n / cases, 1.0), min(low * n / cases, 1.0)
    names = costs.classes[y], costs.classes[z]
    return PairCount(*names, float(costs.values[y, z]), value * n, low * n, high * n, *rates, counted)


def _truth(found: Decisions, truth: Array, reference: Reference, costs: CostMatrix) -> Truth | None:
    told = truth >= 0
    if not told.any():
        return None
    e = Evaluation.of(truth[told], found.predicted[told], costs, referral_cost=reference.referral_cost)
    return Truth(int(told.sum()), e.accuracy, e.mean_cost, e.interval("mean_cost"))


def _alarms(period: Period, bounds: Bounds, usual: float) -> Iterator[str]:
    assert period.cost is not None and period.change is not None
    if bounds.change and period.change.found:
        yield CHANGED
    if bounds.cost_rise is not None and period.cost.band.low > usual * (1 + bounds.cost_rise):
        yield (
            f"the cost per 100 decisions, {100 * period.cost.value:.2f} (at least {100 * period.cost.band.low:.2f}), is "
            f"above {100 * usual * (1 + bounds.cost_rise):.2f}: validation's {100 * usual:.2f} and the allowed rise"
        )
    if bounds.frequency_change is not None and period.moved > bounds.frequency_change:
        yield (
            f"class frequencies moved by {100 * period.moved:.1f} % of the cases; {100 * bounds.frequency_change:g} % is "
            "the bound"
        )
    for pair in period.pairs:
        bound = bounds.pair.get((pair.truth, pair.predicted))
        if bound is not None and pair.rate_low > bound:
            yield (
                f"{pair.truth} labelled as {pair.predicted}: {100 * pair.rate:.2f} % of the cases of {pair.truth} (at least "
                f"{100 * pair.rate_low:.2f} %); {100 * bound:g} % is the bound"
            )


# -- what is odd about the files ----------------------------------------------------------------------


def _refuse_empty(reading: Reading, folder: Any) -> None:
    if not reading.lines:
        raise InputError(f"{reading.path} holds no decisions; csada predict --log writes them")
    if sum(reading.skipped.values()) == reading.lines:
        why = ", ".join(f"{count:,} {reason}" for reason, count in reading.skipped.items())
        others = f" ({', '.join(list(reading.others)[:3])})" if reading.others else ""
        raise InputError(
            f"none of the {reading.lines:,} lines of {reading.path} can be used for {folder} ({reading.model}): {why}{others}"
        )


def _notes(reading: Reading) -> Iterator[str]:
    for reason, count in reading.skipped.items():
        which = f" ({', '.join(list(reading.others)[:3])})" if reason == "of another model" else ""
        yield f"left out {count:,} of {reading.lines:,} lines: {reason}{which}"
    if reading.backwards:
        yield (
            f"{reading.backwards:,} lines are more than {SKEW:g} s earlier than a line before them: check the writers' clocks; "
            "days and weeks go by the time that a line says, numbers of decisions by the order of the file"
        )


@dataclass
class _Late:
    """Labels that came later, by what they name a case."""

    path: Path
    column: int  # of the keys in a log: 0 input, 1 id
    labels: dict[str, int]
    used: int = 0
    found: int = 0

    @classmethod
    def read(cls, path: Path, classes: Sequence[str]) -> _Late:
        rows = read_rows(path)
        _, header = next(rows, (0, []))
        keys = [name for name in ("input", "id") if name in header]
        if not keys or "label" not in header:
            raise InputError(f"{path} has the columns {', '.join(header)}; label is needed, and input or id")
        key, label, labels = header.index(keys[0]), header.index("label"), {}
        for line, row in rows:
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
class _Labelled:
    """Each input once: the same one in two folds would flatter any calibration."""

    probabilities: list[Array] = field(default_factory=list)
    truth: list[Array] = field(default_factory=list)
    seen: set[Key] = field(default_factory=set)

    def add(self, found: Decisions, truth: Array) -> None:
        names = [(given, None) if given else (None, name) for given, name in found.keys]
        new = [i for i in np.flatnonzero(truth >= 0) if not (names[i] in self.seen or self.seen.add(names[i]))]
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


def recalibrate(found: Monitored, out: Path, *, trust: bool = False) -> Path:
    """The classifier with the calibration that is offered, in a new folder."""
    if found.offer is None:
        raise InputError(
            f"nothing is written to {out}: no {FEWEST} late labels (--labels) show that another calibration is better"
        )
    classifier, offer = Classifier.load(found.model, trust=trust), found.offer
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
    replace(classifier, decision=new, evidence=evidence).save(out)
    write_text(
        out / "CHANGES.md",
        f"# Re-calibrated\n\nFrom {found.model} ({found.fingerprint}), with {offer.labelled:,} labelled decisions of "
        f"{found.log}.\n\n"
        f"Cross-entropy on folds that did not fit it: {offer.before:.4f} before, {offer.after:.4f} now ({offer.kind} "
        "calibration). Weights, costs and the rule's strength are unchanged. The report's numbers are of the old validation "
        "and test samples under the new calibration: judge it on new data with csada evaluate.\n",
    )
    return out


def suggest_priors(found: Monitored, path: Path) -> Path:
    """class,frequency of the newest period, for csada fit --priors."""
    newest = found.newest
    if newest is None or not newest.trusted:
        why = (
            "no period has enough decisions"
            if newest is None
            else f"{newest.name}: more changed than class frequencies"
        )
        raise InputError(f"no frequencies are written to {path}: {why}")
    text = io.StringIO()
    rows = zip(found.classes, (f"{share:.6f}" for share in newest.frequencies), strict=True)
    csv.writer(text, lineterminator="\n").writerows([("class", "frequency"), *rows])
    return write_text(path, text.getvalue())
