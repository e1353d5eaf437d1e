"""Decisions against brute force, calibration against known truth, and what a person may take over."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from csada.costs import CostMatrix
from csada.data.splits import Part
from csada.decisions import (
    CALIBRATIONS,
    Abstention,
    CostsByTruth,
    Decision,
    MinimumExpectedCost,
    Scaling,
    ThresholdMoving,
    argmax,
    choose_calibration,
    cost_coverage_curve,
    decide,
    fit_scaling,
    fit_temperature,
    frontier,
    prior_ratio,
    stratified_folds,
    threshold_for_budget,
)
from csada.errors import InputError
from csada.evaluation import Scores, evaluate, evaluate_scores
from csada.metrics import REFER, Evaluation
from csada.reading import build, plain


def sampled(n, k=4, seed=0, scale=2.0):
    """Logits that are calibrated: the labels are drawn from their softmax."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (n, k))
    return logits, (softmax(logits, axis=1).cumsum(1) > rng.random((n, 1))).argmax(1)


def cross_entropy(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


@st.composite
def problems(draw):
    """(logits, costs) for 2 to 5 classes."""
    k = draw(st.integers(2, 5))
    logits = draw(arrays(float, (draw(st.integers(1, 6)), k), elements=st.floats(-20, 20)))
    costs = draw(arrays(float, (k, k), elements=st.floats(0, 100)))
    np.fill_diagonal(costs, 0)
    return logits, CostMatrix(costs)


# the rule of least expected cost


@settings(deadline=None)
@given(problems(), st.floats(0.1, 10))
def test_no_other_decision_is_expected_to_cost_less(problem, temperature):
    logits, costs = problem
    chosen = MinimumExpectedCost(costs, temperature)(logits)
    for row, z in zip(logits, chosen, strict=True):
        p = np.exp(row / temperature - max(row / temperature))
        p /= p.sum()
        every = [sum(p[y] * costs[y, other] for y in range(len(p))) for other in range(len(p))]
        assert every[z] <= min(every) + 1e-9 * max(1.0, costs.values.max())


@settings(deadline=None)
@given(st.permutations(range(5)), st.integers(0, 100))
def test_relabelling_classes_consistently_permutes_predictions(order, seed):
    logits, _ = sampled(20, 5, seed)
    costs = CostMatrix.pareto(5, seed=seed)
    new = np.argsort(order)  # class order[i] is now called i
    renamed = CostMatrix(costs.values[np.ix_(order, order)])
    for rule in (MinimumExpectedCost, ThresholdMoving):
        assert np.array_equal(rule(renamed)(logits[:, order]), new[rule(costs)(logits)])


def test_uniform_costs_leave_argmax():
    logits, _ = sampled(500)
    costs = CostMatrix.uniform(4, 3.0)
    for rule in (MinimumExpectedCost(costs, 2.0), MinimumExpectedCost(costs, strength=0.5), ThresholdMoving(costs)):
        assert np.array_equal(rule(logits), argmax(logits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_goes_in_and_a_tensor_comes_out(dtype):
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    costs = CostMatrix.pareto(4)
    least = MinimumExpectedCost(costs)
    for rule in (argmax, least, ThresholdMoving(costs), Abstention(least, 0.5)):
        decided = rule(logits)
        assert decided.dtype == torch.int64
        assert decided.tolist() == rule(logits.detach().double().numpy()).tolist()


def test_threshold_moving_is_exact_where_the_prediction_does_not_matter():
    logits, _ = sampled(300)
    costs = CostMatrix(np.array([[1], [4], [2], [9]]) * (1 - np.eye(4)))
    assert np.array_equal(ThresholdMoving(costs, 1.7)(logits), MinimumExpectedCost(costs, 1.7)(logits))


def test_threshold_moving_weighs_each_class_by_its_costs():
    costs = CostMatrix([[0, 1, 2], [3, 0, 3], [0.5, 0.5, 0]])
    p = np.array([[0.6, 0.15, 0.25]])
    weighted = p[0] * [3, 6, 1]
    np.testing.assert_allclose(ThresholdMoving(costs).rule.probabilities(np.log(p))[0], weighted / weighted.sum())


# calibration


def test_a_temperature_is_found_where_scores_say_next_to_nothing():
    """The true class scores higher by a hair; the search for the best of large temperatures ends."""
    for seed in range(5):
        scores, labels = np.random.default_rng(seed).normal(size=(180, 3)), np.arange(180) % 3
        rows = np.arange(180)
        scores[rows, labels] += 1.5 * (scores - scores[rows, labels, None]).mean() + 1e-8
        assert 1e6 < fit_temperature(scores, labels) < 1e10


@pytest.mark.parametrize("temperature", [1e-3, 0.5, 1.0, 3.0, 1e3])
def test_a_known_temperature_is_found(temperature):
    logits, labels = sampled(20_000)
    assert fit_temperature(logits * temperature, labels) == pytest.approx(temperature, rel=0.03)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_without_a_mistake_confidence_is_what_that_many_samples_can_show(scale):
    """No finite temperature is best then; confidence stays near (N + 1) / (N + 2), whatever scale the logits have."""
    for n in (20, 200):
        logits = scale * np.random.default_rng(n).uniform(1, 2, (n, 1)) * np.eye(4)[np.arange(n) % 4]
        p = softmax(logits / fit_temperature(logits, np.arange(n) % 4), axis=1).max(1)
        assert 1 / (4 * n) < 1 - p.mean() < 2 / n


def test_scores_that_say_nothing_give_equal_probabilities_and_a_warning():
    logits, labels = sampled(200)
    for scores in (-50 * logits, 0 * logits):
        with pytest.warns(UserWarning, match="the true class scores no higher than the others .* order of the classes"):
            rule = MinimumExpectedCost.calibrated(scores, labels, CostMatrix.pareto(4))
        assert np.abs(rule.probabilities(scores) - 0.25).max() < 0.01


def test_weights_count_as_repeated_samples():
    logits, labels = sampled(60)
    weights = np.arange(60) % 4
    repeated = fit_temperature(logits.repeat(weights, 0), labels.repeat(weights))
    assert fit_temperature(logits, labels, weights) == pytest.approx(repeated, rel=1e-6)


@pytest.mark.parametrize(("n", "scale", "right"), [(30, 2.0, 1), (30, 10.0, 0), (100, 2.0, 0)])
@pytest.mark.parametrize(("calibration", "pull"), [("vector", 10), ("matrix", 50)])
def test_scaling_is_the_minimum_of_what_it_states(calibration, pull, n, scale, right):
    logits, labels = sampled(n, scale=scale)
    labels = right * labels  # or all of class 0

    def matrix(parameters):
        return np.diag(parameters) if calibration == "vector" else parameters.reshape(4, 4)

    def objective(parameters):
        loss = cross_entropy(logits @ matrix(parameters[:-4]) + parameters[-4:], labels)
        away = matrix(parameters[:-4]) - np.eye(4)
        return loss + pull / n * ((away**2).sum() + (parameters[-4:] ** 2).sum())

    identity = np.ones(4) if calibration == "vector" else np.eye(4).ravel()
    best = minimize(objective, np.concatenate([identity, np.zeros(4)])).x
    found = fit_scaling(logits, labels, calibration)
    np.testing.assert_allclose(found.matrix, matrix(best[:-4]), atol=5e-3)
    np.testing.assert_allclose(found.bias, best[-4:], atol=5e-3)


SKEWS = {  # what spoils calibrated logits, and the simplest calibration that mends it
    "temperature": (3.0 * np.eye(4), np.zeros(4)),
    "vector": (np.diag([0.5, 1.0, 2.0, 1.0]), np.array([0.0, 1.0, -1.0, 0.0])),
    "matrix": (np.eye(4) + 0.5 * np.eye(4)[[1, 0, 3, 2]], np.zeros(4)),  # each class borrows scores of another
}


@pytest.mark.parametrize("mends", SKEWS)
def test_each_calibration_finds_what_a_simpler_one_cannot_and_is_then_chosen(mends):
    (logits, labels), (fresh, truth) = sampled(5_000), sampled(5_000, seed=1)
    matrix, bias = SKEWS[mends]
    rules = {
        name: MinimumExpectedCost.calibrated(logits @ matrix + bias, labels, CostMatrix.pareto(4), name)
        for name in CALIBRATIONS
    }
    loss = {n: cross_entropy(np.log(r.probabilities(fresh @ matrix + bias)), truth) for n, r in rules.items()}
    enough = CALIBRATIONS.index(mends)
    best = cross_entropy(fresh, truth) + 0.01
    assert all((loss[name] < best) == (i >= enough) for i, name in enumerate(CALIBRATIONS)), loss
    assert choose_calibration(logits @ matrix + bias, labels) == mends


@settings(deadline=None)
@given(st.integers(0, 30))
def test_scaling_never_fits_worse_than_the_identity(seed):
    logits, labels = sampled(40, seed=seed)
    for calibration in ("vector", "matrix"):
        found = fit_scaling(logits, labels, calibration)
        assert cross_entropy(logits @ found.matrix + found.bias, labels) <= cross_entropy(logits, labels) + 1e-9


@pytest.mark.parametrize("calibration", ["vector", "matrix"])
def test_scaling_stays_near_the_identity_on_a_handful_of_samples(calibration):
    logits, _ = sampled(5)
    found = fit_scaling(
        logits, np.zeros(5, int), calibration
    )  # classes 1 to 3 have no sample: their bias would be -inf
    assert np.abs(found.matrix - np.eye(4)).max() < 0.5
    assert np.abs(found.bias).max() < 0.5


def test_a_handful_of_samples_or_one_chooses_the_simplest_calibration():
    for n in (1, 2, 7, 49):
        assert choose_calibration(*sampled(n)) == "temperature"


@settings(deadline=None)
@given(st.permutations(range(5)), st.integers(1, 60), st.integers(2, 8))
def test_folds_share_out_every_class_and_do_not_depend_on_its_number(order, n, count):
    labels = np.random.default_rng(n).integers(0, 5, n)
    found = stratified_folds(labels, count)
    assert np.array_equal(found, stratified_folds(np.asarray(order)[labels], count))
    for members in (labels >= 0, *(labels == y for y in range(5))):
        shares = np.bincount(found[members], minlength=min(count, n))
        assert len(shares) == min(count, n) and shares.max() - shares.min() <= 1


# strength


@settings(deadline=None)
@given(st.integers(0, 200), st.sampled_from([0.0, 0.005, 0.02, 0.1]), st.sampled_from(CALIBRATIONS[:2]))
def test_the_budget_is_kept_and_the_cost_never_rises_on_the_data_it_was_chosen_on(seed, budget, calibration):
    logits, labels = sampled(150, seed=seed)
    costs = CostMatrix.pareto(4, seed=seed) if seed % 2 else CostMatrix.single_pair(4, 0, 1)
    rule = MinimumExpectedCost.within_budget(logits, labels, costs, budget, calibration=calibration)
    before, after = (Evaluation.of(labels, r(logits), costs) for r in (argmax, rule))
    assert after.accuracy >= before.accuracy - budget - 1e-12 or rule.strength == 0
    assert after.total_cost <= before.total_cost + 1e-9 or rule.strength == 0


def test_a_budget_that_is_not_binding_buys_the_whole_rule_and_none_almost_nothing():
    logits, labels = sampled(2_000)
    costs = CostMatrix.pareto(4, seed=3)
    strengths = [MinimumExpectedCost.within_budget(logits, labels, costs, b).strength for b in (0, 0.01, 0.02, 1)]
    assert 0 < strengths[0] < strengths[1] < strengths[2] < strengths[3] == 1


@pytest.mark.parametrize("n", [60, 1000])
def test_the_budget_holds_on_new_data_and_a_budget_of_nothing_still_saves(n):
    """Over 40 problems, each judged on 4,000 samples that chose nothing; counted losses alone lost 1 point at n = 60."""
    lost, saved = [], []
    for seed in range(40):
        logits, labels = sampled(n + 4_000, seed=seed)
        costs = CostMatrix.pareto(4, seed=seed)
        rule = MinimumExpectedCost.within_budget(2 * logits[:n], labels[:n], costs, 0.0)
        before, after = (Evaluation.of(labels[n:], r(2 * logits[n:]), costs) for r in (argmax, rule))
        lost.append(before.accuracy - after.accuracy)
        saved.append(1 - after.mean_cost / before.mean_cost)
    assert np.mean(lost) < 0.004 and np.mean(saved) > 0.03


def test_a_rare_mistake_that_validation_lacks_does_not_switch_the_rule_off():
    """Breast cancer at 20 : 1. On most splits validation holds no missed malignancy, and the cheapest strength was 0."""
    x, y = load_breast_cancer(return_X_y=True)
    costs = CostMatrix([[0, 20], [1, 0]])
    paid, lost = np.zeros(2), 0.0
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(y))
        validation, test, train = order[:68], order[68:268], order[268:]
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[train], y[train])
        logits = model.predict_log_proba(x)
        rule = MinimumExpectedCost.within_budget(logits[validation], y[validation], costs)
        assert rule.strength > 0.05
        decided = [Evaluation.of(y[test], r(logits[test]), costs) for r in (argmax, rule)]
        paid += [e.mean_cost for e in decided]
        lost += (decided[0].accuracy - decided[1].accuracy) / 10
    assert paid[1] < 0.9 * paid[0] and lost < 0.015


def test_what_a_better_model_has_gained_on_the_reference_may_be_spent():
    logits, labels = sampled(2_000)
    costs = CostMatrix.pareto(4, seed=3)

    def strength(reference, budget=0.005):
        return MinimumExpectedCost.within_budget(logits, labels, costs, budget, reference=reference).strength

    top, second = np.argsort(-logits, axis=1)[:, :2].T
    order = np.argsort(np.diff(np.sort(logits, axis=1)[:, -2:]).ravel())  # the most doubtful first
    right, wrong = (order[(top == labels)[order] == it] for it in (True, False))

    def another(lost=right[:0], won=right[:0]):
        """The same model, but for some that it gets wrong, and others that it gets right."""
        found = top.copy()
        found[lost], found[won] = second[lost], labels[won]
        return found

    own = strength(top)
    assert own == MinimumExpectedCost.within_budget(logits, labels, costs, 0.005).strength
    assert strength(another(won=wrong[:60])) == 0 < own < strength(another(lost=right[-60:]))
    assert strength(another(right[:60], wrong[:60])) == own  # as many, and no class much less probable than its other
    assert strength(another(right[-60:], wrong[:60])) > own  # as many, but it is sure of what the other gets wrong


@pytest.mark.parametrize("needed", [0.99, 0.5])
def test_needed_is_the_accuracy_that_must_remain(needed):
    logits, labels = sampled(2_000)
    rule = MinimumExpectedCost.within_budget(logits, labels, CostMatrix.pareto(4, seed=3), needed=needed)
    assert 0.55 < (argmax(logits) == labels).mean() < 0.99
    assert (rule.strength == 0) == (needed == 0.99)
    assert needed == 0.99 or (rule(logits) == labels).mean() >= needed


def test_one_sample_is_enough_for_a_rule():
    assert MinimumExpectedCost.within_budget(LOGITS[:1], LABELS[:1], RULE.costs).costs is RULE.costs


def test_the_frontier_is_what_the_rule_of_each_strength_does():
    logits, labels = sampled(400)
    rule = MinimumExpectedCost(CostMatrix.pareto(4, seed=1), 1.3)
    curve = frontier(logits, labels, rule)
    assert curve.strength[0] == 0 and curve.strength[-1] == 1 and (np.diff(curve.strength) > 0).all()
    for i in range(0, len(curve.strength), 10):
        s = curve.strength[i]
        mean = rule.costs.values.sum() / 12
        mixed = CostMatrix(s * rule.costs.values + (1 - s) * mean * (1 - np.eye(4)))
        expected = Evaluation.of(labels, MinimumExpectedCost(mixed, 1.3)(logits), rule.costs)
        assert curve.accuracy[i] == pytest.approx(expected.accuracy)
        assert curve.mean_cost[i] == pytest.approx(expected.mean_cost)
        assert np.array_equal(replace(rule, strength=s)(logits), MinimumExpectedCost(mixed, 1.3)(logits))


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
def test_the_decided_class_has_the_least_criterion_and_its_expected_cost_is_the_real_one(strength):
    logits, _ = sampled(300)
    rule = MinimumExpectedCost(CostMatrix.pareto(4, seed=2), 1.3, strength=strength)
    p, values = softmax(logits / 1.3, axis=1), rule.costs.values
    decided = rule.decide(logits)
    chosen, expected = decided.chosen, decided.expected_costs
    mixed = strength * values + (1 - strength) * values.sum() / 12 * (1 - np.eye(4))
    np.testing.assert_allclose(decided.probabilities, p)
    np.testing.assert_allclose(decided.criterion, p @ mixed)
    np.testing.assert_allclose(expected, p @ values)
    assert np.array_equal(chosen, rule(logits)) and np.array_equal(chosen, decided.criterion.argmin(1))
    np.testing.assert_allclose(decided.cost, expected[np.arange(300), chosen])
    assert (chosen != expected.argmin(1)).any() == (strength < 1)


@pytest.mark.parametrize("cost", np.linspace(0.05, 0.45, 9).tolist())
def test_a_case_that_costs_exactly_as_much_as_a_person_is_decided(cost):
    """Up to rounding, also where the mean cost of a mistake is tiny."""
    p = np.full((1, 400), 1e-30)
    p[0, :2] = 1 - cost, cost
    rule = MinimumExpectedCost(CostMatrix.single_pair(400, 1, 0), strength=0.0)
    assert Abstention(rule, cost)(np.log(p)).tolist() == [0]
    assert Abstention(rule, cost - 1e-9)(np.log(p)).tolist() == [REFER]


# class frequencies that change


def test_reweighted_probabilities_are_those_of_the_other_frequencies():
    likelihood = np.random.default_rng(0).dirichlet(np.ones(3), size=50)  # p(x | y) up to a factor
    train, deployment = np.array([0.2, 0.3, 0.5]), np.array([0.7, 0.3, 0.0])
    before, after = (w / w.sum(1, keepdims=True) for w in (likelihood * train, likelihood * deployment))
    rule = MinimumExpectedCost(CostMatrix.pareto(3), priors=prior_ratio(train, deployment))
    np.testing.assert_allclose(rule.probabilities(np.log(before)), after, atol=1e-12)
    assert np.array_equal(rule(np.log(before)), (after @ rule.costs.values).argmin(1))


def test_right_priors_save_cost_where_the_frequencies_changed():
    rng = np.random.default_rng(2)
    deployment = np.array([0.9, 0.05, 0.05])
    truth = rng.choice(3, 5_000, p=deployment)
    x = rng.normal(0, 1.5, (5_000, 3)) + 2 * np.eye(3)[truth]
    logits = x * 2 / 1.5**2  # the log-likelihood ratio: right for equal frequencies
    costs = CostMatrix.pareto(3, seed=1)
    unaware = MinimumExpectedCost(costs)
    aware = replace(unaware, priors=prior_ratio(np.ones(3) / 3, deployment))
    paid = [Evaluation.of(truth, rule(logits), costs).total_cost for rule in (unaware, aware)]
    assert paid[1] < 0.9 * paid[0]


# a person in the loop


@settings(deadline=None)
@given(problems(), st.floats(0, 50), st.sampled_from([0.0, 0.3, 1.0]))
def test_referring_never_costs_more_in_expectation(problem, price, strength):
    logits, costs = problem
    rule = MinimumExpectedCost(costs, strength=strength)
    predicted, alone = Abstention(rule, price)(logits), rule(logits)
    expected = rule.decide(logits).expected_costs
    rows = np.arange(len(logits))
    with_referral = np.where(predicted == REFER, price, expected[rows, predicted])
    assert (with_referral <= expected[rows, alone]).all()
    assert (predicted[predicted != REFER] == alone[predicted != REFER]).all()


def test_a_person_who_costs_nothing_takes_every_doubt_and_a_dear_one_none():
    logits, _ = sampled(50)
    rule = MinimumExpectedCost(CostMatrix.uniform(4))
    assert (Abstention(rule, 0.0)(logits) == REFER).all()
    assert np.array_equal(Abstention(rule, 1.0)(logits), rule(logits))


def test_an_evaluation_with_referrals_pays_for_them():
    logits, labels = sampled(500)
    costs = CostMatrix(CostMatrix.pareto(4, seed=1).values, referral_cost=0.3)
    rule = MinimumExpectedCost(costs)
    scores = Scores(torch.from_numpy(logits), torch.from_numpy(labels))
    evaluation = evaluate_scores(scores, costs, Abstention(rule, 0.3))
    automatic = Abstention(rule, 0.3)(logits) != REFER
    assert 0 < evaluation.referred == 500 - automatic.sum() < 500
    assert evaluation.total_cost == pytest.approx(
        0.3 * evaluation.referred + costs.values[labels, rule(logits)][automatic].sum()
    )
    assert evaluation.total_cost < evaluate_scores(scores, costs, rule).total_cost


def test_the_coverage_curve_is_what_ever_higher_thresholds_pay():
    logits, labels = sampled(300)
    rule = MinimumExpectedCost(CostMatrix.pareto(4, seed=1))
    curve = cost_coverage_curve(logits, labels, rule)
    for i in (0, 99, 299):
        threshold = np.sort(rule.decide(logits).expected_costs.min(1))[i]
        decided = Abstention(rule, threshold)(logits)
        kept = decided != REFER
        assert curve.coverage[i] == pytest.approx(kept.mean())
        assert curve.cost[i] == pytest.approx(rule.costs.values[labels[kept], decided[kept]].mean())
        others = rule.costs.values[labels, rule(logits)][~kept]
        assert curve.worth[i] == pytest.approx(others.mean() if len(others) else np.nan, nan_ok=True)
    assert curve.cost[99] < 0.5 * curve.cost[-1]  # the surest third is cheap


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(0, 20))
def test_a_budget_of_referrals_is_kept_and_used(budget, seed):
    logits, _ = sampled(60, seed=seed)
    rule = MinimumExpectedCost(CostMatrix.pareto(4, seed=seed))
    referred = (Abstention(rule, threshold_for_budget(logits, rule, budget))(logits) == REFER).sum()
    assert referred == int(budget * 60 + 1e-9)


