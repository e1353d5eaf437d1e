"""The numbers printed next to claims: exact bounds, the bootstrap, and costs per pair, per sample and per referral."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.metrics import (
    REFER,
    Evaluation,
    PairError,
    accuracy,
    at_most,
    confusion_counts,
    exact_bounds,
    mean_cost,
    mean_interval,
    pairwise_error_rates,
)


def samples(n=400, k=4, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    predicted = np.where(rng.random(n) < 0.7, truth, rng.integers(0, k, n))
    return truth, predicted


@settings(deadline=None)
@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_exact_bounds_are_those_of_scipy(counts, confidence):
    errors, n = counts
    reference = binomtest(errors, n).proportion_ci(confidence, method="exact")
    assert exact_bounds(errors, n, confidence) == pytest.approx((reference.low, reference.high), abs=1e-9)


def test_no_error_of_120_means_at_most_two_and_a_half_per_cent():
    assert at_most(0, 120) == pytest.approx(1 - 0.05 ** (1 / 120))
    assert str(PairError("a", "b", 10.0, 0, 120)) == "a -> b: 0 of 120 (0.00 %), at most 2.5 % (one-sided 95 %)"


def test_more_errors_than_samples_are_refused():
    with pytest.raises(InputError, match="7 errors of 5 samples"):
        exact_bounds(7, 5)


def test_the_confusion_is_what_a_loop_counts():
    truth, predicted = samples()
    counted = np.zeros((4, 4), int)
    for y, z in zip(truth, predicted, strict=True):
        counted[y, z] += 1
    assert np.array_equal(confusion_counts(truth, predicted, 4), counted)


def test_unit_costs_give_the_error_rate():
    confusion = confusion_counts(*samples(), 4)
    assert mean_cost(confusion, CostMatrix.uniform(4)) == pytest.approx(1 - accuracy(confusion))


def test_a_class_without_samples_has_no_rate():
    rates = pairwise_error_rates(np.array([[3, 1], [0, 0]]))
    assert rates[0].tolist() == [0.75, 0.25] and np.isnan(rates[1]).all()


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(0, 50))
def test_relabelling_classes_consistently_changes_nothing(order, seed):
    truth, predicted = samples(seed=seed)
    costs = CostMatrix.pareto(4, seed=seed)
    new = np.argsort(order)  # class order[i] is now called i
    renamed = CostMatrix(costs.values[np.ix_(order, order)])
    before = Evaluation.of(truth, predicted, costs)
    after = Evaluation.of(new[truth], new[predicted], renamed)
    assert after.accuracy == before.accuracy
    assert after.total_cost == pytest.approx(before.total_cost)
    assert after.pair_error(int(new[1]), int(new[2])).errors == before.pair_error(1, 2).errors


@pytest.mark.parametrize("statistic", ["accuracy", "mean_cost", "total_cost"])
def test_the_bootstrap_of_counts_is_that_of_samples(statistic):
    truth, predicted = samples()
    costs = CostMatrix.pareto(4, seed=1)
    rng = np.random.default_rng(5)
    values = []
    for _ in range(4000):
        i = rng.integers(len(truth), size=len(truth))
        values.append(getattr(Evaluation.of(truth[i], predicted[i], costs), statistic))
    expected = np.quantile(values, [0.025, 0.975])
    found = Evaluation.of(truth, predicted, costs).interval(statistic, draws=4000)
    assert found == pytest.approx(expected, abs=0.15 * (expected[1] - expected[0]))


def test_an_unknown_statistic_is_refused_by_name():
    with pytest.raises(InputError, match="'recall'; known: accuracy, mean_cost, total_cost"):
        Evaluation.of(*samples(), CostMatrix.uniform(4)).interval("recall")


def test_costs_per_sample_that_repeat_the_matrix_change_no_number():
    truth, predicted = samples()
    costs = CostMatrix.pareto(4, seed=2)
    by_pair = Evaluation.of(truth, predicted, costs)
    by_sample = Evaluation.of(truth, predicted, costs, example_costs=costs.values[truth])
    assert by_sample.total_cost == pytest.approx(by_pair.total_cost)
    assert by_sample.mean_cost == pytest.approx(by_pair.mean_cost)
    assert by_sample.costliest_pairs() == by_pair.costliest_pairs()
    assert np.array_equal(by_sample.confusion, by_pair.confusion)
    for statistic in ("mean_cost", "total_cost"):
        low, high = by_pair.interval(statistic)
        assert by_sample.interval(statistic) == pytest.approx((low, high), abs=0.15 * (high - low))
    assert by_sample.interval("accuracy") == by_pair.interval("accuracy")


def test_costs_per_sample_are_what_a_loop_pays():
    truth, predicted = samples()
    table = np.random.default_rng(1).uniform(0, 9, (len(truth), 4))
    evaluation = Evaluation.of(truth, predicted, CostMatrix.uniform(4), example_costs=table)
    paid = [table[i, z] for i, z in enumerate(predicted)]
    assert evaluation.total_cost == pytest.approx(sum(paid))
    assert evaluation.paid.by_pair[1, 2] == pytest.approx(
        sum(cost for cost, y, z in zip(paid, truth, predicted, strict=True) if (y, z) == (1, 2))
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((3, 2)), r"shape \(3, 2\); \(2, 2\) is needed"),
        (np.zeros(2), r"shape \(2,\); \(2, 2\) is needed"),
        ([[0, 1], [-4, 0]], "sample 1, class 0 is -4"),
        ([[0, np.nan], [1, 0]], "sample 0, class 1 is nan"),
    ],
)
def test_a_table_that_cannot_be_costs_is_refused(table, message):
    with pytest.raises(InputError, match=message):
        Evaluation.of([0, 1], [0, 0], CostMatrix.uniform(2), example_costs=table)


@pytest.mark.parametrize("own_costs", [False, True])
def test_a_referred_case_costs_its_referral_and_is_neither_right_nor_wrong(own_costs):
    costs = CostMatrix([[0, 10], [2, 0]], referral_cost=0.5)
    truth, predicted = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, REFER, REFER])
    table = costs.values[truth] if own_costs else None
    evaluation = Evaluation.of(truth, predicted, costs, example_costs=table)
    assert (evaluation.samples, evaluation.referred, evaluation.coverage) == (5, 2, 0.6)
    assert evaluation.accuracy == pytest.approx(2 / 3)
    assert evaluation.total_cost == 10 + 2 * 0.5
    assert evaluation.mean_cost == pytest.approx(11 / 5)
    assert "2 of 5 cases are left to a person, at 0.5 each" in str(evaluation)


def test_the_interval_counts_referrals_too():
    truth, predicted = np.zeros(200, int), np.repeat([0, REFER], 100)
    evaluation = Evaluation.of(truth, predicted, CostMatrix([[0, 1], [1, 0]], referral_cost=1.0))
    low, high = evaluation.interval("mean_cost")
    spread = 1.96 * np.sqrt(0.25 / 200)
    assert (low, high) == pytest.approx((0.5 - spread, 0.5 + spread), abs=0.01)
    assert evaluation.interval("accuracy") == (1.0, 1.0)


@pytest.mark.parametrize("referral_cost", [None, 0.5])
@pytest.mark.parametrize(
    ("truth", "predicted", "message"),
    [
        ([0, 1], [0.2, 0.9], "predictions are float64, not class numbers"),
        ([0.0, 1.0], [0, 1], "truths are float64, not class numbers"),
        (["0", "1"], [0, 1], "truths are <U1, not class numbers"),
        ([0, 2], [0, 1], "truth 2 is out of range; there are 2 classes"),
        ([-1, 0], [0, 1], "truth -1 is out of range"),
        ([0, 1], [0, 2], "prediction 2 is out of range"),
        ([0, 1], [0, -2], "prediction -2 is out of range"),
        ([0, 1, 1], [0, 1], "3 truths but 2 predictions"),
    ],
)
def test_what_cannot_be_counted_is_refused(truth, predicted, message, referral_cost):
    with pytest.raises(InputError, match=message):
        Evaluation.of(truth, predicted, CostMatrix([[0, 1], [1, 0]], referral_cost=referral_cost))


def test_the_truth_of_a_referred_case_must_be_a_class_too():
    with pytest.raises(InputError, match="truth 7 is out of range"):
        Evaluation.of([0, 7], [0, REFER], CostMatrix([[0, 1], [1, 0]], referral_cost=0.5))


def test_no_samples_cost_nothing_and_promise_nothing():
    for table in (None, np.zeros((0, 2))):
        e = Evaluation.of([], [], CostMatrix.uniform(2), example_costs=table)
        assert (e.samples, e.referred, e.accuracy, e.total_cost, e.mean_cost, e.coverage) == (0,) * 6
        assert all(np.isnan(e.interval(s)).all() for s in ("accuracy", "mean_cost", "total_cost"))
        assert np.isnan(e.pairwise_error_rates).all() and np.isnan(e.pair_error(0, 1).rate)
        assert e.pair_error(0, 1).bounds == (0, 1) and e.costliest_pairs() == []
        assert "0 -> 1: no samples of 0" in str(e)


@pytest.mark.parametrize("own_costs", [False, True])
@pytest.mark.parametrize(("predicted", "cost"), [(0, 0), (1, 3), (REFER, 0.5)])
def test_one_sample_is_all_there_is(predicted, cost, own_costs):
    costs = CostMatrix([[0, 3], [1, 0]], referral_cost=0.5)
    table = costs.values[[0]] if own_costs else None
    e = Evaluation.of([0], [predicted], costs, example_costs=table)
    assert (e.samples, e.coverage, e.accuracy) == (1, predicted != REFER, predicted == 0)
    assert e.total_cost == e.mean_cost == cost
    assert e.interval("mean_cost") == e.interval("total_cost") == (cost, cost)
    assert e.interval("accuracy") == (e.accuracy, e.accuracy)
    pair = e.pair_error(0, 1)
    assert (pair.errors, pair.samples) == (predicted == 1, predicted != REFER)
    if pair.samples:
        assert pair.rate == pair.errors and pair.bounds == exact_bounds(pair.errors, 1)
        assert mean_cost(e.confusion, costs) == cost


def test_the_papers_name_of_the_mean_cost_stays():
    e = Evaluation.of(*samples(), CostMatrix.pareto(4))
    assert e.mean_cost == mean_cost(e.confusion, e.costs) > 0


def test_an_evaluation_says_which_of_its_bounds_are_two_sided():
    e = Evaluation.of(*samples(), CostMatrix.pareto(4))
    low, high = e.interval("mean_cost")
    first, *pairs = str(e).splitlines()
    shown = f"cost per 100 predictions {100 * e.mean_cost:.2f} (two-sided 95 %: {100 * low:.2f} to {100 * high:.2f})"
    assert shown in first and len(pairs) == 3 and all(line.endswith("(one-sided 95 %)") for line in pairs)


def test_one_value_has_a_mean_but_no_interval():
    one, two = mean_interval([3.0]), mean_interval([3.0, 5.0])
    assert one.value == 3 and np.isnan(one.half_width)
    assert two.value == 4 and two.half_width == pytest.approx(12.706, abs=1e-3)  # t of one degree of freedom


@pytest.mark.parametrize(("errors", "bounds"), [(0, (0, 0.975)), (1, (0.025, 1))])
def test_one_trial_bounds_a_rate_from_one_side_only(errors, bounds):
    assert exact_bounds(errors, 1) == pytest.approx(bounds)
    assert exact_bounds(0, 0) == (0, 1)


@pytest.mark.parametrize("own_costs", [False, True])
def test_a_referral_without_a_price_counts_as_decided_and_the_others_are_judged_apart(own_costs):
    costs = CostMatrix([[0, 10], [2, 0]])
    truth, automatic = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 0, 0])
    table = costs.values[truth] if own_costs else None
    e = Evaluation.of(truth, np.array([0, 1, 1, REFER, 0]), costs, example_costs=table, automatic=automatic)
    every = Evaluation.of(truth, automatic, costs, example_costs=table)
    assert np.array_equal(e.confusion, every.confusion)
    for name in ("samples", "accuracy", "mean_cost", "total_cost"):
        assert getattr(e, name) == getattr(every, name)
    assert e.interval("mean_cost") == every.interval("mean_cost")
    assert (e.referred, e.coverage, e.decided.samples, e.decided.total_cost) == (1, 0.8, 4, 12)
    assert "1 of 5 cases are left to a person. What that costs is not given" in str(e)
    with pytest.raises(InputError, match="what that costs is not known; give costs with a referral_cost"):
        Evaluation.of([0, 1], [0, REFER], costs)
