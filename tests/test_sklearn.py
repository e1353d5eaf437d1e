import subprocess
import sys

import joblib
import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    StratifiedKFold,
    cross_val_score,
    cross_validate,
    train_test_split,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from strategies import not_kept, one_thread  # noqa: F401

from csada.costs import CostMatrix
from csada.errors import InputError
from csada.models.plain import cnn, mlp
from csada.sklearn import (
    CSADAClassifier,
    MetaCostClassifier,
    MinimumExpectedCostClassifier,
    cost_scorer,
    mean_cost,
    repeated,
    resolve_costs,
)

QUICK = {"epochs": 5, "fine_tune_epochs": 1, "hidden": (20,)}
MISSED_TUMOUR = {("malignant", "benign"): 10}


@pytest.fixture(scope="module")
def tumours():
    X, y = load_breast_cancer(return_X_y=True)
    return X, np.array(["malignant", "benign"])[y]


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


@parametrize_with_checks(
    [
        CSADAClassifier(**QUICK),
        CSADAClassifier(decision="minimum_expected_cost", **QUICK),
        MinimumExpectedCostClassifier(LogisticRegression()),
        MinimumExpectedCostClassifier(GaussianNB(), calibration="temperature", cv=2),
        MetaCostClassifier(GaussianNB(), n_estimators=3),
    ],
    expected_failed_checks=not_kept,
)
@pytest.mark.filterwarnings("ignore:the true class scores no higher")  # the labels of some checks are noise
def test_follows_the_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def test_submodules_are_there_without_an_import_of_their_own():
    """Each in a process of its own, forked from one that has the libraries and nothing of csada."""
    code = """
import os, sys
import lightning_fabric, scipy.stats, sklearn.model_selection, torch
for name in sys.argv[1:]:
    if os.fork() == 0:
        import csada
        assert getattr(csada, name).__name__ == f"csada.{name}" and not hasattr(csada, "sklaern")
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"no csada.{name}")
"""
    names = "sklearn", "classical", "lightning", "tracking", "decisions", "data"
    subprocess.run([sys.executable, "-c", code, *names], check=True)


# --- costs ------------------------------------------------------------------------------------------------------------


def test_costs_may_be_pairs_of_labels_a_table_or_a_matrix_in_any_order_of_names():
    classes = np.array(["benign", "malignant"])
    by_pairs = resolve_costs(MISSED_TUMOUR, classes)
    by_table = resolve_costs([[0, 1], [10, 0]], classes)
    by_names = resolve_costs(CostMatrix([[0, 10], [1, 0]], ["malignant", "benign"]), classes)
    by_position = resolve_costs(CostMatrix([[0, 1], [10, 0]]), classes)
    assert by_pairs == by_table == by_names == by_position
    assert by_pairs["malignant", "benign"] == 10


def test_a_named_matrix_goes_by_number_where_the_labels_are_numbers():
    named = CostMatrix([[0, 10], [1, 0]], ["malignant", "benign"])
    assert resolve_costs(named, np.array([0, 1])).values.tolist() == [[0, 10], [1, 0]]
    with pytest.raises(InputError, match="'malignant', which y never has"):
        resolve_costs(named, np.array([1, 2]))


def test_pairs_are_in_terms_of_the_labels_not_of_their_positions():
    costs = resolve_costs({(7, 3): 5.0}, np.array([3, 7, 9]))
    assert costs.values.tolist() == [[0, 1, 1], [5, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], r"shape \(3, 3\) for 2 classes.* with labels= takes all"),
        ([[0, 1]], "square"),
        ({("malignant", "unclear"): 3}, "'unclear', which y never has"),
        ({"malignant": 3}, "keys are pairs"),
        (CostMatrix.uniform(2), None),
        (CostMatrix([[0, 1], [1, 0]], ["malignant", "begnin"]), "'begnin', which y never has"),
        (CostMatrix.from_pairs(["benign", "malignant", "unclear"], {}), "'unclear', which y never has"),
    ],
)
@pytest.mark.parametrize("estimator", [CSADAClassifier(**QUICK), MinimumExpectedCostClassifier(GaussianNB())])
def test_costs_that_do_not_fit_the_labels_are_refused(estimator, costs, message, tumours):
    if message is None:
        clone(estimator).set_params(costs=costs).fit(*tumours)
    else:
        with pytest.raises(InputError, match=message):
            clone(estimator).set_params(costs=costs).fit(*tumours)


