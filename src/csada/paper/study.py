"""The study: what each way to fewer costly mistakes is worth, judged on the stored scores of a library. Nothing is trained.

Calibration, strength, members and views are chosen on validation; a row of a problem looks at the test part once. Everything
is told in percent of what the given model costs by argmax on test. All matrices are scaled to a mean cost of 1 for a mistake,
and a kind of problem is one sum over its problems and baselines: a problem with hardly any mistakes on test weighs little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.costs import CostMatrix
from csada.decisions.rules import STRENGTHS, mean_cost
from csada.errors import InputError
from csada.paper.library import MEMBERS, read_library
from csada.paper.problems import KINDS
from csada.paper.sources import Source
from csada.paper.study_rows import AIMED, ARGMAX, AUTO, CSADA, DRAWN, GENERIC, RULE, Decider, Given
from csada.processes import in_order
from csada.reading import read_json, sha256

BUDGETS = (0.0, 0.25, 0.5, 1.0)  # points of accuracy
SHOWN = 0.5  # the budget of the ingredients
ALLOWED = 5.0  # % of the given model's cost that auto may lose to the best other row
EVERY = "all kinds"  # each kind weighing as much as the others
CURVES = (
    "pareto:0",
    "block:10:both",
)  # the problems whose frontier is drawn, for the first baseline that was aimed at them
REFERENCES = (RULE, GENERIC, AUTO)

Floats = NDArray[np.float64]
Rows = Mapping[str, Any]  # how each decides: part -> [N]


# -- the record ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """In % of the given model's cost; above 0 the row removes more than the other. The 95 % interval is over test samples."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One row on one kind of problem."""

    data: str
    kind: str
    budget: float
    row: str
    removed: float | None  # % of the given model's cost by argmax on test; None where that is nothing
    points: float  # of accuracy gained on test
    problems: int  # over all baselines
    against: dict[str, Difference]


@dataclass(frozen=True)
class Choice:
    """Of the rows of a problem, whether the one that validation picks is the cheapest on test, or not clearly above it."""

    data: str
    budget: float
    cheapest: int
    within: int
    problems: int
    members: dict[str, int]  # how often auto had each
    views: int  # how often it took all views


@dataclass(frozen=True)
class Acceptance:
    """Auto against the row that turned out best on test, all kinds together or where networks were aimed."""

    data: str
    kind: str
    budget: float
    best: str
    difference: Difference
    accepted: bool  # the interval excludes that auto loses more than ALLOWED


@dataclass(frozen=True)
class Curve:
    """[points of accuracy gained, % of cost removed] on test, by strength from 0 to 1."""

    data: str
    problem: str
    row: str
    points: list[list[float]]


@dataclass(frozen=True)
class Study:
    """libraries: the hash of each, so that only those that grew are judged again."""

    libraries: dict[str, str]
    samples: dict[str, dict[str, int]]
    baselines: dict[str, int]
    lines: list[Line]
    ingredients: list[Line]
    choices: list[Choice]
    acceptance: list[Acceptance]
    curves: list[Curve]

    def line(self, data: str, kind: str, budget: float, row: str) -> Line | None:
        wanted = data, kind, budget, row
        return next((x for x in self.lines if (x.data, x.kind, x.budget, x.row) == wanted), None)

    def without(self, data: str) -> Study:
        kept: dict[str, Any] = {key: {n: x for n, x in getattr(self, key).items() if n != data} for key in TABLES}
        kept |= {key: [x for x in getattr(self, key) if x.data != data] for key in LISTS}
        return Study(**kept)


TABLES = ("libraries", "samples", "baselines")
LISTS = ("lines", "ingredients", "choices", "acceptance", "curves")
NOTHING = Study({}, {}, {}, [], [], [], [], [])


def read_study(path: Path) -> Study:
    """An empty one where there is none."""
    return read_json(path, Study) if path.exists() else NOTHING


# -- judging ---------------------------------------------------------------------------------------


@dataclass
class Sums:
    """Over the problems of a kind, [N] test samples: what each row paid, and how often it was right."""

    paid: dict[str, Floats]
    right: dict[str, Floats]
    problems: int = 0

    def add(self, rows: Rows, truth: Any, table: Floats) -> dict[str, Floats]:
        """One problem more; what each row paid. table: [K, K], the costs."""
        self.problems += 1
        found: dict[str, Floats] = {}
        for row, decide in rows.items():
            decided = decide("test")
            found[row] = np.asarray(table[truth, decided])
            self.paid[row] = self.paid.get(row, 0.0) + found[row]
            self.right[row] = self.right.get(row, 0.0) + (decided == truth).astype(np.float64)
        return found


@dataclass
class Tally:
    """One baseline."""

    ids: NDArray[np.uint64]
    sums: dict[tuple[str, float], Sums]
    ingredients: dict[str, Sums]
    choices: dict[float, Counter[str]]
    curves: list[Curve]


