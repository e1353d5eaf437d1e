"""Which models to average, and how to decide by them: chosen on stored validation scores alone.

The plain average of the first candidates is hard to beat, so it is the choice unless validation clearly prefers another: the
best of a greedy selection with replacement (Caruana et al., 2004), which starts with the given model and again and again admits
the candidate that lowers the cost most. A mixture is judged as it would be used: its probabilities averaged, calibrated on
the other folds, and decided at the strength that the accuracy budget allows, the budget being counted from the given
model by argmax. So what a member gains in accuracy may be spent on cost.

Chosen on one half of validation and judged on the other (`benchmarks/selection.py`), greedy selection alone had no clear
advantage on any of five data sets and lost more accuracy.
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
from csada.decisions.calibration import (
    CLEAR,
    FEWEST,
    choose_calibration,
    cross_fitted,
    fit_temperature,
    remembered,
    stratified_folds,
)
from csada.decisions.curves import threshold_for_budget
from csada.decisions.rules import (
    EXPECTED,
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

NOISE = 0.5  # standard errors by which an admission must lower the cost
ROUNDS = 8


@dataclass(frozen=True)
class Admission:
    """What the mixture costs and how often it is right with this member, on validation samples that fitted nothing.

    kept: False where the mixture is better off without it.
    """

    name: str
    mean_cost: float
    accuracy: float
    kept: bool = True


@dataclass(frozen=True)
class Selection:
    """weights: of the admitted, by name; they sum to 1. steps: the given model, then every admission in turn; left: those that
    are not admitted, each as if it were one more.
    """

    weights: dict[str, float]
    steps: tuple[Admission, ...]
    left: tuple[Admission, ...] = ()


@dataclass(frozen=True)
class Judge:
    """What mixtures cost on validation samples. p: [N, K] probabilities by name, the given model's first."""

    p: dict[str, Floats]
    truth: Labels
    costs: CostMatrix
    budget: float
    reference: Labels  # [N]: what the given model predicts

    @classmethod
    def of(cls, library: Mapping[str, Any], labels: Any, costs: CostMatrix, budget: float, reference: Any) -> Judge:
        scores = {name: labelled(logits, labels, len(costs))[0] for name, logits in library.items()}
        p = {n: np.asarray(softmax(each, axis=1)) for n, each in scores.items()}
        return cls(p, as_array(labels).astype(np.int64), costs, budget, as_array(reference).astype(np.int64))

    def __call__(self, mixture: Floats) -> tuple[Floats, float]:
        """What each sample costs, and the accuracy."""
        logits, truth = np.log(np.maximum(mixture, np.finfo(np.float64).tiny)), self.truth
        top = logits.argmax(1)
        decided = by_scores(_tempered(logits, truth, stratified_folds(truth)), self.costs)
        needed = float((self.reference == truth).mean()) - self.budget
        spare = spare_accuracy(decided.probabilities, top, truth, self.reference, needed)
        decided = replace(decided, strength=max(affordable(decided, top, spare), default=0.0))
        paid = realised(self.costs, truth, decided.chosen)
        return (1 - EXPECTED) * paid + EXPECTED * decided.cost, float((decided.chosen == truth).mean())

    def average(self, members: int) -> tuple[Selection, Floats]:
        """The first so many, each counting the same; and what each sample costs by it."""
        names, steps, cost = list(self.p)[:members], list[Admission](), np.empty(0)
        for i, name in enumerate(names):
            cost, accuracy = self(np.mean([self.p[each] for each in names[: i + 1]], axis=0))
            steps.append(Admission(name, float(cost.mean()), accuracy))
        return Selection(dict.fromkeys(names, 1 / len(names)), tuple(steps)), cost

    def told(self, found: Selection) -> Selection:
        """With those that it leaves out."""
        n, mixture = len(found.weights), np.asarray(sum(w * self.p[name] for name, w in found.weights.items()))
        trials = {name: self((n * mixture + p) / (n + 1)) for name, p in self.p.items() if name not in found.weights}
        left = (Admission(name, float(cost.mean()), right, False) for name, (cost, right) in trials.items())
        return replace(found, left=tuple(left))

    def greedy(self, members: int) -> tuple[Selection, Floats]:
        """The given model, then what lowers the cost most; and what each sample costs by it."""
        given = next(iter(self.p))
        mixture, admitted = self.p[given], [given]
        cost, accuracy = self(mixture)
        steps = [Admission(given, float(cost.mean()), accuracy)]
        while len(admitted) <= ROUNDS:
            full = len(set(admitted)) >= members
            trials = {
                name: (mixed := mixture + (each - mixture) / (len(admitted) + 1), *self(mixed))
                for name, each in self.p.items()
                if not full or name in admitted
            }
            best = min(trials, key=lambda name: float(trials[name][1].mean()))
            if not _lower(trials[best][1], cost, NOISE):
                break
            mixture, cost, accuracy = trials[best]
            admitted.append(best)
            steps.append(Admission(best, float(cost.mean()), accuracy))
        weights = {name: admitted.count(name) / len(admitted) for name in dict.fromkeys(admitted)}
        return Selection(weights, tuple(steps)), cost


