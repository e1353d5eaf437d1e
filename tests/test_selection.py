"""Members and decisions chosen on stored validation scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from csada.costs import CostMatrix
from csada.decisions import (
    CALIBRATIONS,
    Abstention,
    MinimumExpectedCost,
    Mixture,
    Selection,
    argmax,
    choose,
    choose_calibration,
    cross_fitted,
    held_out,
    mixed,
)
from csada.decisions.calibration import PULL, fit_scaling, stratified_folds
from csada.decisions.rules import STRENGTHS, affordable, by_scores
from csada.decisions.selection import _tempered, choose_members
from csada.errors import InputError
from csada.metrics import REFER, Evaluation
from csada.models.members import Member, as_network

K, N = 4, 400
COSTS = CostMatrix.pareto(K, seed=3)


def candidates(seed=0, n=N, k=K):
    """True logits, labels drawn from them, and models that see the truth through noise of their own."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2.5, (n, k))
    labels = (softmax(true, axis=1).cumsum(1) > rng.random((n, 1))).argmax(1)
    seen = {f"model {i}": 2 * (true + rng.normal(0, 1.5, (n, k))) for i in range(3)}
    return true, labels, seen | {"noise": rng.normal(0, 5, (n, k))}


TRUE, LABELS, LIBRARY = candidates()


def selected(library, labels, costs, members=3):
    """The first is the given model."""
    given = next(iter(library.values())).argmax(1) if library else labels
    return choose_members([library], labels, costs, 0.005, members, given, tell=True)[1]


def test_an_oracle_is_admitted_and_weighs_most():
    found = selected(LIBRARY | {"oracle": 10 * np.eye(K)[LABELS]}, LABELS, COSTS)
    assert found.steps[1].name == "oracle" and found.weights["oracle"] >= 0.5
    assert found.steps[-1].mean_cost < 0.2 * found.steps[0].mean_cost


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_admitted_and_every_admission_lowers_the_cost(seed):
    _, labels, library = candidates(seed)
    found = selected(library, labels, COSTS)
    cost = [step.mean_cost for step in found.steps]
    assert "noise" not in found.weights and next(iter(found.weights)) == found.steps[0].name == "model 0"
    assert len(found.weights) > 1 and all(np.diff(cost) < 0)
    assert sum(found.weights.values()) == pytest.approx(1)
    alone = selected({name: library[name] for name in ("model 0", "noise")}, labels, COSTS)
    assert alone.weights == {"model 0": 1.0}
    assert [(each.name, each.kept) for each in alone.left] == [("noise", False)]
    assert alone.left[0].mean_cost > alone.steps[0].mean_cost


def test_what_is_chosen_is_cheaper_and_within_the_budget_on_samples_that_chose_nothing():
    cheaper, lost = [], []
    for seed in range(8):
        _, labels, library = candidates(seed, N + 4_000)
        costs = CostMatrix.pareto(K, seed=seed)
        validation, test = ({name: x[part] for name, x in library.items()} for part in (slice(N), slice(N, None)))
        weights = selected(validation, labels[:N], costs).weights
        rule = choose(mixed(validation, weights), labels[:N], costs, reference=argmax(validation["model 0"])).rule(
            costs
        )
        alone = choose(validation["model 0"], labels[:N], costs).rule(costs)
        given, ruled, chosen = (
            Evaluation.of(labels[N:], decided, costs)
            for decided in (
                argmax(test["model 0"]),
                alone(test["model 0"]),
                rule(mixed(test, weights)),
            )
        )
        assert chosen.mean_cost < ruled.mean_cost
        cheaper.append(1 - chosen.mean_cost / given.mean_cost)
        lost.append(given.accuracy - chosen.accuracy)
    assert np.mean(cheaper) > 0.25 and np.mean(lost) < 0.005


def test_relabelling_classes_changes_nothing():
    order = np.array([2, 0, 3, 1])  # class order[i] is now called i
    found = selected(LIBRARY, LABELS, COSTS)
    renamed = selected(
        {name: x[:, order] for name, x in LIBRARY.items()},
        np.argsort(order)[LABELS],
        CostMatrix(COSTS.values[np.ix_(order, order)]),
    )
    assert renamed.weights == found.weights and len(found.weights) > 1
    for a, b in zip(renamed.steps, found.steps, strict=True):
        assert a.mean_cost == pytest.approx(b.mean_cost) and a.accuracy == pytest.approx(b.accuracy)


def test_a_duplicate_changes_nothing():
    found = selected(LIBRARY, LABELS, COSTS, members=3)
    again = selected(LIBRARY | {name + " again": x for name, x in LIBRARY.items()}, LABELS, COSTS, members=3)
    assert again == replace(found, left=again.left)


def test_logits_and_logarithms_of_probabilities_are_the_same():
    logs = {name: log_softmax(x, axis=1) for name, x in LIBRARY.items()}
    assert selected(logs, LABELS, COSTS).weights == selected(LIBRARY, LABELS, COSTS).weights


@pytest.mark.parametrize("members", [1, 2])
def test_no_more_members_than_asked_for(members):
    assert len(selected(LIBRARY, LABELS, COSTS, members=members).weights) == members


def test_too_few_samples_keep_the_given_model():
    few = {name: x[:49] for name, x in LIBRARY.items()} | {"oracle": 10 * np.eye(K)[LABELS[:49]]}
    found = selected(few, LABELS[:49], COSTS)
    assert found.weights == {"model 0": 1.0} and len(found.steps) == 1


