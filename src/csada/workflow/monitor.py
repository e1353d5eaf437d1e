"""What a log of decisions says about a deployed classifier: period by period, without labels, and with those that came late."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.classifier import Classifier
from csada.costs import CostMatrix, did_you_mean
from csada.decisions import MinimumExpectedCost
from csada.decisions.calibration import FEWEST
from csada.decisions.shift import Change, Chunk, Estimate, Reference
from csada.errors import InputError
from csada.evidence import side_of
from csada.files import write_text
from csada.logbook import SKEW, Decisions, Reading
from csada.manifest import Deployed, deployed
from csada.metrics import REFER, Evaluation, Interval
from csada.report.monitor import CHANGED
from csada.rows import cell
from csada.workflow.late import Labelled, Late, Offer
from csada.workflow.versions import as_given, reweighted, save_version

PAIRS = 400  # in a period at most: all of twenty classes
DAYS = {"day": 1, "week": 7}
BLOCK = 1000  # decisions checked at once

Array = NDArray[Any]


@dataclass(frozen=True)
class Bounds:
    """What raises an alarm. A pair or a cost does so when its whole 95 % band is above the bound."""

    pair: Mapping[tuple[str, str], float]  # (truth, predicted): of the cases of that class
    cost_rise: float | None = None  # against validation: 0.5 is half as much again
    frequency_change: float | None = None  # the share of cases whose class would have to change
    change: bool = True  # beyond frequencies


@dataclass(frozen=True, slots=True)  # there may be hundreds of thousands
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
    critical: int  # pairs that cost more than the cheapest; periods have the PAIRS costliest, after those with a bound
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
    if same := [y for y, z in bounds.pair if y == z]:
        raise InputError(f"a bound on a pair names {same[0]!r} twice; a pair is a mistake, of two classes")
    late = None if labels is None else Late.read(Path(labels), known.classes)
    reading = Reading(Path(log), known.fingerprint, known.classes, keys=late is not None)
    if late is not None:
        late.drop_unclear(replace(reading, skipped=Counter(), others=Counter(), seen={}).batches())
    assert known.evidence is not None  # else there is no reference
    costs = known.evidence.costs
    check = Check(known.decision.automatic(costs))
    batches = map(check, reading.batches())
    sizes = _by_count(batches, int(every)) if every.isdecimal() else _by_days(batches, DAYS[every])
    usual = Evaluation.of(reference.truth, reference.predicted, costs).mean_cost
    bounded = [(costs.index(y), costs.index(z)) for y, z in bounds.pair]
    pairs = list(dict.fromkeys(bounded + costs.critical_pairs(PAIRS)))
    periods, offered = [], Labelled()
    for name, found in sizes:
        if costs.referral_cost is not None:
            found = found._replace(predicted=np.where(found.referred, REFER, found.predicted))
        truth = None if late is None else late.of(found)
        if truth is not None:
            offered.add(found, truth)
        period = _period(name, found, reference, costs, pairs, truth)
        periods.append(replace(period, alarms=tuple(_alarms(period, bounds, usual))))
    _refuse_empty(reading, folder)
    return Monitored(
        os.fspath(folder),
        known.fingerprint,
        os.fspath(log),
        known.classes,
        usual,
        tuple(reference.frequencies.tolist()),
        reading.lines,
        dict(reading.skipped),
        (*_notes(reading), *check.notes(), *_unpriced(costs, periods), *(late.notes(offered.repeated) if late else ())),
        tuple(periods),
        int((costs.values > costs.mistakes.min()).sum()),
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
    automatic, price = decision.automatic(evidence.costs), evidence.costs.referral_cost
    rule = automatic if price is None else decision.rule(evidence.costs)
    predicted, labels = np.asarray(rule(logits)), evidence.labels("validation")
    return Reference(automatic.probabilities(logits), labels, predicted, evidence.costs.values, price or 0.0)


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
    name: str,
    found: Decisions,
    reference: Reference,
    costs: CostMatrix,
    pairs: Sequence[tuple[int, int]],
    truth: Array | None,
) -> Period:
    n, referred = len(found), int(found.referred.sum())
    if n == 0:
        return Period(name, "", "", 0)
    first, last = (_moment(each) for each in (found.time.min(), found.time.max()))
    told = None if truth is None else _truth(found, truth, costs)
    if n < FEWEST:
        return Period(name, first, last, n, referred, truth=told)
    chunk = Chunk(reference, found.probabilities, found.predicted)
    return Period(
        name,
        first,
        last,
        n,
        referred,
        chunk.mean_cost(),
        tuple(_pairs(chunk, costs, pairs, truth)),
        tuple(chunk.frequencies.tolist()),
        tuple(chunk.frequencies_by_counts.tolist()),
        float(np.abs(chunk.frequencies - reference.frequencies).sum() / 2),
        chunk.change,
        told,
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _pairs(
    chunk: Chunk, costs: CostMatrix, pairs: Sequence[tuple[int, int]], truth: Array | None
) -> Iterator[PairCount]:
    n, k = len(chunk.predicted), len(costs)
    counted: list[int | None] = [None] * len(pairs)
    if truth is not None:
        told = (truth >= 0) & (chunk.predicted != REFER)
        cells = np.bincount(truth[told] * k + chunk.predicted[told], minlength=k * k)
        counted = [int(cells[y * k + z]) for y, z in pairs]
    estimates = (each.tolist() for each in chunk.counts(pairs))
    for (y, z), real, value, low, high in zip(pairs, counted, *estimates, strict=True):
        cases = max(float(chunk.frequencies[y]) * n, 1.0)
        rates = min(value * n / cases, 1.0), min(low * n / cases, 1.0)
        names, cost = (costs.classes[y], costs.classes[z]), float(costs.values[y, z])
        yield PairCount(*names, cost, value * n, low * n, high * n, *rates, real)


def _truth(found: Decisions, truth: Array, costs: CostMatrix) -> Truth | None:
    told = truth >= 0
    if not told.any():
        return None
    e = Evaluation.of(truth[told], found.predicted[told], costs)
    return Truth(int(told.sum()), e.accuracy, e.mean_cost, e.interval("mean_cost"))


def _alarms(period: Period, bounds: Bounds, usual: float) -> Iterator[str]:
    if period.cost is None or period.change is None:
        return
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
    if reading.alike:
        yield (
            f"{reading.alike:,} of {reading.lines:,} lines repeat one of the same moment, and are counted: cases that came "
            "twice in one batch, or a copy of the log in itself"
        )
    if reading.backwards:
        times = f"{reading.backwards:,} times" if reading.backwards > 1 else "once"
        yield (
            f"the time goes back by more than {SKEW:g} s {times}: check the writers' clocks; "
            "days and weeks go by the time that a line says, numbers of decisions by the order of the file"
        )


@dataclass
class Check:
    """Lets batches of decisions pass, and counts those that the model's rule would not make of the same probabilities."""

    rule: MinimumExpectedCost
    others: int = 0

    def __call__(self, found: Decisions) -> Decisions:
        for start in range(0, len(found), BLOCK):
            some = found.part(slice(start, start + BLOCK))
            own = some.part(~some.referred)
            self.others += int(self.rule.contradicts(own.probabilities, own.predicted).sum())
        return found

    def notes(self) -> Iterator[str]:
        if self.others:
            yield (
                f"{self.others:,} logged decisions differ from what the model's rule makes of the probabilities beside them: "
                "check the program that writes the log"
            )


