"""The rule of least cost that keeps limits, chosen so that their confidence holds although data chose the rule.

Once the probabilities are known, every limit is linear in the decisions. So the best rule minimises p @ (costs + multipliers)
and leaves to a person what would have more than a threshold of that: one number per limit, found by maximising the dual, which
is concave. Its cutting planes are rules: of each, only the expected confusion and the share that it refers count.

Validation is used in two parts. On the first, probabilities are calibrated and a path of rules is found, from strict to loose:
each keeps all limits by margins with which it passes their tests with the same probability. On the second, the rules are tested
in that order, each limit by an exact one-sided bound, until one fails; the last that passed is taken (fixed-sequence testing).
To take a rule that breaks a limit, the first such rule of the path must have passed: the confidence bounds how often it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.special import betaincinv, expit, ndtri
from scipy.stats import binom

from csada.costs import CostMatrix
from csada.decisions.arrays import Floats, Labels, as_array, labelled
from csada.decisions.calibration import choose_calibration, stratified_folds
from csada.decisions.limits import Judged, Limit, Limits, judged
from csada.decisions.rules import Abstention, Decided, Decision, MinimumExpectedCost, same_up_to
from csada.errors import InputError

SEARCH = 4  # one sample in so many finds the path; the others test it
POWERS = expit(np.linspace(7, -2.5, 14))  # of passing a test, from strict to loose
STRICTER = (0.1, 0.3)  # times the strictest margin: for probabilities that are too sure of themselves
ROUNDS = 60  # of cutting planes
CLOSE = 1e-4  # share of the cost by which the dual may miss its maximum
ENOUGH = 5e-3  # share of the cost by which a rule may miss the dual
NUDGED = (20, 40, 80, 160)  # rules to try near the dual's, round by round
NEAR = 1e-9


class Tried(NamedTuple):
    """A rule by its multipliers and threshold, and what it does in expectation to the samples of the search."""

    multipliers: Floats  # [K, K], zero or more
    threshold: float | None
    done: Floats  # [K * K + 2]: shares of all samples, truth by decision; referred; and of these, missed by the given model


@dataclass
class Search:
    """Rules on calibrated samples. `price`: of a referral; None where no case may be referred."""

    base: Decided
    costs: CostMatrix
    price: float | None
    before: Labels  # the given model's classes
    cuts: list[Tried] = field(default_factory=list)

    @cached_property
    def objective(self) -> Floats:
        return np.append(self.costs.values.ravel(), [self.price or 0.0, 0.0])

    @cached_property
    def missed(self) -> Floats:
        """[N]: how probably the given model is wrong."""
        return np.asarray(1 - self.base.probabilities[np.arange(len(self.before)), self.before])

    def rows(self, limits: Sequence[Limit], targets: Sequence[float] | Floats) -> tuple[Floats, Floats]:
        """(rows, most): rows @ done <= most says that each limit keeps to its target, a share of bad cases."""
        k, share = len(self.costs), np.maximum(self.base.probabilities.mean(0), 1e-12)
        rows, most = np.zeros((len(limits), k * k + 2)), np.array(targets, np.float64)
        for i, limit in enumerate(limits):
            matrix, y, z = np.zeros((k, k)), limit.truth, limit.predicted
            if limit.kind == "pair":
                matrix[y, z] = 1 / share[y]
            elif limit.kind == "recall":
                matrix[y] = np.where(np.arange(k) == y, 0.0, 1 / share[y])
            elif limit.kind == "precision":  # bad - target * decided <= 0
                matrix[:, z] = (1 - most[i]) / share[z]
                matrix[z, z], most[i] = -most[i] / share[z], 0.0
            elif limit.kind == "referred":
                rows[i, -2] = 1.0
            else:  # p(before) - p(decided) = (1 - p(decided)) - (1 - p(before)); nothing for a referred sample
                matrix, rows[i, -1] = 1 - np.eye(k), 1.0
                most[i] += self.missed.mean()
            rows[i, : k * k] = matrix.ravel()
        return rows, most

    def at(self, rows: Floats, strengths: Floats) -> Tried:
        """The rule of these numbers, one per limit.

        A constant on all entries and on the threshold changes nothing, and keeps them from being negative.
        """
        k, price = len(self.costs), strengths @ rows
        multipliers = price[:-2].reshape(k, k)
        constant = max(0.0, -float(multipliers.min()))
        decided, threshold = replace(self.base, multipliers=multipliers + constant), None
        p, weight = decided.probabilities, np.full(len(self.before), 1 / len(self.before))
        share = missed = 0.0
        if self.price is not None:
            threshold = self.price + constant + float(price[-2])
            referred = decided.doubt > same_up_to(threshold, decided.unit)
            share, missed = float(referred.mean()), float(self.missed @ (referred * weight))
            weight = weight * ~referred
        confusion = np.stack([np.where(decided.chosen == z, weight, 0.0) @ p for z in range(k)], 1)
        return Tried(multipliers + constant, threshold, np.append(confusion.ravel(), [share, missed]))

    def best(self, rows: Floats, most: Floats) -> Tried | None:
        """The rule of least expected cost that keeps the limits on these samples; None where none does.

        At the dual's strengths some samples tie, and one rule decides them all alike. So nearby strengths are tried too,
        and strengths for limits that are lower by what was too much.
        """
        strengths, least = self.dual(rows, most)
        rng, aim, centre, found, cost = np.random.default_rng(0), most, strengths, None, math.inf

        def look(tried: Tried) -> bool:
            nonlocal found, cost
            paid = float(self.objective @ tried.done)
            better = paid < cost and bool((rows @ tried.done <= most + NEAR).all())
            found, cost = (tried, paid) if better else (found, cost)
            return better

        for number in NUDGED if math.isfinite(least) else ():
            look(there := self.at(rows, strengths))
            for tried in self.cuts:
                look(tried)
            for i in range(number):
                if cost <= (1 + ENOUGH) * least + NEAR:
                    return found
                moved = (centre if i % 2 else strengths) * np.exp(
                    rng.normal(size=len(most)) * 10 ** rng.uniform(-4, -0.5)
                )
                centre = moved if look(self.at(rows, moved)) else centre
            aim = aim - np.maximum(rows @ there.done - most, 0)
            lower, value = self.dual(rows, aim)
            strengths, aim = (lower, aim) if math.isfinite(value) else (strengths, (aim + most) / 2)
        return found

    def dual(self, rows: Floats, most: Floats) -> tuple[Floats, float]:
        """The strengths, zero or more, under which the least of cost + strengths @ (rates - most) is largest, and this.

        No rule costs more than the largest cost: where the dual does, none keeps the limits, and it is infinite.
        """
        if not self.cuts:
            self.cuts.append(self.at(rows, np.zeros(len(most))))
        largest = float(self.objective.max()) or 1.0
        box, strengths, reached = 10 * largest, np.zeros(len(most)), -math.inf
        for _ in range(ROUNDS):
            done = np.stack([tried.done for tried in self.cuts])
            slopes = np.column_stack([np.ones(len(done)), most - done @ rows.T])
            bounds = [(None, None), *[(0, box)] * len(most)]
            top, *above = linprog(-np.eye(len(most) + 1)[0], slopes, done @ self.objective, bounds=bounds).x
            strengths = np.array(above)
            self.cuts.append(tried := self.at(rows, strengths))
            reached = float(self.objective @ tried.done + strengths @ (rows @ tried.done - most))
            if reached > largest * (1 + NEAR):
                return strengths, math.inf
            if top - reached <= CLOSE * abs(reached) + NEAR * largest:
                if strengths.max() < box * (1 - 1e-6):
                    break
                box *= 100
        return strengths, reached


class Kept(NamedTuple):
    """The rule that was taken, and its limits on the samples that tested it, [N] True."""

    decision: Decision
    judged: tuple[Judged, ...]
    tested: NDArray[np.bool_]


def within_limits(
    logits: Any,
    labels: Any,
    costs: CostMatrix,
    limits: Limits,
    *,
    before: Any = None,
    calibration: str | None = None,
    tries: int = 1,
) -> Kept:
    """The rule of least cost that these (validation) samples show to keep the limits, at their confidence.

    before: [N], the given model's most probable classes, by default those of the logits: accuracy is lost against them.
    Cases may be referred where the costs have a price for that, or where a limit on their share is given: without a price
    the search charges nothing for them. tries: models for which a rule is sought, of which one will be taken.
    """
    scores, truth = labelled(logits, labels, len(costs))
    given = scores.argmax(1) if before is None else as_array(before).astype(np.int64)
    known = limits.resolved(costs.classes)
    tested = test_part(truth)
    enough(known, truth, tested, tries)
    out = ~tested
    calibration = calibration or choose_calibration(scores[out], truth[out])
    rule = MinimumExpectedCost.calibrated(scores[out], truth[out], costs, calibration)
    price = 0.0 if costs.referral_cost is None and limits.referred is not None else costs.referral_cost
    search = Search(rule.decide(scores[out]), costs, price, given[out])
    first, taken = None, None
    for tried in path(search, known, int(tested.sum()), tries):
        strict = replace(rule, multipliers=tuple(map(tuple, tried.multipliers.tolist())))
        whole = strict if tried.threshold is None else Abstention(strict, tried.threshold)
        found = judged(known, truth[tested], whole(scores[tested]), given[tested], tries)
        first = first or found
        if not all(each.kept for each in found):
            break
        taken = Kept(Decision.of(whole), found, tested)
    if taken is not None:
        return taken
    if first is None:
        raise InputError(clash(search, known, int(tested.sum()), tries))
    missed = "; ".join(
        f"{each.limit}: {each.bad:,} of {each.samples:,} bad, which only shows {each.limit.share(each.bound)}"
        for each in first
        if not each.kept
    )
    raise InputError(f"validation does not show that the strictest rule keeps the limits. {missed}. {WAYS_OUT}")


WAYS_OUT = "Loosen a limit, let more cases be referred, or give more validation samples or a better model"


def test_part(truth: Labels) -> NDArray[np.bool_]:
    """[N]: the samples that test the rules; the others find them."""
    return np.asarray(stratified_folds(truth, SEARCH) > 0)


def enough(limits: Sequence[Limit], truth: Labels, tested: NDArray[np.bool_], tries: int = 1) -> None:
    """Refuses a limit that these samples could not show to be kept, even without a bad case."""
    for limit in limits:
        of = truth == (limit.truth if limit.truth is not None else limit.predicted)
        about = of if limit.kind in ("pair", "recall", "precision") else np.ones(len(truth), bool)
        n, sure = int((about & tested).sum()), 1 - (1 - limit.confidence) / tries
        if limit.most == 0:
            raise InputError(f"{limit}: no number of samples shows that something never happens; allow a small share")
        if limit.most == 1 or limit.kind == "accuracy_lost" or critical(n, limit.most, sure) >= 0:
            continue
        needed = math.ceil(math.log(1 - sure) / math.log1p(-limit.most))
        whole = math.ceil(needed * len(truth) / max(int(tested.sum()), 1))
        kind = "samples of that class" if of.any() or limit.kind != "referred" else "samples"
        raise InputError(
            f"{limit} cannot be shown at {100 * limit.confidence:g} %: {n:,} samples test it, and {needed:,} without a bad "
            f"one are needed. Validation needs {whole:,} {kind}; {int(about.sum()):,} are there"
        )


def critical(samples: int, most: float, sure: float) -> int:
    """The largest number of bad samples that shows a share of at most `most`; -1 where none does."""
    count = int(binom.ppf(1 - sure, samples, most))
    return count if binom.cdf(count, samples, most) <= 1 - sure else count - 1


def path(search: Search, limits: Sequence[Limit], samples: int, tries: int) -> Iterator[Tried]:
    """Rules from strict to loose, for tests on so many samples."""
    strictest, *others = (targets(search, limits, power, samples, tries) for power in POWERS)
    fixed = np.array([limit.kind in ("referred", "accuracy_lost") for limit in limits])
    previous: Tried | None = None
    for aims in (*(np.where(fixed, strictest, f * strictest) for f in STRICTER), strictest, *others):
        tried = search.best(*search.rows(limits, aims))
        if tried is None or (previous is not None and np.array_equal(tried.done, previous.done)):
            continue
        k = len(search.costs)
        decided = tried.done[:-2].reshape(k, k).sum(0) * samples
        sures = [1 - (1 - limit.confidence) / tries for limit in limits]
        if any(
            limit.kind == "precision" and critical(int(decided[limit.predicted or 0]), limit.most, sure) < 0
            for limit, sure in zip(limits, sures, strict=True)
        ):
            continue  # too few decisions for that class to show anything
        previous = tried
        yield tried


def targets(search: Search, limits: Sequence[Limit], power: float, samples: int, tries: int) -> Floats:
    """For each limit the true share of bad cases with which its test passes so probably."""
    share, found = search.base.probabilities.mean(0), []
    for limit in limits:
        sure = 1 - (1 - limit.confidence) / tries
        if limit.kind == "accuracy_lost":
            p, chosen, rows = search.base.probabilities, search.base.chosen, np.arange(len(search.before))
            changed = (p[rows, chosen] + p[rows, search.before]) * (chosen != search.before)
            error = math.sqrt(max(float(changed.mean()), 1 / samples) / samples)
            found.append(limit.most - error * (math.sqrt(2) * ndtri((1 + sure) / 2) + ndtri(power)))
            continue
        number = limit.truth if limit.truth is not None else limit.predicted
        n = samples if number is None else max(int(samples * share[number]), 1)
        bad = max(critical(n, limit.most, sure), 0)
        # the share referred is counted, so that the search is as uncertain of it as a test of as many samples
        scale = len(search.before) / (len(search.before) + n) if limit.kind == "referred" else 1.0
        found.append(float(betaincinv(scale * (bad + 1), scale * max(n - bad, 1e-9), 1 - power)))
    return np.array(found)


def clash(search: Search, limits: Sequence[Limit], samples: int, tries: int) -> str:
    """Which limits no rule keeps together, as few as explain it, and how near one comes to each if the others are kept."""
    aims = dict(zip(limits, targets(search, limits, POWERS[-1], samples, tries), strict=True))

    def kept(some: dict[Limit, float]) -> bool:
        return not some or search.best(*search.rows(list(some), list(some.values()))) is not None

    for limit in limits:
        if not kept(rest := {each: aim for each, aim in aims.items() if each != limit}):
            aims = rest
    told = []
    for limit, aim in aims.items():
        low, high = aim, 1.0
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if kept(aims | {limit: middle}) else (middle, high)
        told.append(f"{limit} (with the others kept, {limit.share(high)} is within reach)")
    return f"no rule keeps these limits together, with the margin that their confidence asks for: {'; '.join(told)}. {WAYS_OUT}"
