"""The rows of the study: ways to decide from one given model and what was trained from it, each chosen on validation alone.

Where the members have out-of-fold scores of training and validation samples together, these choose instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from csada.costs import CostMatrix
from csada.decisions import CALIBRATIONS, MinimumExpectedCost, Mixture, Selection, choose, fit_temperature, select
from csada.decisions.rules import STRENGTHS
from csada.metrics import confusion_counts
from csada.paper.library import GIVEN, MEMBERS, OUT_OF_FOLD, STUDENT, Library
from csada.paper.problems import problems
from csada.paper.sources import Source

AIMED = "aimed"  # the problems that networks were trained for, "aimed KIND" those of a kind
MEMBER, CSADA = "csada as member", "csada"
ARGMAX, RULE, VIEWS, GENERIC, AUTO, SINGLE = "argmax", "rule", "rule, all views", "generic", "auto", "auto --single"
ROWS = {
    ARGMAX: "the given model, the most probable class",
    RULE: "the given model under the decision rule",
    VIEWS: "the same, averaged over all allowed views of a sample",
    GENERIC: "given + restart + mixup averaged, all views, nothing selected, under the rule",
    AUTO: "up to three members and the views chosen on validation, under the rule",
    SINGLE: "one network distilled from given + restart + mixup, one view, under the rule",
    "aimed": "given + restart + a mixup aimed at these costs, all views, under the rule",
    MEMBER: "given + mixup + the given model after CSADA on these costs, all views, under the rule",
    CSADA: "the given model after CSADA on these costs, the most probable class",
    "csada + rule": "the same under the rule",
    "adjusted_penalty": "after Adjusted Penalty, the most probable class",
    "adjusted_penalty + rule": "the same under the rule",
    "sosr": "after SOSR, the most probable class",
    "sosr + rule": "the same under the rule",
}
DRAWN = (RULE, VIEWS, GENERIC, AUTO, SINGLE)  # in figures, and in the tables of every data set
Floats = NDArray[np.float64]
Scores = Callable[[str], Floats]  # of "validation" or "test"


class Row(NamedTuple):
    """How a row decides."""

    rule: MinimumExpectedCost
    scores: Scores

    def __call__(self, part: str) -> NDArray[np.int64]:
        return np.asarray(self.rule(self.scores(part)))


Decider = Callable[[CostMatrix, float], Row]  # budget in points of accuracy


@dataclass(frozen=True)
class Given:
    """One baseline, and all that was trained from it."""

    library: Library
    seed: int
    source: Source

    def labels(self, part: str) -> NDArray[np.int64]:
        return self.library.labels(self.seed, part)

    @cached_property
    def scores(self) -> dict[str, dict[str, dict[str, Floats]]]:
        """Part -> network -> view -> logits."""
        own = [n.removeprefix(f"{self.seed}/") for n in self.library.about.networks if n.startswith(f"{self.seed}/")]
        parts = ("validation", "test", OUT_OF_FOLD)
        found = {p: {n: seen for n in own if (seen := self.library.scores(self.seed, p, n))} for p in parts}
        return {part: networks for part, networks in found.items() if networks}

    def chooses(self, names: Sequence[str]) -> str:
        """The part that chooses for these networks."""
        return OUT_OF_FOLD if set(names) <= set(self.scores.get(OUT_OF_FOLD, ())) else "validation"

    @cached_property
    def temperatures(self) -> dict[str, float]:
        parts = {name: self.chooses([name]) for name in self.scores["validation"]}
        return {n: fit_temperature(self.scores[p][n]["identity"], self.labels(p)) for n, p in parts.items()}

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(self.scores["validation"][GIVEN])

    @cached_property
    def right(self) -> dict[str, Floats]:
        """Part -> [N]: whether the given model is right by argmax."""
        return {p: (self.top(p) == self.labels(p)).astype(np.float64) for p in self.scores}

    def top(self, part: str) -> NDArray[np.int64]:
        return np.asarray(self.scores[part][GIVEN]["identity"].argmax(1))

    @cached_property
    def problems(self) -> dict[str, dict[str, CostMatrix]]:
        """Kind -> name -> costs; in "aimed KIND" those that networks were trained for."""
        truth, k = self.labels("validation"), self.scores["validation"][GIVEN]["identity"].shape[1]
        found = problems(confusion_counts(truth, self.top("validation"), k), self.source.group)
        methods = {name: set(self.library.aimed(self.seed, name)) for own in found.values() for name in own}
        most = max(methods.values(), key=len)
        for kind, own in list(found.items()) if most else ():
            if aimed := {name: costs for name, costs in own.items() if methods[name] == most}:
                found[f"{AIMED} {kind}"] = aimed
        return found

    def average(self, names: Sequence[str], views: Sequence[str] | None = None) -> Mixture:
        """A fixed average, every network at its own temperature."""
        selection = Selection({name: 1 / len(names) for name in names}, ())
        return Mixture(selection, {n: self.temperatures[n] for n in names}, tuple(views or self.views))

    def mixed(self, mixture: Mixture) -> Scores:
        return cache(lambda part: mixture.scores(self.scores[part]))

    def select(
        self, costs: CostMatrix, budget: float, views: Sequence[str] | None = None, part: str | None = None
    ) -> Mixture:
        return self._selected(costs, budget, views and tuple(views), part or self.chooses(MEMBERS))

    @cached_property
    def _selected(self) -> Callable[..., Mixture]:
        def made(costs: CostMatrix, budget: float, views: Any, part: str) -> Mixture:
            members, truth = {name: self.scores[part][name] for name in MEMBERS}, self.labels(part)
            return select(members, truth, costs, budget=budget / 100, members=3, views=views)

        return cache(made)

    def ruled(self, scores: Scores, part: str, calibration: str | None = None) -> Decider:
        """Under the rule as `choose` makes it on this part, the budget counted from the given model."""

        def made(costs: CostMatrix, budget: float) -> Row:
            own: dict[str, Any] = {"reference": self.top(part), "calibration": calibration}
            decision = choose(scores(part), self.labels(part), costs, budget=budget / 100, **own)
            return Row(decision.automatic(costs), scores)

        return made

    def selected(self, views: Sequence[str] | None = None, part: str | None = None) -> Decider:
        """What a part selects, that of the members unless given, under the rule."""
        own = part or self.chooses(MEMBERS)
        return lambda costs, budget: self.ruled(self.mixed(self.select(costs, budget, views, own)), own)(costs, budget)

    def by_argmax(self, name: str) -> Decider:
        scores = self._averages((name,), ("identity",))
        return lambda costs, budget: Row(MinimumExpectedCost(costs, strength=0.0), scores)

    def rows(self, problem: str) -> dict[str, Decider]:
        """All but `argmax` and those that were trained for other problems."""
        found = {RULE: self.fixed([GIVEN], ["identity"])}
        if len(self.views) > 1:
            found[VIEWS] = self.fixed([GIVEN])
        found |= {GENERIC: self.fixed(MEMBERS[:3]), AUTO: self.selected()}
        if STUDENT in self.temperatures:
            found[SINGLE] = self.fixed([STUDENT], ["identity"])
        for method, network in self.library.aimed(self.seed, problem).items():
            if method == "mixup":
                found["aimed"] = self.fixed([GIVEN, MEMBERS[1], network])
                continue
            if method == CSADA:
                found[MEMBER] = self.fixed([GIVEN, MEMBERS[2], network])
            found[method] = self.by_argmax(network)
            found[f"{method} + rule"] = self.fixed([network], ["identity"])
        return found

    def fixed(self, names: Sequence[str], views: Sequence[str] | None = None) -> Decider:
        return self.ruled(self._averages(tuple(names), tuple(views or self.views)), self.chooses(names))

    @cached_property
    def _averages(self) -> Callable[[tuple[str, ...], tuple[str, ...]], Scores]:
        return cache(lambda names, views: self.mixed(self.average(names, views)))

    @property
    def ingredients(self) -> dict[str, Decider]:
        given, restart, mixup, second = MEMBERS
        sets = {
            "given": [given],
            "restart": [restart],
            "mixup": [mixup],
            "given + restart": [given, restart],
            "given + mixup": [given, mixup],
            "given + restart + mixup": [given, restart, mixup],
            "given + two mixups": [given, mixup, second],
            "all four": list(MEMBERS),
            "student": [STUDENT],
        }
        found: dict[str, Decider] = {}
        for name, members in sets.items():
            if not set(members) <= set(self.temperatures):
                continue
            found[name] = self.fixed(members, ["identity"])
            if len(self.views) > 1:
                found[f"{name}, all views"] = self.fixed(members)
        generic, own = self._averages(MEMBERS[:3], self.views), self.chooses(MEMBERS[:3])

        def full(costs: CostMatrix, budget: float) -> Row:
            return Row(replace(self.fixed(MEMBERS[:3])(costs, budget).rule, strength=1.0), generic)

        found["auto, one view"] = self.selected(["identity"])
        if OUT_OF_FOLD in self.scores:
            found["auto, chosen on validation alone"] = self.selected(part="validation")
        found |= {"generic, full strength": full, "generic, strength in hindsight": self.best}
        return found | {f"generic, {kind} scaling": self.ruled(generic, own, kind) for kind in CALIBRATIONS}

    def best(self, costs: CostMatrix, budget: float) -> Row:
        """The generic average at the strength that is cheapest on test within the budget there: what no one can know."""
        rule, scores = self.fixed(MEMBERS[:3])(costs, budget)
        truth, needed = self.labels("test"), self.right["test"].mean() - budget / 100 - 1e-12
        tried = [replace(rule, strength=strength) for strength in STRENGTHS[::3]]
        decided = [each(scores("test")) for each in tried]
        costs_of = [costs.values[truth, d].sum() if (d == truth).mean() >= needed else np.inf for d in decided]
        return Row(tried[int(np.argmin(costs_of))], scores)
