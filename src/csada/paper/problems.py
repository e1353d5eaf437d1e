"""The cost problems of the study: which mistakes cost how much. All come from validation alone, or from a seed.

pareto   ten matrices of Pareto costs, as in the paper
pmi      ten matrices like the paper's on pill bottles: four of the most confused pairs cost 10, all other mistakes 1
block    two groups of classes; mistakes across cost 2, 5, 10, 20 or 50, both ways or one way, all others 1
pairs    the 20 most confused pairs, one at a time: that mistake costs, all others are free
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.metrics import Counts

KINDS = ("pareto", "pmi", "block", "pairs")
MATRICES, CONFUSED, CRITICAL = 10, 20, 4
RATIOS, DIRECTIONS = (2, 5, 10, 20, 50), ("both", "out", "in")  # out of the first group, into it

Problems = dict[str, CostMatrix]


def problems(confusion: Counts, group: Sequence[int] | None = None) -> dict[str, Problems]:
    """Kind -> name -> costs. confusion: of the given model on validation. group: classes on one side of the blocks."""
    k = len(confusion)
    pairs = most_confused(confusion)
    found = {
        "pareto": {f"pareto:{seed}": costs(f"pareto:{seed}", k) for seed in range(MATRICES)},
        "pmi": {f"pmi:{seed}": _critical(pairs, k, seed) for seed in range(MATRICES)},
        "block": {f"block:{r}:{d}": costs(f"block:{r}:{d}", k, group) for d in DIRECTIONS for r in RATIOS if group},
        "pairs": {f"pair:{y}:{z}": CostMatrix.single_pair(k, y, z) for y, z in pairs},
    }
    return {kind: _distinct(own) for kind, own in found.items() if own}


def problem(target: str, confusion: Counts, group: Sequence[int] | None = None) -> tuple[str, CostMatrix]:
    """Its name and costs; `pairs:I` is the I-th of the single pairs, which are known when the given model is."""
    kind, *rest = target.split(":")
    if kind not in ("pmi", "pairs"):
        return target, costs(target, len(confusion), group)
    own = problems(confusion, group)[kind]
    name = list(own)[int(rest[0])] if kind == "pairs" else target
    return name, own[name]


def costs(name: str, classes: int, group: Sequence[int] | None = None) -> CostMatrix:
    """A problem that does not depend on a model: pareto:SEED or block:RATIO:DIRECTION."""
    kind, *rest = name.split(":")
    if kind == "pareto" and len(rest) == 1:
        return CostMatrix.pareto(classes, seed=int(rest[0]))
    if kind != "block" or len(rest) != 2 or rest[1] not in DIRECTIONS or not group:
        raise InputError(
            f"unknown problem {name!r}; known: pareto:SEED, and block:RATIO:both, out or in for two groups"
        )
    first = np.isin(np.arange(classes), group)
    out, into = first[:, None] & ~first, ~first[:, None] & first
    across = {"both": out | into, "out": out, "in": into}[rest[1]]
    values = np.where(across, float(rest[0]), 1.0)
    np.fill_diagonal(values, 0)
    return CostMatrix(values)


def most_confused(confusion: Counts) -> list[tuple[int, int]]:
    """(truth, predicted), the most frequent mistakes first; of equals the first class first."""
    counts = np.array(confusion, dtype=np.int64)
    np.fill_diagonal(counts, -1)
    order = np.argsort(-counts, axis=None, kind="stable")[: min(CONFUSED, counts.size - len(counts))]
    return [(int(i) // len(counts), int(i) % len(counts)) for i in order]


def _critical(pairs: Sequence[tuple[int, int]], classes: int, seed: int) -> CostMatrix:
    """Fewer than CRITICAL pairs where there are few: half of all, so that some mistakes cost more than others."""
    drawn = np.random.default_rng(seed).permutation(len(pairs))[: min(CRITICAL, len(pairs) // 2)]
    values = CostMatrix.uniform(classes).values.copy()
    for i in drawn:
        values[pairs[i]] = 10.0
    return CostMatrix(values)


def _distinct(own: Problems) -> Problems:
    """Of the same matrices the first: two classes have few."""
    return {name: each for name, each in own.items() if name == next(n for n, other in own.items() if other == each)}
