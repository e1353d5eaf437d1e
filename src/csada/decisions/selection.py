"""Which models to average, and how to decide by them: chosen on stored validation scores alone.

Greedy selection with replacement (Caruana et al., 2004): start with the given model, and again and again admit the
candidate that lowers the cost most. A mixture is judged as it would be used: its probabilities averaged, calibrated on
the other folds, and decided at the strength that the accuracy budget allows, the budget being counted from the given
model by argmax. So what a member gains in accuracy may be spent on cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from csada.costs import CostMatrix
from csada.decisions.arrays import Floats, Labels, as_array, labelled
from csada.decisions.calibration import FEWEST, choose_calibration, fit_temperature, remembered, stratified_folds
from csada.decisions.curves import threshold_for_budget
from csada.decisions.rules import (
    Abstention,
    Decision,
    MinimumExpectedCost,
    affordable,
    by_scores,
    realised,
    spare_accuracy,
)
from csada.errors import InputError

Library = Mapping[str, Mapping[Any, Any]]  # name -> view -> [N, K] logits

EXPECTED = 0.5  # share of the expected cost, which varies little, in a cost that is otherwise counted
NOISE = 0.5  # standard errors by which an admission must lower the cost
ROUNDS = 8


@dataclass(frozen=True)
class Admission:
    """What the mixture costs and how often it is right with this member, on validation samples that fitted nothing."""

    name: str
    mean_cost: float
    accuracy: float


@dataclass(frozen=True)
class Selection:
    """weights: of the admitted, by name; they sum to 1. steps: the given model, then every admission in turn."""

    weights: dict[str, float]
    steps: tuple[Admission, ...]
    reason: str  # for stopping


def greedy(
    library: Mapping[str, Any],
    labels: Any,
    costs: CostMatrix,
    *,
    budget: float = 0.005,
    members: int = 3,
    reference: Any = None,
) -> Selection:
    """The members to average, at most so many different ones; the first of the library is the given model and always in.

    library: name -> [N, K], validation logits or logarithms of probabilities. budget: the accuracy that may be lost
    against the given model by argmax, or against `reference`, [N]: whether its predictions were right. Fewer than FEWEST
    samples choose nothing: the given model stays alone.
    """
    if not library or members < 1:
        raise InputError(
            f"{len(library)} candidates and {members} members; give at least one of each, the given model first"
        )
    scores = {name: labelled(logits, labels, len(costs))[0] for name, logits in library.items()}
    given, (_, truth) = next(iter(library)), labelled(next(iter(library.values())), labels)
    reference = (scores[given].argmax(1) == truth).astype(np.float64) if reference is None else as_array(reference)
    needed, folds = float(reference.mean()) - budget, stratified_folds(truth)
    p = {name: np.asarray(softmax(each, axis=1)) for name, each in scores.items()}

    def judged(mixture: Floats) -> tuple[Floats, float]:
        """What each sample costs, and the accuracy."""
        logits = np.log(np.maximum(mixture, np.finfo(np.float64).tiny))
        top = logits.argmax(1)
        decided = by_scores(_tempered(logits, truth, folds), costs)
        spare = spare_accuracy((top == truth).astype(np.float64), reference, needed)
        decided = replace(decided, strength=max(affordable(decided, top, spare), default=0.0))
        paid = realised(costs, truth, decided.chosen)
        return (1 - EXPECTED) * paid + EXPECTED * decided.cost, float((decided.chosen == truth).mean())

    def row(name: str, cost: Floats, accuracy: float) -> Admission:
        return Admission(name, float(cost.mean()), accuracy)

    mixture, admitted = p[given], [given]
    cost, accuracy = judged(mixture)
    steps, reason = [row(given, cost, accuracy)], f"{ROUNDS} rounds"
    if len(truth) < FEWEST:
        reason = f"{len(truth)} validation samples choose nothing reliably; at least {FEWEST} are needed"
        return Selection({given: 1.0}, tuple(steps), reason)
    while len(admitted) <= ROUNDS:
        full = len(set(admitted)) >= members
        trials = {
            name: (mixed := mixture + (each - mixture) / (len(admitted) + 1), *judged(mixed))
            for name, each in p.items()
            if not full or name in admitted
        }
        best = min(trials, key=lambda name: float(trials[name][1].mean()))
        gain = cost - trials[best][1]
        if gain.mean() <= max(NOISE * gain.std() / math.sqrt(len(gain)), 0.0):
            reason = "no candidate lowers the cost by more than noise"
            break
        mixture, cost, accuracy = trials[best]
        admitted.append(best)
        steps.append(row(best, cost, accuracy))
    return Selection(
        {name: admitted.count(name) / len(admitted) for name in dict.fromkeys(admitted)}, tuple(steps), reason
    )


@dataclass(frozen=True)
class Mixture:
    """Members and views whose probabilities are averaged, each member at its own temperature."""

    selection: Selection
    temperatures: dict[str, float]
    views: tuple[Any, ...]

    def scores(self, library: Library) -> Floats:
        """[N, K]: the logarithms of the averaged probabilities."""
        return mixed(viewed(library, self.views, self.temperatures), self.selection.weights)


def select(
    library: Library,
    labels: Any,
    costs: CostMatrix,
    *,
    budget: float = 0.005,
    members: int = 3,
    views: Sequence[str] | None = None,
) -> Mixture:
    """Members by `greedy`, and all views where they lower its cost further than the sample as it is does, or those given.

    library: name -> view -> [N, K] validation logits, the given model first, "identity" the first view. The accuracy budget
    is counted from the given model by argmax on the samples as they are.
    """
    given = next(iter(library.values()))
    first, *others = given
    reference = (as_array(given[first]).argmax(1) == as_array(labels)).astype(np.float64)
    temperatures = {name: fit_temperature(seen[first], labels) for name, seen in library.items()}

    def tried(which: Sequence[str]) -> Mixture:
        scores = viewed(library, which, temperatures)
        found = greedy(scores, labels, costs, budget=budget, members=members, reference=reference)
        return Mixture(found, {name: temperatures[name] for name in found.weights}, tuple(which))

    if views is not None:
        return tried(views)
    sets = [(first,)] + ([(first, *others)] if others and len(reference) >= FEWEST else [])
    return min(map(tried, sets), key=lambda mixture: mixture.selection.steps[-1].mean_cost)


def viewed(library: Library, views: Sequence[str], temperatures: Mapping[str, float]) -> dict[str, Floats]:
    """Of each member that has a temperature: the logarithms of its probabilities, averaged over the views."""
    return {
        name: mixed({view: as_array(library[name][view]) / t for view in views}, dict.fromkeys(views, 1 / len(views)))
        for name, t in temperatures.items()
    }


def mixed(library: Mapping[str, Any], weights: Mapping[str, float]) -> Floats:
    """[N, K]: the logarithms of the members' averaged probabilities."""
    logs = np.stack([math.log(w) + log_softmax(as_array(library[name]), axis=1) for name, w in weights.items()])
    most = logs.max(0)
    return np.asarray(most + np.log(np.exp(logs - most).sum(0)))