def _unpriced(costs: CostMatrix, periods: Sequence[Period]) -> Iterator[str]:
    if costs.referral_cost is None and (referred := sum(period.referred for period in periods)):
        yield (
            f"what it costs to leave a case to a person is not given: {referred:,} referred cases count as if they had been "
            "decided automatically"
        )


def suggest_priors(found: Monitored, out: Path, *, trust: bool = False) -> Path:
    """The class frequencies of the newest period, with one case more at validation's, so that none is zero: as a table
    (class, frequency, period) in a .csv file, or in a new folder as a version of the classifier with its rule for them."""
    newest, usual = found.newest, np.array(found.validation_frequencies)
    if newest is None:
        raise InputError("no class frequencies can be suggested: no period has enough decisions")
    if not newest.trusted:
        raise InputError(f"no class frequencies can be suggested: in {newest.name} more changed than these")
    shares = (newest.decisions * np.array(newest.frequencies) + usual) / (newest.decisions + 1)
    if is_table(out):
        pairs = zip(found.classes, shares, strict=True)
        rows = [(cell(name), f"{share:.6g}", cell(newest.name)) for name, share in pairs]
        csv.writer(text := io.StringIO(), lineterminator="\n").writerows([("class", "frequency", "period"), *rows])
        return write_text(out, text.getvalue())
    old = Classifier.load(found.model, trust=trust)
    new = reweighted(as_given(old, old.decision), usual, shares)
    why = f"class frequencies of {newest.decisions:,} decisions, {newest.name} in {Path(found.log).name}"
    return save_version(old, new, found.model, out, why=why, deployment=shares)


def is_table(out: Path) -> bool:
    return out.suffix.lower() == ".csv"


def unseen(found: Monitored) -> str:
    """Which of these frequencies rest on that one case; "" where none does."""
    newest = found.newest
    assert newest is not None
    shares = zip(found.classes, newest.frequencies, strict=True)
    rare = [name for name, share in shares if share * newest.decisions < 0.5]
    more = f" and {len(rare) - 3} more" * (len(rare) > 3)
    told = f"no case of {', '.join(rare[:3])}{more} is expected in {newest.name}; they get more than 0, as if one case more"
    return f"{told} had come at validation's frequencies" if rare else ""