def test_cases_as_doubtful_as_each_other_stay_within_the_budget():
    logits = np.zeros((10, 3))
    rule = MinimumExpectedCost(CostMatrix.uniform(3))
    assert (Abstention(rule, threshold_for_budget(logits, rule, 0.3))(logits) != REFER).all()


# costs that differ from sample to sample


def test_costs_by_truth_agree_with_brute_force():
    logits, labels = sampled(40)
    by_truth = np.random.default_rng(3).uniform(0, 10, (40, 4))
    chosen = MinimumExpectedCost(by_truth, 1.5)(logits)
    for i, p in enumerate(softmax(logits / 1.5, axis=1)):
        every = [sum(p[y] * by_truth[i, y] for y in range(4) if y != z) for z in range(4)]
        assert chosen[i] == np.argmin(every)
    table = CostsByTruth(by_truth).table(labels)
    for i in range(40):
        assert table[i].tolist() == [0 if z == labels[i] else by_truth[i, labels[i]] for z in range(4)]


def test_deciding_by_each_samples_own_costs_is_cheaper_than_by_probability():
    logits, labels = sampled(3_000)
    costs = CostsByTruth(np.random.default_rng(3).pareto(1.5, (3_000, 4)))
    scores = Scores(torch.from_numpy(logits), torch.from_numpy(labels))
    table = costs.table(labels)
    own, by_probability = (evaluate_scores(scores, table, rule) for rule in (MinimumExpectedCost(costs), "argmax"))
    assert own.total_cost < 0.9 * by_probability.total_cost
    rule = MinimumExpectedCost(costs)
    assert frontier(logits, labels, rule).mean_cost[-1] == pytest.approx(own.mean_cost)
    assert cost_coverage_curve(logits, labels, rule).cost[-1] == pytest.approx(own.mean_cost)