def _lower(cost: Floats, than: Floats, errors: float) -> bool:
    """Whether the mean is lower, by more than so many standard errors of the difference."""
    gain = than - cost
    return bool(gain.mean() > max(errors * gain.std() / math.sqrt(len(gain)), 0.0))


def choose_members(
    views: Sequence[Mapping[str, Any]],
    labels: Any,
    costs: CostMatrix,
    budget: float,
    members: int,
    reference: Any,
    tell: bool = False,
) -> tuple[int, Selection]:
    """Of libraries of the same networks under other views, which one, and the members: the first, averaged, unless another
    choice costs less by more than CLEAR standard errors.

    views: name -> [N, K], validation logits or logarithms of probabilities, the given model's first. budget: the accuracy that
    may be lost against `reference`, [N]: what the given model predicts. tell: judge also what is left out. Fewer than FEWEST
    samples choose nothing: the given model stays alone.
    """
    if not views[0] or members < 1:
        raise InputError(
            f"{len(views[0])} candidates and {members} members; give at least one of each, the given model first"
        )
    judges = [Judge.of(library, labels, costs, budget, reference) for library in views]
    if len(judges[0].truth) < FEWEST:
        return len(views) - 1, judges[-1].average(1)[0]
    found = [(i, *each) for i, judge in enumerate(judges) for each in (judge.average(members), judge.greedy(members))]
    best = min(found, key=lambda each: float(each[2].mean()))
    i, chosen, _ = best if _lower(best[2], found[0][2], CLEAR) else found[0]
    return i, judges[i].told(chosen) if tell else chosen


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
    tell: bool = False,
) -> Mixture:
    """Members as by `choose_members`, and all views unless the sample as it is is clearly cheaper, or those given.

    library: name -> view -> [N, K] validation logits, the given model first, "identity" the first view. The accuracy budget
    is counted from the given model by argmax on the samples as they are. tell: judge also what is left out.
    """
    given = next(iter(library.values()))
    first, *others = given
    temperatures = {name: fit_temperature(seen[first], labels) for name, seen in library.items()}

    sets = [tuple(views)] if views is not None else list(dict.fromkeys([(first, *others), (first,)]))
    scores = [viewed(library, which, temperatures) for which in sets]
    i, found = choose_members(scores, labels, costs, budget, members, as_array(given[first]).argmax(1), tell)
    return Mixture(found, {name: temperatures[name] for name in found.weights}, sets[i])


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
    base, folds, found = as_array(reference), stratified_folds(truth), np.empty(len(truth), np.int64)
    calibration = choose_calibration(scores, truth)
    for fold in range(folds.max() + 1):
        out = folds == fold
        others = {"reference": base[~out], "refer": refer, "calibration": calibration}
        decision = choose(scores[~out], truth[~out], costs, budget=budget, **others)
        found[out] = decision.rule(costs)(scores[out])
    return found


def half_expected(logits: Any, labels: Any, costs: CostMatrix, calibration: str | None = None) -> Floats:
    """[N, K]: the mean of what each prediction costs and is expected to cost, by calibrations of the other folds. So rare
    mistakes that (validation) samples lack by chance choose less.
    """
    scores, truth = labelled(logits, labels, len(costs))
    p = np.exp(cross_fitted(scores, truth, calibration or choose_calibration(scores, truth)))
    return (1 - EXPECTED) * costs.values[truth] + EXPECTED * p @ costs.values


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
