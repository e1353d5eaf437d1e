"""Costs from answers that a person can give: "one mistake of this kind is as bad as how many of that?"

An answer is a log-ratio, log c(first) - log c(second) = log ratio + noise. Least squares on all answers gives one consistent
scale. It is free up to a factor: a typed cost fixes it; without one, the cheapest of the mistakes that hang together costs
what the cheapest of them did before. An answer contradicts the others where these, without it, imply a ratio that differs by
more than a factor of three. The page of `csada review` repeats this in JavaScript; a test compares the two.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from csada.costs import CostMatrix, Pair
from csada.decisions.arrays import Floats, Labels

DIGITS = 3  # of a fitted cost
FACTOR = 3.0  # answers, and experts, that differ by more than this are shown
SAME = 1e-9  # a gain or a deviation that is larger by less than this is rounding: the order decides


class Compared(NamedTuple):
    """One mistake of pair `first` is as bad as `ratio` mistakes of pair `second`; pairs by their number in a list."""

    first: int
    second: int
    ratio: float


@dataclass(frozen=True)
class Scale:
    costs: Floats  # [P]: NaN where nothing was said of a pair
    residuals: Floats  # [answers]: log of what was said over what is fitted; NaN where a pair was typed to cost nothing
    leverage: Floats  # [answers]: 1 where no other answer can contradict it


class Contradiction(NamedTuple):
    answer: int  # the one that fits least
    others: tuple[int, ...]  # a shortest chain of answers that implies something else; none: typed costs do
    implied: float  # the ratio that all other answers imply


def fit_scale(start: Sequence[float], answers: Sequence[Compared], typed: Mapping[int, float]) -> Scale:
    """start: [P], what the pairs cost before. typed: costs that are taken as they are."""
    used = [k for k, a in enumerate(answers) if typed.get(a.first) != 0 and typed.get(a.second) != 0]
    costs = np.full(len(start), np.nan)
    costs[list(typed)] = list(typed.values())
    at = {pair: math.log(cost) for pair, cost in typed.items() if cost > 0}  # logs that are given
    floating = []  # sets of pairs that hang together, but on no typed cost
    for together in _components(len(start), [answers[k][:2] for k in used]):
        if len(together) > 1 and not at.keys() & together:
            at[min(together)] = 0.0
            floating.append(together)
    compared = sorted({pair for k in used for pair in answers[k][:2]})
    free = [pair for pair in compared if pair not in at]
    column = {pair: j for j, pair in enumerate(free)}
    normal, right, terms = np.zeros((len(free), len(free))), np.zeros(len(free)), []
    for k in used:
        ends = (1.0, answers[k].first), (-1.0, answers[k].second)
        said = math.log(answers[k].ratio) - sum(sign * at[pair] for sign, pair in ends if pair in at)
        terms.append([(sign, column[pair]) for sign, pair in ends if pair in column])
        for sign, i in terms[-1]:
            right[i] += sign * said
            for other, j in terms[-1]:
                normal[i, j] += sign * other
    inverse = np.linalg.inv(normal)
    at |= dict(zip(free, inverse @ right, strict=True))
    for together in floating:
        before = [start[pair] for pair in together if start[pair] > 0]
        shift = math.log(min(before, default=1.0)) - min(at[pair] for pair in together)
        at |= {pair: at[pair] + shift for pair in together}
    for pair in compared:
        with np.errstate(over="ignore"):  # no cost is infinite: who makes a table of it refuses
            costs[pair] = typed.get(pair, float(np.exp(at[pair])))
    residuals, leverage = np.full(len(answers), np.nan), np.ones(len(answers))
    for k, own in zip(used, terms, strict=True):
        first, second, ratio = answers[k]
        residuals[k] = math.log(ratio) - (at[first] - at[second])
        leverage[k] = sum(sign * other * inverse[i, j] for sign, i in own for other, j in own)
    return Scale(costs, residuals, leverage)


def contradictions(
    start: Sequence[float], answers: Sequence[Compared], typed: Mapping[int, float]
) -> list[Contradiction]:
    """The answer that the others contradict most, then the next without it, until all agree within FACTOR."""
    left, found = list(range(len(answers))), []
    while left:
        scale = fit_scale(start, [answers[k] for k in left], typed)
        with np.errstate(divide="ignore", invalid="ignore"):  # what is left out: implied by the others alone
            off = np.where(scale.leverage < 1 - SAME, scale.residuals / (1 - scale.leverage), 0.0)
        size = np.abs(np.nan_to_num(off))
        worst = int(np.flatnonzero(size >= size.max() - SAME)[-1])  # of equal ones the last that was said
        if size[worst] <= math.log(FACTOR):
            break
        k = left.pop(worst)
        chain = _chain(answers[k][:2], {j: answers[j][:2] for j in left}, set(typed))
        found.append(Contradiction(k, chain, answers[k].ratio * math.exp(-off[worst])))
    return found


def next_comparison(pairs: int, answers: Sequence[Compared], typed: Iterable[int], skipped: set[Pair]) -> Pair | None:
    """The comparison that tells most: first what connects all pairs to the first one, then what lowers the variance most.

    With L the Laplacian of the answers, comparing a and b lowers the sum of variances by |L+ d|^2 / (1 + d' L+ d), where d
    is 1 at a and -1 at b. None where nothing is left to ask.
    """
    known = set(typed)
    asked = {(min(a[:2]), max(a[:2])) for a in answers} | skipped
    edges = [*(a[:2] for a in answers), *((i, min(known)) for i in known)]
    open_ = [(i, j) for i in range(pairs) for j in range(i + 1, pairs) if (i, j) not in asked and not {i, j} <= known]
    home = next((part for part in _components(pairs, edges) if 0 in part), set())
    if links := [(i, j) for i, j in open_ if (i in home) != (j in home)]:
        return links[0]
    if not open_:
        return None
    laplacian = np.full((pairs, pairs), 1 / pairs)
    for i, j in edges:
        laplacian[[i, j], [i, j]] += i != j
        laplacian[[i, j], [j, i]] -= i != j
    # what skipped comparisons left unconnected has a small link, so that an inverse exists
    inverse = np.linalg.inv(laplacian + 1e-6 * np.eye(pairs))
    best, gain = None, 0.0
    for i, j in open_:
        way = inverse[i] - inverse[j]
        lowered = float(way @ way / (1 + way[i] - way[j]))
        if lowered > gain * (1 + SAME):
            best, gain = (i, j), lowered
    return best


def from_groups(costs: Floats, known: NDArray[np.bool_], group: Sequence[int]) -> Floats:
    """[K, K]: where nothing is known, the geometric mean of what is known between the same two groups of classes.

    group: [K], -1 for a class in none. Pairs of which no group knows anything keep their cost.
    """
    found, of = costs.copy(), np.asarray(group)
    members = {g: np.flatnonzero(of == g) for g in set(group) - {-1}}
    open_ = ~known & ~np.eye(len(of), dtype=bool)
    for g, h in {(group[y], group[z]) for y, z in np.argwhere(known).tolist() if y != z}:
        if -1 in (g, h):
            continue
        cell = np.ix_(members[g], members[h])
        values = costs[cell][known[cell] & (members[g][:, None] != members[h])]
        positive = values[values > 0]
        found[cell] = np.where(open_[cell], np.exp(np.log(positive).mean()) if len(positive) else 0.0, found[cell])
    return found


def choose_pairs(probabilities: Floats, labels: Labels, costs: CostMatrix, count: int = 12) -> list[Pair]:
    """The pairs worth asking about: frequent, likely or expensive confusions, the weightiest first.

    A pair weighs how often it happens and how often the probabilities expect it, times what it costs (and an average
    mistake, so that cheap ones count too). The three critical pairs are among them even if they never happen.
    """
    k = len(costs)
    happens = np.zeros((k, k))
    np.add.at(happens, labels, probabilities)
    np.add.at(happens, (labels, probabilities.argmax(1)), 1)
    weight = happens * (costs.values + (costs.values.mean() or 1.0))
    np.fill_diagonal(weight, -1)
    order = [(int(i // k), int(i % k)) for i in np.argsort(-weight, axis=None, kind="stable")[: k * (k - 1)]]
    critical = costs.critical_pairs(min(3, count - 1))
    first = order[:1]
    others = [pair for pair in order if pair not in critical and pair not in first]
    chosen = {*first, *critical, *others[: max(count - len({*first, *critical}), 0)]}
    return sorted(chosen, key=order.index)


class Merged(NamedTuple):
    costs: CostMatrix  # the geometric mean
    spread: Floats  # [K, K]: the highest over the lowest; infinite where only some say that it costs nothing


def merge(experts: Sequence[CostMatrix]) -> Merged:
    """Several experts' costs as one. Each may have a unit of its own: spread is in units of the expert's usual cost.

    Where only some say that a mistake costs nothing, the mean is that of the others. So it is with the price of a referral.
    """
    logs = np.array([np.log(e.values, where=e.values > 0, out=np.full(e.values.shape, np.nan)) for e in experts])
    paid = ~np.isnan(logs)
    count = paid.sum(0)
    mean = np.exp(np.nan_to_num(logs).sum(0) / np.maximum(count, 1))
    same = np.all([e.values == experts[0].values for e in experts], axis=0)
    mean = np.where(same, experts[0].values, rounded(mean))
    units = np.array([math.log(e.usual or 1.0) for e in experts])[:, None, None]
    high, low = (side(np.where(paid, logs - units, none), 0) for side, none in ((np.max, -np.inf), (np.min, np.inf)))
    spread = np.where(count == len(experts), np.exp(np.where(count > 0, high - low, 0.0)), np.inf)
    spread[count == 0] = 1.0
    prices = np.array([e.referral_cost for e in experts if e.referral_cost is not None])
    price = None if not len(prices) else float(prices[0])
    if price is not None and (prices != price).any():
        price = float(rounded(np.exp(np.log(prices[prices > 0]).mean())))
    return Merged(CostMatrix(mean, experts[0].classes, price), spread)


def rounded(costs: Floats) -> Floats:
    """To DIGITS that count: what is fitted is no more exact."""
    return np.array([float(f"{cost:.{DIGITS}g}") for cost in np.ravel(costs)]).reshape(np.shape(costs))


def _components(pairs: int, edges: Iterable[Pair]) -> list[set[int]]:
    """Those that hang together, by their first member."""
    home = [{i} for i in range(pairs)]
    for i, j in edges:
        if home[i] is not home[j]:
            home[i] |= home[j]
            for member in home[j]:
                home[member] = home[i]
    return [part for i, part in enumerate(home) if min(part) == i]


def _chain(ends: Pair, answers: Mapping[int, Pair], typed: set[int]) -> tuple[int, ...]:
    """A shortest way from one end to the other over answers; from a typed cost to any other it takes none."""
    start, goal = ends
    ways: dict[int, tuple[int, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here == goal:
            return ways[here]
        steps: list[tuple[int, tuple[int, ...]]] = [(other, ()) for other in sorted(typed)] if here in typed else []
        steps += [(sum(pair) - here, (k,)) for k, pair in answers.items() if here in pair]
        for there, by in steps:
            if there not in ways:
                ways[there] = (*ways[here], *by)
                queue.append(there)
    return ()