def test_evaluate_takes_costs_per_sample_from_the_data_an_argument_or_in_place_of_the_matrix():
    logits, labels = sampled(30)
    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    table = torch.from_numpy(np.random.default_rng(1).uniform(1, 9, (30, 4)))
    table[torch.arange(30), y] = 0
    matrix = CostMatrix.pareto(4)
    paid = float(table[torch.arange(30), x.argmax(1)].sum())
    model = nn.Identity()
    ways = (
        evaluate(model, Part(x, y, costs=table), matrix),
        evaluate(model, (x, y), matrix, example_costs=table),
        evaluate(model, (x, y), table),
        evaluate_scores(Scores(x, y), matrix, example_costs=table.numpy()),
    )
    for evaluation in ways:
        assert evaluation.total_cost == pytest.approx(paid)
        assert evaluation.mean_cost == pytest.approx(paid / 30)
        assert evaluation.accuracy == float((x.argmax(1) == y).double().mean())
    assert ways[2].costs[1, 2] == pytest.approx(float(table[y == 1, 2].mean()))
    assert evaluate(model, (x, y), matrix.values).total_cost == evaluate(model, (x, y), matrix).total_cost != paid


# what cannot be right is refused, with the way out


LOGITS, LABELS = sampled(6)
RULE = MinimumExpectedCost(CostMatrix.uniform(4))
SCORES = Scores(torch.from_numpy(LOGITS), torch.from_numpy(LABELS))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decide(np.full((2, 4), 0.3), RULE.costs), "sample 0 are .* sum to 1.2; .* .softmax"),
        (lambda: decide(np.array([[1.5, -0.5]]), CostMatrix.uniform(2)), "zero or more"),
        (lambda: decide(np.array([[np.nan, 0.5]]), CostMatrix.uniform(2)), "sum to nan"),
        (lambda: prior_ratio([0.5, 0.5], [0.5, 0.6]), "deployment priors are .* sum to 1.1"),
        (lambda: prior_ratio([1.0, 0.0], [0.5, 0.5]), "class 1 was never seen in training"),
        (lambda: prior_ratio([0.5, 0.5], [0.1, 0.1, 0.8]), r"\(2,\) training and \(3,\) deployment priors"),
        (lambda: ThresholdMoving(RULE.costs, 0.0)(LOGITS), "temperature must be a positive number, got 0.0"),
        (lambda: replace(RULE, priors=(1.0, 2.0)), "each of the 4 classes"),
        (lambda: replace(RULE, priors=(1.0, 2.0, -1.0, 1.0)), "zero or more"),
        (lambda: replace(RULE, temperature=0.0), "temperature must be a positive number, got 0.0"),
        (lambda: replace(RULE, strength=1.5), "strength must be from 0 .* got 1.5"),
        (lambda: Abstention(RULE, -0.1), "refer_above is -0.1; .* zero or more"),
        (lambda: Abstention(RULE, float("nan")), "refer_above is nan"),
        (lambda: threshold_for_budget(LOGITS, RULE, 7), "share of cases .* from 0 to 1; got 7"),
        (lambda: MinimumExpectedCost.within_budget(LOGITS, LABELS, RULE.costs, -1), "from 0 to 1; got -1"),
        (
            lambda: MinimumExpectedCost.calibrated(LOGITS, LABELS, RULE.costs, "platt"),
            "known: temperature, vector, matrix",
        ),
        (lambda: RULE(LOGITS[:, :3]), r"shape \(6, 3\); \(samples, 4\) is needed"),
        (lambda: RULE(LOGITS * np.inf), "the scores of sample 0 are"),
        (lambda: argmax(LOGITS[0]), r"shape \(4,\)"),
        (lambda: MinimumExpectedCost(np.ones((5, 4)))(LOGITS), r"shape \(5, 4\) .* give \(4, 4\), .* or \(6, 4\)"),
        (lambda: MinimumExpectedCost(np.ones((4, 4))), "a correct prediction must cost 0"),
        (lambda: MinimumExpectedCost(-np.ones((6, 4))), "sample 0, class 0 is -1"),
        (lambda: MinimumExpectedCost(np.ones(4)), r"shape \(4,\); \(samples, classes\) is needed"),
        (lambda: Decision.of(MinimumExpectedCost(np.ones((6, 4)))), "only MinimumExpectedCost with a cost matrix"),
        (lambda: evaluate_scores(SCORES, np.ones((5, 4))), r"shape \(5, 4\) for 6 samples .* \(4, 4\), .* \(6, 4\)"),
        (lambda: evaluate_scores(SCORES, RULE.costs, example_costs=np.ones((6, 3))), r"\(6, 4\) is needed"),
        (lambda: evaluate_scores(SCORES, RULE.costs, "cheapest"), "unknown decision 'cheapest'"),
        (lambda: fit_temperature(LOGITS, LABELS[:5]), "6 rows of logits and 5 labels"),
        (lambda: fit_scaling(LOGITS, LABELS + 4), "is out of range; the logits score 4 classes"),
        (lambda: CostsByTruth(np.ones((6, 4))).table(LABELS[:2]), "2 labels for costs of 6 samples"),
    ],
)
def test_bad_input_is_named_with_the_way_out(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_under_a_single_costly_pair_certain_samples_keep_their_class():
    """Nearly all classes are then expected to cost nothing; the lowest class number must not win everywhere."""
    costs = CostMatrix.single_pair(4, 1, 2)
    p = np.array([[0.9, 0.04, 0.03, 0.03], [0.03, 0.9, 0.04, 0.03], [0.03, 0.04, 0.9, 0.03], [0.03, 0.03, 0.04, 0.9]])
    # the third is called the second likeliest class, since calling it 2 might cost
    assert MinimumExpectedCost(costs)(np.log(p)).tolist() == decide(p, costs).chosen.tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize("above", [None, 0.25])
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_a_rule_goes_through_json_and_decides_the_same(calibration, above):
    logits = np.random.default_rng(0).normal(size=(200, 4)) * 2
    labels = (logits + np.random.default_rng(1).normal(size=logits.shape)).argmax(1)
    costs = CostMatrix.pareto(4, seed=1)
    rule = replace(MinimumExpectedCost.calibrated(logits, labels, costs, calibration), priors=(1, 2, 1, 0.5))
    rule = rule if above is None else Abstention(rule, above)
    back = build(Decision, json.loads(json.dumps(plain(Decision.of(rule)))), "rule").rule(costs)
    np.testing.assert_array_equal(back(logits), rule(logits))
    assert back == rule


def test_a_file_from_when_fields_had_other_names_is_read():
    old = {"temperature": 2.0, "vector": {"scale": [1.0, 2.0], "bias": [0.0, 0.5]}, "priors": None, "strength": 0.5}
    now = Decision(2.0, Scaling((1.0, 2.0), (0.0, 0.5)), strength=0.5, refer_above=0.25)
    assert build(Decision, old | {"referral_cost": 0.25}, "file") == now
    assert build(Decision, old | {"vector": None}, "file") == Decision(2.0, strength=0.5)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"costs": [[0, 1], [1, 0]]}, "file: unknown key 'costs'; known keys: temperature, scaling, priors"),
        ({"scaling": [1, 2]}, r"file: scaling is \[1, 2\]; a table"),
        ({"scaling": {"scale": [1.0, 2.0]}}, "file: scaling: bias is missing"),
        ({"temperature": "hot"}, "file: temperature is 'hot'; a number is needed"),
        ({"temperature": 0}, "temperature must be a positive number"),
        ({"vector": {"scale": [1.0, 2.0], "bias": [0.0, 0.0]}}, r"scales \(2,\) and biases \(2,\) for 3 classes"),
        ({"scaling": {"scale": [[1.0, 0.0]], "bias": [0.0] * 3}}, r"scales \(1, 2\) and biases \(3,\) for 3 classes"),
        ({"priors": [1.0]}, "each of the 3 classes"),
    ],
)
def test_what_is_no_rule_is_refused(broken, message):
    with pytest.raises(InputError, match=message):
        build(Decision, broken, "file").rule(CostMatrix.uniform(3))