def choose(
    logits: Any,
    labels: Any,
    costs: CostMatrix,
    *,
    budget: float = 0.005,
    reference: Any = None,
    needed: float | None = None,
    refer: float | None = 0.0,
    calibration: str | None = None,
) -> Decision:
    """How to decide by these (validation) scores: the calibration, the strength and what is left to a person.

    budget, reference, needed: as for `MinimumExpectedCost.within_budget`. refer: the share of cases that a person may take,
    None: any. Where the costs say what a referral costs, only cases that are expected to cost more are referred; where they
    do not, the costliest share is, and None is none.
    """
    calibration = calibration or choose_calibration(logits, labels)
    rule = MinimumExpectedCost.within_budget(
        logits, labels, costs, budget, needed=needed, reference=reference, calibration=calibration
    )
    price = costs.referral_cost
    if refer == 0 or (refer is None and price is None):
        return Decision.of(rule)
    above = 0.0 if refer is None else threshold_for_budget(logits, rule, refer)
    return Decision.of(Abstention(rule, max(above, price or 0.0)))


def held_out(
    logits: Any, labels: Any, costs: CostMatrix, *, budget: float, reference: Any, refer: float | None
) -> Labels:
    """[N]: how each (validation) sample is decided by what `choose` finds on the other folds. So no sample judges a
    decision that it chose, and a calibration with many parameters looks no better than it is. Without a price, no sample
    is referred: its cost would not be known.
    """
    refer = 0.0 if costs.referral_cost is None else refer
    scores, truth = labelled(logits, labels, len(costs))
    right, folds, found = as_array(reference), stratified_folds(truth), np.empty(len(truth), np.int64)
    calibration = choose_calibration(scores, truth)
    for fold in range(folds.max() + 1):
        out = folds == fold
        others = {"reference": right[~out], "refer": refer, "calibration": calibration}
        decision = choose(scores[~out], truth[~out], costs, budget=budget, **others)
        found[out] = decision.rule(costs)(scores[out])
    return found


def _tempered(logits: Floats, truth: Labels, folds: Labels) -> Floats:
    """The logits at temperatures of the other folds."""
    return np.asarray(logits * np.array(_betas(logits, truth))[folds, None])


@remembered
def _betas(logits: Floats, truth: Labels) -> tuple[float, ...]:
    """1 / temperature for each of the stratified folds: one step of Newton from the temperature of all samples.

    Five searches of their own end within a thousandth of it and take five times as long.
    """
    beta, folds = 1 / fit_temperature(logits, truth), stratified_folds(truth)
    above = logits - logits[np.arange(len(truth)), truth, None]
    p = softmax(beta * above, axis=1)
    slope = (p * above).sum(1)
    bend = (p * above**2).sum(1) - slope**2
    slope = slope - slope.mean()  # nothing is left of it at the temperature of all
    betas = np.empty(folds.max() + 1)
    for fold in range(len(betas)):
        others = folds != fold
        betas[fold] = beta - slope[others].sum() / max(bend[others].sum(), np.finfo(np.float64).tiny)
    return tuple(np.clip(betas, beta / 2, beta * 2).tolist())