def judge_one(data: str, folder: Path, seed: int, source: Source) -> Tally:
    library = read_library(folder, data)
    assert library is not None
    given = Given(library, seed, source)
    truth = given.labels("test")

    def decided(deciders: Mapping[str, Decider], costs: CostMatrix, budget: float) -> Rows:
        return {ARGMAX: given.top, **{row: decider(costs, budget) for row, decider in deciders.items()}}

    result = Tally(library.ids(seed), {}, {}, {budget: Counter() for budget in BUDGETS}, [])
    for kind, own in given.problems.items():
        aimed = kind.startswith(AIMED)
        for name, costs in own.items():
            table = costs.values / mean_cost(costs)
            deciders = given.rows(name if aimed else "")
            for budget in BUDGETS:
                rows = decided(deciders, costs, budget)
                test = result.sums.setdefault((kind, budget), Sums({}, {})).add(rows, truth, table)
                if not aimed:
                    result.choices[budget].update(_right(test, _picked(given, costs, rows, budget)))
                    mixture = given.select(costs, budget)
                    result.choices[budget].update(f"member {name}" for name in mixture.selection.weights)
                    result.choices[budget]["views"] += len(mixture.views) > 1
            if not aimed:
                rows = decided(given.ingredients, costs, SHOWN)
                result.ingredients.setdefault(kind, Sums({}, {})).add(rows, truth, table)
                if seed == source.aimed[0] and name in CURVES and table[truth, given.top("test")].any():
                    result.curves.extend(_curves(given, data, name, costs))
    return result


def _picked(given: Given, costs: CostMatrix, rows: Rows, budget: float) -> str:
    """The row that is cheapest on validation of those within the budget."""
    truth = given.labels("validation")
    decided = {row: decide("validation") for row, decide in rows.items()}
    needed = float((decided[ARGMAX] == truth).mean()) - budget / 100 - 1e-12
    allowed = [row for row, found in decided.items() if float((found == truth).mean()) >= needed]
    return min(allowed, key=lambda row: float(costs.values[truth, decided[row]].mean()))


@lru_cache(maxsize=2)
def resamples(n: int, draws: int = 2000) -> NDArray[np.float32]:
    """[draws, n]: how often each of n samples is drawn; the draws of `bootstrap_paid`, for many differences at once."""
    generator = np.random.default_rng(0)
    return np.stack([np.bincount(generator.integers(n, size=n), minlength=n).astype(np.float32) for _ in range(draws)])


def interval(values: Floats) -> tuple[float, float]:
    """The 95 % interval of their sum."""
    low, high = np.quantile(resamples(len(values)) @ values.astype(np.float32), [0.025, 0.975])
    return float(low), float(high)


def _right(test: Mapping[str, Floats], picked: str) -> Counter[str]:
    cheapest = min(test, key=lambda row: test[row].mean())
    difference = test[picked] - test[cheapest]
    same = not difference.any() or difference.mean() <= 0
    within = same or interval(difference)[0] <= 0
    return Counter({"problems": 1, "cheapest": int(same), "within": int(within)})


def _curves(given: Given, data: str, name: str, costs: CostMatrix) -> Iterator[Curve]:
    truth, start = given.labels("test"), given.right["test"].mean()
    paid = costs.values[truth, given.top("test")].sum()
    shown = {row: decide for row, decide in given.rows(name).items() if row in (*DRAWN, CSADA)}
    for row, decider in shown.items():
        rule, scores = decider(costs, SHOWN)
        logits, points = scores("test"), []
        for strength in STRENGTHS[::3] if row != CSADA else (0.0,):  # as the paper has it, by argmax
            decided = replace(rule, strength=strength)(logits)
            removed = 1 - costs.values[truth, decided].sum() / paid
            points.append([round(100 * float((decided == truth).mean() - start), 3), round(100 * float(removed), 2)])
        yield Curve(data, name, row, [p for i, p in enumerate(points) if i == 0 or p != points[i - 1]])


# -- all of them -----------------------------------------------------------------------------------


def to_judge(folder: Path, study: Study, names: Sequence[str]) -> list[str]:
    """Those whose library has a complete baseline and is another one than the record's."""
    found = [name for name in names if read_library(folder, name)]  # what is no library may be too large to hash
    return [name for name in found if study.libraries.get(name) != sha256(folder / f"library-{name}.npz")]