@pytest.mark.parametrize("costs", [{(0, 1): 5}, CostMatrix.pareto(3), CostMatrix.pareto(3).values.tolist()])
@pytest.mark.parametrize("estimator", [CSADAClassifier(**QUICK), MinimumExpectedCostClassifier(GaussianNB())])
def test_a_fold_may_lack_a_class_that_labels_names(estimator, costs, wine):
    X, y = wine  # sorted by class: each of three folds lacks one in training
    model = clone(estimator).set_params(costs=costs, labels=[0, 1, 2])
    scores = cross_val_score(model, X, y, cv=KFold(3), scoring=cost_scorer(costs, [0, 1, 2]), error_score="raise")
    assert (scores < 0).all()
    table, kept = resolve_costs(costs, np.arange(3)).values, y != 0
    assert model.fit(X[kept], y[kept]).costs_.values.tolist() == table[1:, 1:].tolist()
    with pytest.raises(InputError, match="y has class 2, which labels lacks; it names 0, 1"):
        model.set_params(labels=[0, 1]).fit(X[kept], y[kept])
    with pytest.raises(InputError, match="an estimator with labels= takes all of them"):
        model.set_params(labels=None).fit(X[kept], y[kept])


@pytest.mark.parametrize(
    "estimator",
    [
        CSADAClassifier(epochs=20, fine_tune_epochs=0, random_state=0),
        MinimumExpectedCostClassifier(GaussianNB(), calibration="temperature"),
        MetaCostClassifier(GaussianNB(), n_estimators=3, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_heavier_samples_pull_the_decision_to_their_class(estimator):
    X, y = make_blobs(300, centers=[[0, 0], [1, 0]], random_state=0)
    plain, pulled = (clone(estimator).fit(X, y, sample_weight=w) for w in (None, np.where(y == 1, 9.5, 0.5)))
    assert (pulled.predict(X) == 1).mean() > (plain.predict(X) == 1).mean() + 0.1
    with pytest.raises(ValueError, match="weight"):
        clone(estimator).fit(X, y, sample_weight=np.zeros(3))


def test_a_weight_repeats_its_sample_and_the_rest_is_rounded():
    assert repeated(np.array([2.0, 0.0, 1.0])).tolist() == [0, 0, 2]
    assert repeated(np.array([0.1, 0.0, 0.1])).tolist() == [0, 2]  # only the proportions matter below one
    assert np.bincount(repeated(np.repeat([0.5, 1.5], 100))).sum() == 200
    with pytest.raises(InputError, match="zero for every sample"):
        repeated(np.zeros(2))
    with pytest.raises(InputError, match="Pipeline takes no sample_weight"):
        MetaCostClassifier(make_pipeline(GaussianNB())).fit([[0.0], [1.0]], [0, 1], sample_weight=[1, 2])


def test_a_class_without_costs_is_named():
    with pytest.raises(InputError, match="y has class 'c', for which there are no costs"):
        resolve_costs(CostMatrix([[0, 1], [1, 0]], ["a", "b"]), np.array(["a", "b", "c"]))


def test_costs_of_fit_win_over_those_of_the_constructor(wine):
    fitted = CSADAClassifier(costs={(0, 1): 2}, **QUICK).fit(*wine, costs={(0, 1): 9})
    assert fitted.costs_.values[0, 1] == 9


def test_mean_cost_and_its_scorer(wine):
    assert mean_cost([0, 0, 1], [1, 0, 1], costs={(0, 1): 9}) == 3
    assert mean_cost([0, 0, 0], [1, 0, 0], costs={(0, 1): 9}, labels=[0, 1, 2]) == 3
    with pytest.raises(InputError, match="class 2"):
        mean_cost([0, 1], [2, 1], costs=None)
    X, y = wine
    model = GaussianNB().fit(X, y)
    assert cost_scorer(None, [0, 1, 2])(model, X, y) == pytest.approx(model.score(X, y) - 1)


@pytest.mark.parametrize("given", [list, np.array])
def test_a_cost_table_is_read_in_the_order_of_the_labels(given):
    """Sorted, these would be high, low, mid."""
    levels = ["low", "mid", "high"]
    by_position = [[0, 1, 2], [3, 0, 4], [5, 6, 0]]
    for y, truth in enumerate(levels):
        for z, predicted in enumerate(levels):
            found = mean_cost(given([truth]), given([predicted]), costs=by_position, labels=given(levels))
            assert found == by_position[y][z]


@pytest.mark.parametrize(
    ("truth", "predicted", "message"),
    [
        ([0, 1, 1], [0], "3 truths but 1 predictions"),
        ([0], [0, 1, 1], "1 truths but 3 predictions"),
        ([[0, 1]], [0, 1], r"one class per sample, got shape \(1, 2\)"),
        ([], [], "no samples"),
        ([0, 2], [0, 1], "class 2 is not among 0, 1"),
    ],
)
def test_what_has_no_mean_cost_is_refused(truth, predicted, message):
    with pytest.raises(InputError, match=message):
        mean_cost(truth, predicted, costs=None, labels=[0, 1])


# --- CSADA ------------------------------------------------------------------------------------------------------------


def test_csada_makes_the_expensive_mistake_less_often(tumours):
    X, y = tumours
    missed = {"baseline": 0, "csada": 0}
    for seed in range(3):
        train, test, truth, expected = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
        for name, epochs in (("baseline", 0), ("csada", 10)):
            model = CSADAClassifier(costs=MISSED_TUMOUR, fine_tune_epochs=epochs, random_state=seed).fit(train, truth)
            missed[name] += int(((expected == "malignant") & (model.predict(test) == "benign")).sum())
            assert model.score(test, expected) > 0.9
    assert missed["csada"] < 0.8 * missed["baseline"]


def test_a_warm_start_goes_on_without_training_the_baseline_again(wine):
    X, y = wine
    model = CSADAClassifier(**QUICK, warm_start=True, random_state=0).fit(X, y)
    before = model.predict_proba(X)
    model.set_params(fine_tune_epochs=2, fine_tune_lr=0.0).fit(X, y)
    assert len(model.history_) == 2
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert not np.array_equal(model.set_params(fine_tune_lr=1e-2).fit(X, y).predict_proba(X), before)
    with pytest.raises(InputError, match="warm_start=False"):
        model.fit(X[y < 2], y[y < 2])


def test_minimum_expected_cost_decides_by_the_networks_probabilities(wine):
    X, y = wine
    model = CSADAClassifier(**QUICK, costs={(2, 1): 50}, decision="minimum_expected_cost", random_state=0).fit(X, y)
    expected = model.predict_proba(X) @ model.costs_.values
    np.testing.assert_array_equal(model.predict(X), expected.argmin(1))
    np.testing.assert_allclose(model.decision_function(X), -expected)


@pytest.mark.parametrize(
    "estimator",
    [
        CSADAClassifier(**QUICK, decision="minimum_expected_cost", random_state=0),
        MinimumExpectedCostClassifier(make_pipeline(StandardScaler(), LogisticRegression())),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.parametrize("classes", [2, 3])
def test_under_one_costly_pair_the_others_keep_their_class_and_the_scores_say_so(estimator, classes, wine):
    """Most answers are then expected to cost nothing: of those the most probable is given, not the first."""
    X, y = (part[wine[1] < classes] for part in wine)
    model = clone(estimator).set_params(costs=CostMatrix.single_pair(classes, 1, 0)).fit(X, y)
    predicted, scores = model.predict(X), model.decision_function(X)
    assert (predicted[y > 0] == y[y > 0]).mean() > 0.9
    np.testing.assert_array_equal(predicted, scores.argmax(1) if classes > 2 else scores > 0)


def test_constant_features_and_large_offsets_do_no_harm(wine):
    X, y = wine
    shifted = np.column_stack([X * 1e-6 + 1e3, np.full(len(X), 0.1), np.zeros(len(X))])
    assert CSADAClassifier(**QUICK, random_state=0).fit(shifted, y).score(shifted, y) > 0.9


def image_network(x, classes):
    return cnn(x.shape[1], x.shape[2], classes, width=4)


def test_images_with_a_network_of_ones_own():
    X, y = load_digits(n_class=3, return_X_y=True)
    images = X.reshape(-1, 1, 8, 8)
    model = CSADAClassifier(image_network, epochs=3, fine_tune_epochs=1, costs={(1, 2): 5}, random_state=0)
    model.fit(images, y)
    assert model.score(images, y) > 0.9
    assert model.normalization_.mean == pytest.approx((images.mean(),))
    with pytest.raises(InputError, match=r"\(1, 4, 4\), but \(1, 8, 8\) in fit"):
        model.predict(images[:, :, ::2, ::2])


def test_a_given_module_is_copied_and_may_come_trained(wine):
    X, y = wine
    net = mlp(13, 3)
    before = [p.clone() for p in net.parameters()]
    model = CSADAClassifier(net, standardize=False, epochs=0, fine_tune_epochs=0).fit(X, y)
    np.testing.assert_allclose(
        model.predict_proba(X[:2]), net(torch.tensor(X[:2]).float()).softmax(1).detach(), rtol=1e-5
    )
    CSADAClassifier(net, **QUICK).fit(X, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_no_hidden_layer_is_logistic_regression(tumours):
    X, y = tumours
    model = CSADAClassifier(hidden=(), epochs=20, fine_tune_epochs=1, random_state=0).fit(X, y)
    assert [type(m).__name__ for m in model.module_.children()] == ["Flatten", "Linear"]
    ours = model.predict(X)
    theirs = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y).predict(X)
    assert (ours == theirs).mean() > 0.97


def test_fit_leaves_the_global_random_state_alone(wine):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    CSADAClassifier(small_network, **QUICK, random_state=1).fit(*wine)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def small_network(x, classes, seed):
    return mlp(x.shape[1], classes, (5,), seed=seed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decision": "cheapest"}, "unknown decision 'cheapest'"),
        ({"module": 3}, "module is 3"),
        ({"module": lambda x, classes: None}, "made a NoneType"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"tau": -1.0}, "tau must be"),
        ({"module": mlp(13, 2)}, "scores 2 classes"),
    ],
)
def test_bad_options_are_refused(options, message, wine):
    with pytest.raises(InputError, match=message):
        CSADAClassifier(**QUICK | options).fit(*wine)


def test_a_single_class_is_refused_by_name(wine):
    for model in (CSADAClassifier(), MinimumExpectedCostClassifier(GaussianNB()), MetaCostClassifier(GaussianNB())):
        with pytest.raises(InputError, match="one class only, 'red'"):
            model.fit(wine[0], np.full(len(wine[0]), "red"))


# --- among scikit-learn's tools ---------------------------------------------------------------------------------------


def test_grid_search_over_costs_and_weight_in_a_pipeline(wine):
    X, y = wine
    pipeline = make_pipeline(StandardScaler(), CSADAClassifier(**QUICK, random_state=0))
    grid = {
        "csadaclassifier__weight": [0.0, 2.0],
        "csadaclassifier__costs": [None, {(0, 1): 10}, CostMatrix.uniform(3)],
    }
    search = GridSearchCV(pipeline, grid, scoring=cost_scorer({(0, 1): 10}, [0, 1, 2]), cv=2).fit(X, y)
    assert search.best_score_ > -0.5
    assert set(search.predict(X)) == {0, 1, 2}


@pytest.mark.parametrize(
    "estimator",
    [CSADAClassifier(**QUICK), MinimumExpectedCostClassifier(GaussianNB()), MetaCostClassifier(GaussianNB())],
    ids=lambda estimator: type(estimator).__name__,
)
def test_costs_are_routed_to_fit(estimator, wine):
    X, y = wine
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), clone(estimator).set_fit_request(costs=True))
        result = cross_validate(
            pipeline,
            X,
            y,
            params={"costs": {(0, 1): 7}},
            cv=StratifiedKFold(2, shuffle=True, random_state=0),
            return_estimator=True,
        )
    assert [fitted[-1].costs_.values[0, 1] for fitted in result["estimator"]] == [7, 7]


@pytest.mark.parametrize(
    "estimator",
    [
        CSADAClassifier(**QUICK, costs={(0, 1): 3}, random_state=0),
        CSADAClassifier(small_network, epochs=2, fine_tune_epochs=1, costs=CostMatrix.pareto(3), random_state=0),
        MetaCostClassifier(DecisionTreeClassifier(random_state=0), n_estimators=2, costs=CostMatrix.pareto(3)),
    ],
    ids=["costs", "module", "metacost"],
)
def test_clones_and_files_predict_the_same(estimator, wine, tmp_path):
    X, y = wine
    estimator = clone(estimator).set_params(random_state=3).fit(X, y)
    joblib.dump(estimator, tmp_path / "model.joblib")
    expected = estimator.predict_proba(X)
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").predict_proba(X), expected)
    np.testing.assert_array_equal(clone(estimator).fit(X, y).predict_proba(X), expected)


# --- wrappers ---------------------------------------------------------------------------------------------------------


def test_the_rule_costs_less_than_the_classifier_it_wraps(tumours):
    X, y = tumours
    train, test, truth, expected = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    plain = make_pipeline(StandardScaler(), LogisticRegression())
    rule = MinimumExpectedCostClassifier(plain, costs=MISSED_TUMOUR).fit(train, truth)
    before = mean_cost(expected, clone(plain).fit(train, truth).predict(test), costs=MISSED_TUMOUR)
    assert mean_cost(expected, rule.predict(test), costs=MISSED_TUMOUR) < before


def test_the_temperature_makes_an_overconfident_classifier_humble(tumours):
    X, y = tumours
    train, test, truth, expected = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)

    def surprise(calibration):
        rule = MinimumExpectedCostClassifier(GaussianNB(), calibration=calibration).fit(train, truth)
        p = rule.predict_proba(test)[np.arange(len(test)), np.searchsorted(rule.classes_, expected)]
        return rule.temperature_, -np.log(np.maximum(p, 1e-12)).mean()

    (_, before), (temperature, after) = surprise(None), surprise("temperature")
    assert temperature > 2
    assert after < 0.6 * before


