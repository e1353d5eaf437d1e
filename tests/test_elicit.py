"""Costs from a person's answers: what is asked, what follows from it, and where it contradicts itself."""

import numpy as np
import pytest

from csada import CostMatrix
from csada.decisions.elicit import (
    Compared,
    choose_pairs,
    contradictions,
    fit_scale,
    from_groups,
    merge,
    next_comparison,
)

P = 12


def interview(true, answers, noise=0.2, seed=0):
    """A person who knows the true costs, up to log-normal noise, is asked what tells most."""
    draw, said = np.random.default_rng(seed), []
    while len(said) < answers and (asked := next_comparison(len(true), said, (), set())):
        first, second = asked
        said.append(Compared(first, second, true[first] / true[second] * np.exp(draw.normal(0, noise))))
    return said


@pytest.mark.parametrize("seed", range(20))
def test_noisy_answers_recover_the_ratios(seed):
    true = np.exp(np.random.default_rng(100 + seed).normal(0, 1.5, P))
    found = fit_scale([1.0] * P, interview(true, 3 * P, seed=seed), {}).costs
    error = np.abs(found[:, None] / found / (true[:, None] / true) - 1)
    assert np.median(error[~np.eye(P, dtype=bool)]) <= 0.25
    assert not contradictions([1.0] * P, interview(true, 3 * P, seed=seed), {})


def test_other_pairs_follow_from_named_groups():
    """Three groups of four classes; 12 of 132 pairs are asked about, all in noisy comparisons."""
    group, between = np.arange(12) // 4, np.array([[1, 8, 30], [2, 1, 5], [60, 10, 3.0]])
    true = between[group][:, group]
    cells = [(y, z) for g in range(3) for h in range(3) for y, z in [(4 * g, 4 * h + 1)]]
    asked = [*cells, (5, 8), (9, 2), (2, 7)]
    scale = fit_scale([1.0] * P, interview(np.array([true[pair] for pair in asked]), 3 * P), {})
    costs, known = np.ones((12, 12)) - np.eye(12), np.zeros((12, 12), bool)
    for pair, cost in zip(asked, scale.costs, strict=True):
        costs[pair], known[pair] = cost, True
    found, off = from_groups(costs, known, group.tolist()), ~np.eye(12, dtype=bool)
    ratio = found[off] / true[off]
    assert np.median(np.abs(ratio / np.median(ratio) - 1)) <= 0.25
    assert np.array_equal(from_groups(costs, known, [-1] * 12), costs)


def test_the_first_answers_connect_all_pairs_and_no_question_comes_twice():
    said = interview(np.ones(P), 66)
    assert {pair for a in said[: P - 1] for pair in a[:2]} == set(range(P))
    assert len({frozenset(a[:2]) for a in said}) == len(said) == 66 and next_comparison(P, said, (), set()) is None


def test_each_question_lowers_the_variance_most():
    """Against the trace of the covariance, computed for every possible question."""
    said = interview(np.ones(6), 7)

    def variance(edges):
        laplacian = np.zeros((6, 6))
        for i, j in edges:
            d = np.eye(6)[i] - np.eye(6)[j]
            laplacian += np.outer(d, d)
        return np.trace(np.linalg.pinv(laplacian))

    edges = [a[:2] for a in said]
    free = [(i, j) for i in range(6) for j in range(i + 1, 6) if (i, j) not in edges]
    best = min(variance([*edges, pair]) for pair in free)
    assert variance([*edges, next_comparison(6, said, (), set())]) == pytest.approx(best, rel=1e-4)


def test_the_cheapest_costs_what_it_did_and_typed_costs_stay():
    said = [Compared(0, 1, 10), Compared(1, 2, 2)]
    assert fit_scale([1.0] * 4, said, {}).costs[:3].tolist() == pytest.approx([20, 2, 1])
    assert np.isnan(fit_scale([1.0] * 4, said, {}).costs[3])
    assert fit_scale([1.0] * 4, said, {2: 7.0}).costs[:3].tolist() == pytest.approx([140, 14, 7])
    nothing = fit_scale([1.0] * 4, said, {0: 0.0})
    assert nothing.costs[:3].tolist() == pytest.approx([0, 2, 1]) and np.isnan(nothing.residuals[0])


def test_a_contradiction_comes_with_the_answers_that_made_it():
    said = [Compared(0, 1, 2), Compared(1, 2, 3), Compared(3, 0, 1), Compared(0, 2, 60)]
    (found,) = contradictions([1.0] * 4, said, {})
    assert (found.answer, found.others, found.implied) == (3, (0, 1), pytest.approx(6))
    assert not contradictions([1.0] * 4, [*said[:3], Compared(0, 2, 17)], {})  # within a factor of three
    (typed,) = contradictions([1.0] * 2, [Compared(0, 1, 2)], {0: 10.0, 1: 1.0})
    assert (typed.answer, typed.others, typed.implied) == (0, (), pytest.approx(10))


def test_pairs_that_matter_are_asked_about():
    draw = np.random.default_rng(0)
    labels = np.arange(400) % 5
    p = np.where(np.eye(5, dtype=bool)[labels], 0.9, 0.025) + draw.uniform(0, 1e-3, (400, 5))
    p[labels == 1] = [0.6, 0.3, 0.04, 0.03, 0.03]  # always labelled as 0
    p[labels == 2] = [0.01, 0.01, 0.6, 0.37, 0.01]  # right, but unsure
    p /= p.sum(1, keepdims=True)
    costs = CostMatrix.from_pairs("abcde", {(4, 0): 50})
    chosen = choose_pairs(p, labels, costs, 4)
    assert len(chosen) == 4 and {(1, 0), (2, 3), (4, 0)} <= {*chosen}
    assert len(choose_pairs(p, labels, costs, 99)) == 20


def test_merged_experts_are_the_geometric_mean_whatever_their_unit():
    a = CostMatrix.from_pairs("abc", {("a", "b"): 10, ("b", "a"): 2})
    b = CostMatrix.from_pairs("abc", {("a", "b"): 40, ("b", "a"): 2})
    costs, spread = merge([a, b])
    assert costs["a", "b"] == 20 and costs["b", "a"] == 2 and spread[0, 1] == pytest.approx(4)
    assert spread[1, 0] == spread[0, 0] == 1
    other_unit = CostMatrix(100 * b.values, b.classes)
    assert merge([a, other_unit]).spread == pytest.approx(spread)
    free = CostMatrix.from_pairs("abc", {("a", "b"): 0, ("b", "a"): 2})
    assert merge([a, free]).costs["a", "b"] == 10 and np.isinf(merge([a, free]).spread[0, 1])