def judge(
    study: Study,
    folder: Path,
    name: str,
    source: Source,
    *,
    jobs: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> Study:
    """The record with this data set judged anew: all baselines of its library."""
    library = read_library(folder, name)
    if library is None or not library.seeds:
        raise InputError(f"no complete baseline of {name} in {folder}; `csada study {name}` trains them")
    judged: list[Tally] = []
    work = [(name, folder, seed, source) for seed in library.seeds]
    for done in in_order(judge_one, work, min(jobs, len(work))):
        judged.append(done)
        if on_progress is not None:
            on_progress(len(judged), len(work))
    study = study.without(name)
    study.libraries[name] = sha256(folder / f"library-{name}.npz")
    study.samples[name], study.baselines[name] = library.about.samples, len(library.seeds)
    _summarise(study, name, judged)
    return study


def _summarise(study: Study, name: str, own: list[Tally]) -> None:
    possible = (*KINDS, *(f"{AIMED} {kind}" for kind in KINDS))
    present = [kind for kind in possible if any((kind, BUDGETS[0]) in each.sums for each in own)]
    ids = np.unique(np.concatenate([each.ids for each in own]))
    for budget in BUDGETS:
        parts = {kind: [(j.ids, s) for j in own if (s := j.sums.get((kind, budget)))] for kind in present}
        shares = {kind: Shares.of(each, ids) for kind, each in parts.items()}
        for every, of in ((EVERY, KINDS), (AIMED, possible[len(KINDS) :])):
            if counted := [s for kind, s in shares.items() if s.counted and kind in of]:
                shares[every] = Shares.mean(counted)
        for kind, each in shares.items():
            study.lines.extend(each.lines(name, kind, budget))
            if each.counted and kind in (EVERY, AIMED):
                study.acceptance.append(each.acceptance(name, kind, budget))
        counts: Counter[str] = sum((j.choices[budget] for j in own), Counter())
        members = {m: counts[f"member {m}"] for m in MEMBERS}
        cheapest, within, asked = (counts[key] for key in ("cheapest", "within", "problems"))
        study.choices.append(Choice(name, budget, cheapest, within, asked, members, counts["views"]))
    tried = {kind: Shares.of([(j.ids, j.ingredients[kind]) for j in own], ids) for kind in present if kind in KINDS}
    if known := {kind: each for kind, each in tried.items() if each.counted}:
        tried[EVERY] = Shares.mean(list(known.values()))
    for kind, each in tried.items():
        study.ingredients.extend(each.lines(name, kind, SHOWN, references=()))
    study.curves.extend(curve for each in own for curve in each.curves)


@dataclass(frozen=True)
class Shares:
    """[N] by row: what each sample adds to the cost, in % of the given model's by argmax; N different samples."""

    paid: dict[str, Floats]
    points: dict[str, float]
    problems: int

    @property
    def counted(self) -> bool:
        return bool(self.paid)

    @classmethod
    def of(cls, parts: Sequence[tuple[NDArray[np.uint64], Sums]], every: NDArray[np.uint64]) -> Shares:
        """A sample that is in the test part of several splits is one sample. every: all samples, ordered."""
        which = np.searchsorted(every, np.concatenate([ids for ids, _ in parts]))
        rows = [row for row in parts[0][1].paid if all(row in sums.paid for _, sums in parts)]
        total = sum(float(sums.paid[ARGMAX].sum()) for _, sums in parts)
        asked = sum(len(ids) * sums.problems for ids, sums in parts)
        points = {r: 100 * sum(float((s.right[r] - s.right[ARGMAX]).sum()) for _, s in parts) / asked for r in rows}
        paid: dict[str, Floats] = {}
        for row in rows if total > 0 else []:
            own = np.concatenate([sums.paid[row] for _, sums in parts])
            paid[row] = np.asarray(100 / total * np.bincount(which, own, len(every)), np.float64)
        return cls(paid, points, sum(sums.problems for _, sums in parts))

    @classmethod
    def mean(cls, kinds: Sequence[Shares]) -> Shares:
        rows = [row for row in kinds[0].paid if all(row in each.paid for each in kinds)]
        paid = {row: np.asarray(sum(each.paid[row] for each in kinds)) / len(kinds) for row in rows}
        points = {row: float(np.mean([each.points[row] for each in kinds])) for row in rows}
        return cls(paid, points, sum(each.problems for each in kinds))

    def difference(self, row: str, other: str) -> Difference:
        saved = self.paid[other] - self.paid[row]
        low, high = interval(saved)
        return Difference(round(float(saved.sum()), 2), round(low, 2), round(high, 2))

    def lines(self, data: str, kind: str, budget: float, references: Sequence[str] = REFERENCES) -> Iterator[Line]:
        for row, points in self.points.items():
            removed = round(100 - float(self.paid[row].sum()), 2) if self.counted else None
            known = [r for r in references if r != row and row != ARGMAX and self.counted]
            against = {reference: self.difference(row, reference) for reference in known}
            yield Line(data, kind, budget, row, removed, round(points, 3), self.problems, against)

    def acceptance(self, data: str, kind: str, budget: float) -> Acceptance:
        best = min((row for row in self.paid if row != AUTO), key=lambda row: float(self.paid[row].sum()))
        difference = self.difference(AUTO, best)
        return Acceptance(data, kind, budget, best, difference, difference.low >= -ALLOWED)