def test_a_classifier_without_probabilities_is_refused_with_the_way_out(wine):
    for wrapper in (MinimumExpectedCostClassifier, MetaCostClassifier):
        with pytest.raises(InputError, match=r"LinearSVC has no predict_proba.*CalibratedClassifierCV"):
            wrapper(LinearSVC()).fit(*wine)
    with pytest.raises(InputError, match="unknown calibration 'platt'"):
        MinimumExpectedCostClassifier(GaussianNB(), calibration="platt").fit(*wine)
    with pytest.raises(InputError, match="n_estimators must be at least 1"):
        MetaCostClassifier(GaussianNB(), n_estimators=0).fit(*wine)


@pytest.mark.parametrize("out_of_bag", [False, True])
def test_metacost_learns_labels_that_avoid_the_expensive_mistake(out_of_bag):
    X, y = make_blobs(300, centers=[[0, 0], [2, 0], [0, 4]], random_state=0)
    costs = {(0, 1): 20}
    plain = GaussianNB().fit(X, y)
    model = MetaCostClassifier(GaussianNB(), costs=costs, out_of_bag=out_of_bag, random_state=0).fit(X, y)
    moved = model.labels_ != y
    assert (moved & (y == 1)).any()  # what may be 0 is no longer called 1 ...
    assert not (model.labels_[moved] == 1).any()  # ... and nothing else becomes 1
    assert mean_cost(y, model.predict(X), costs=costs) < 0.5 * mean_cost(y, plain.predict(X), costs=costs)


def test_metacost_may_leave_a_single_class(wine):
    X, y = wine
    always = {(2, 0): 1e9, (2, 1): 1e9}
    model = MetaCostClassifier(LogisticRegression(C=1e-6), n_estimators=2, costs=always, random_state=0).fit(X / 1e4, y)
    assert set(model.predict(X / 1e4)) == {2}
    assert model.predict_proba(X[:1] / 1e4).tolist() == [[0, 0, 1]]