def test_a_mixture_is_the_logarithm_of_averaged_probabilities():
    p = 0.25 * softmax(LIBRARY["model 0"], axis=1) + 0.75 * softmax(LIBRARY["noise"], axis=1)
    np.testing.assert_allclose(np.exp(mixed(LIBRARY, {"model 0": 0.25, "noise": 0.75})), p, atol=1e-12)
    far = {"sure": np.array([[0.0, 5000.0]]), "other": np.array([[0.0, 6000.0]])}  # exp of it is infinite
    assert np.isfinite(mixed(far, {"sure": 0.5, "other": 0.5})).all()


def test_the_quick_temperatures_of_the_other_folds_are_those_of_a_search():
    scores = LIBRARY["model 0"]
    quick = log_softmax(_tempered(scores, LABELS, stratified_folds(LABELS)), axis=1)
    assert np.abs(np.exp(quick) - np.exp(cross_fitted(scores, LABELS))).max() < 0.005


@pytest.mark.parametrize("refer", [0.0, 0.1])
def test_choose_calibrates_sets_the_strength_and_refers(refer):
    skewed = TRUE * [0.3, 1.0, 2.0, 1.0] + [0.0, 2.0, -2.0, 0.0]
    decision = choose(skewed, LABELS, COSTS, budget=0.02, refer=refer)
    assert choose_calibration(skewed, LABELS) == CALIBRATIONS[1]
    rule = MinimumExpectedCost.within_budget(skewed, LABELS, COSTS, 0.02, calibration="vector")
    assert decision.automatic(COSTS) == rule and rule.strength > 0
    decided = decision.rule(COSTS)
    assert isinstance(decided, Abstention) == (refer > 0)
    assert (decided(skewed) == REFER).sum() == refer * N


def test_bad_input_is_named_with_the_way_out():
    with pytest.raises(InputError, match="0 candidates and 3 members; give at least one of each"):
        selected({}, LABELS, COSTS)
    with pytest.raises(InputError, match=r"shape \(400, 3\); \(samples, 4\) is needed"):
        selected(LIBRARY | {"narrow": TRUE[:, :3]}, LABELS, COSTS)
    with pytest.raises(InputError, match="399 rows of logits and 400 labels"):
        selected(LIBRARY | {"short": TRUE[1:]}, LABELS, COSTS)


@pytest.mark.parametrize("spare", [0.0, 0.001, 0.01, 0.05])
def test_the_strengths_that_a_budget_allows_are_those_of_deciding_every_sample_anew(spare):
    decided, top = by_scores(LIBRARY["model 1"], COSTS), LIBRARY["model 0"].argmax(1)
    p, rows = decided.probabilities, np.arange(N)
    losses = [(p[rows, top] - p[rows, replace(decided, strength=s).chosen]).mean() for s in STRENGTHS]
    assert affordable(decided, top, spare) == tuple(
        s for s, lost in zip(STRENGTHS, losses, strict=True) if lost <= spare
    )


def test_what_is_remembered_of_some_scores_is_not_taken_for_others():
    skewed = TRUE * [0.3, 1.0, 2.0, 1.0] + [0.0, 2.0, -2.0, 0.0]
    other = np.roll(LABELS, 1)
    found = [fit_scaling(s, y, kind) for s, y in ((TRUE, LABELS), (skewed, LABELS), (TRUE, other)) for kind in PULL]
    assert len(set(found)) == 6 and fit_scaling(TRUE, LABELS, calibration="vector") == found[0]


def test_no_sample_takes_part_in_the_choice_of_its_own_decision():
    logits, other = LIBRARY["model 0"], LIBRARY["model 1"].argmax(1)
    costs = CostMatrix(COSTS.values, COSTS.classes, referral_cost=0.2)
    found = held_out(logits, LABELS, costs, budget=0.01, reference=other, refer=0.1)
    kind, folds, differs = choose_calibration(logits, LABELS), stratified_folds(LABELS), 0
    everything = choose(logits, LABELS, costs, budget=0.01, reference=other, refer=0.1, calibration=kind).rule(costs)
    for fold in range(folds.max() + 1):
        out, others = folds == fold, folds != fold
        known = {"reference": other[others], "refer": 0.1, "calibration": kind}
        rule = choose(logits[others], LABELS[others], costs, budget=0.01, **known).rule(costs)
        assert np.array_equal(found[out], rule(logits[out]))
        differs += int((found[out] != everything(logits[out])).sum())
    assert differs > 0  # what they chose for themselves is something else
    assert (found == REFER).any()
    assert (held_out(logits, LABELS, COSTS, budget=0.01, reference=other, refer=0.1) != REFER).all()  # no price


def test_stored_scores_are_averaged_as_a_classifier_averages_its_networks():
    draw = np.random.default_rng(0)
    library = {name: {view: draw.normal(0, 3, (20, 4)) for view in ("identity", "mirror")} for name in "ab"}
    weights, temperatures = {"a": 0.75, "b": 0.25}, {"a": 0.5, "b": 2.0}
    found = Mixture(Selection(weights, ()), temperatures, ("identity", "mirror")).scores(library)
    members = [Member(Said(library[n]), temperature=temperatures[n], weight=weights[n]) for n in "ab"]
    images = torch.tensor([1.0, 0.0]).expand(20, 1, 1, 2)
    np.testing.assert_allclose(found, as_network(members, ("identity", "mirror"))(images), atol=1e-5)


class Said(nn.Module):
    """What was stored of a view, which it tells by the lighter side."""

    def __init__(self, scores):
        super().__init__()
        self.scores = {view: torch.from_numpy(values) for view, values in scores.items()}

    def forward(self, x):
        return self.scores["identity" if x[0, 0, 0, 0] > 0 else "mirror"]
