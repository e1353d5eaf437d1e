import json

import joblib
import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine, make_circles
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_validate, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from strategies import not_kept, one_thread  # noqa: F401
from torch import nn

from csada.attacks import Ascent, Outcome, ascend, attack
from csada.classical import (
    AugmentedClassifier,
    AveragedClassifier,
    CostSensitiveSVM,
    ExampleDependentLogisticRegression,
    OneSidedRegressionSVM,
    cost_tree,
    kernel_module,
    linear_direction,
    linear_maximiser,
)
from csada.errors import InputError
from csada.methods import METHODS
from csada.models.plain import mlp
from csada.paper import tabular
from csada.reading import write_json
from csada.sklearn import CSADAClassifier, mean_cost

MISSED_TUMOUR = {(0, 1): 10}


@pytest.fixture(scope="module")
def tumours():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@parametrize_with_checks(
    [
        CSADAClassifier(hidden=(), epochs=20, fine_tune_epochs=1),
        AugmentedClassifier(DecisionTreeClassifier(max_depth=5), rounds=1, epochs=3, steps=2, hidden=(10,)),
        OneSidedRegressionSVM(),
        OneSidedRegressionSVM(kernel="rbf", n_components=20),
        ExampleDependentLogisticRegression(),
        CostSensitiveSVM(),
        AveragedClassifier(DecisionTreeClassifier(max_depth=5), n_estimators=3, cv=2),
        AveragedClassifier(LogisticRegression(), n_estimators=2, cv=2),
        cost_tree(random_state=0),
    ],
    expected_failed_checks=not_kept,
)
@pytest.mark.filterwarnings("ignore:the true class scores no higher")  # the labels of some checks are noise
def test_follows_the_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def test_so_does_a_kernel_module():
    model = CSADAClassifier(kernel_module, epochs=5, fine_tune_epochs=1)
    check_estimator(model, expected_failed_checks=not_kept(model), on_skip=None)


# --- averages ---------------------------------------------------------------------------------------------------------


def test_an_average_of_copies_under_the_rule_costs_less_than_the_tree_or_its_rule_alone(tumours):
    X, y = tumours
    train, test, truth, expected = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    tree = make_pipeline(StandardScaler(), DecisionTreeClassifier(min_samples_leaf=3, random_state=0))
    models = {
        "tree": clone(tree),
        "rule": AveragedClassifier(tree, n_estimators=1, costs=MISSED_TUMOUR),
        "average": AveragedClassifier(tree, n_estimators=10, costs=MISSED_TUMOUR, random_state=0),
    }
    paid = {
        name: mean_cost(expected, each.fit(train, truth).predict(test), costs=MISSED_TUMOUR)
        for name, each in models.items()
    }
    assert paid["average"] < 0.7 * min(paid["tree"], paid["rule"])
    average = models["average"]
    assert next(iter(average.weights_)) == "given" and sum(average.weights_.values()) == pytest.approx(1)
    assert set(average.estimators_) == set(average.weights_) and len(average.weights_) > 1
    again = clone(average).fit(train, truth)
    np.testing.assert_array_equal(again.predict_proba(test), average.predict_proba(test))


def test_copies_that_would_be_the_same_are_refused_and_few_samples_choose_nothing(tumours):
    X, y = tumours
    with pytest.raises(InputError, match=r"KNeighborsClassifier has no.* the same; set bootstrap=True"):
        AveragedClassifier(KNeighborsClassifier(), bootstrap=False).fit(X, y)
    few = AveragedClassifier(DecisionTreeClassifier(), bootstrap=False, random_state=0).fit(X[20:60], y[20:60])
    assert few.weights_ == {"given": 1.0}


# --- linear and kernel models -----------------------------------------------------------------------------------------


@pytest.fixture
def linear():
    torch.manual_seed(0)
    model = nn.Linear(6, 4, dtype=torch.float64)
    x = torch.randn(50, 6, dtype=torch.float64)
    y = model(x).argmax(1)
    return model, x, y, (y + 1 + torch.arange(50) % 3) % 4


@pytest.mark.parametrize("step", ["sign", "gradient"])
def test_the_closed_form_direction_is_one_step_of_the_attack(linear, step):
    model, x, y, target = linear
    direction = linear_direction(model, x, target)
    one = attack(model, x, y, target, epsilon=1, step_size=1e-3, steps=1, step=step)
    moved = one.steps == 1  # the others would have landed in a third class
    assert moved.sum() > 40
    expected = 1e-3 * (direction.sign() if step == "sign" else direction)
    torch.testing.assert_close(one.delta[moved], expected[moved])


@pytest.mark.parametrize(("norm", "step"), [("linf", "sign"), ("l2", "l2")])
def test_with_two_classes_the_attack_ends_at_the_closed_form_maximiser(norm, step):
    torch.manual_seed(0)
    model = nn.Linear(5, 2, dtype=torch.float64)
    x = 3 * torch.randn(40, 5, dtype=torch.float64)
    y = model(x).argmax(1)
    result = attack(model, x, y, 1 - y, epsilon=0.1, step_size=0.03, steps=8, norm=norm, step=step)
    stayed = result.outcome == Outcome.EXHAUSTED  # the others stopped at the boundary, inside the ball
    assert stayed.sum() > 20
    best = linear_maximiser(model, x, y, 1 - y, 0.1, norm)
    torch.testing.assert_close(result.adversarial[stayed], best[stayed])


def test_no_point_of_the_ball_has_a_larger_margin(linear):
    model, x, y, target = linear

    def margin(points):
        logits, rows = model(points), torch.arange(len(x))
        return logits[rows, target] - logits[rows, y]

    best = margin(linear_maximiser(model, x, y, target, 0.3))
    for _ in range(50):
        assert (margin(x + 0.3 * (2 * torch.rand_like(x) - 1)) <= best).all()
    with pytest.raises(InputError, match="unknown norm 'l1'"):
        linear_maximiser(model, x, y, target, 0.3, "l1")


def test_kernel_features_give_the_kernel_back(wine):
    X = wine[0][:60]
    module = kernel_module(torch.tensor(X), 3, n_components=60, gamma=0.05)
    features = module.features(torch.tensor(X)).numpy()
    np.testing.assert_allclose(features @ features.T, rbf_kernel(X, gamma=0.05), atol=1e-6)


def test_csada_on_a_kernel_model_separates_what_no_line_can():
    X, y = make_circles(200, factor=0.4, noise=0.1, random_state=0)
    kernel = CSADAClassifier(kernel_module, costs=MISSED_TUMOUR, random_state=0).fit(X, y)
    assert kernel.score(X, y) > 0.95
    assert ((y == 0) & (kernel.predict(X) == 1)).sum() == 0
    assert CSADAClassifier(hidden=(), random_state=0).fit(X, y).score(X, y) < 0.7
    for options in ({"n_components": 0}, {"gamma": -1.0}):
        with pytest.raises(InputError, match=r"components|gamma"):
            kernel_module(torch.tensor(X), 2, **options)


# --- models without gradients -----------------------------------------------------------------------------------------


def test_an_attack_up_another_model_s_gradient_is_judged_by_the_model_itself():
    """Where both are the same model it is the plain attack; where they differ, no point is called a third class."""
    torch.manual_seed(0)
    model, judge = (mlp(2, 4, (20,), seed=seed).double() for seed in (3, 4))
    x = torch.randn(200, 2, dtype=torch.float64)
    y = model(x).argmax(1)
    y[::10] = (y[::10] + 1) % 4  # some are wrong before the attack
    target = (y + 1 + torch.arange(200) % 3) % 4
    how = Ascent(epsilon=0.8, step_size=0.1, steps=12, step="sign")
    expected = attack(model, x, y, target, epsilon=0.8, step_size=0.1, steps=12, step="sign")
    same = ascend(model, x, y, target, how, judge=lambda points: model(points).argmax(1))
    assert torch.equal(same.outcome, expected.outcome) and set(same.outcome.tolist()) == set(map(int, Outcome))
    torch.testing.assert_close(same.delta, expected.delta)
    other = ascend(model, x, y, target, how, judge=lambda points: judge(points).argmax(1))
    called = judge(other.adversarial).argmax(1)
    assert (called == torch.where(other.outcome == Outcome.REACHED, target, y))[other.outcome > Outcome.SKIPPED].all()
    assert torch.equal(other.outcome == Outcome.SKIPPED, judge(x).argmax(1) != y)


def test_an_augmented_forest_makes_cheaper_mistakes_than_the_forest(tumours):
    X, y = tumours
    forest = RandomForestClassifier(30, random_state=0)
    plain, augmented = [], []
    for seed in range(4):
        train, test, truth, expected = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
        model = AugmentedClassifier(forest, costs=MISSED_TUMOUR, random_state=0, epochs=15).fit(train, truth)
        assert model.outcomes_.sum(1).tolist() == [len(train)] * 3
        assert model.score(test, expected) > 0.9
        augmented.append(mean_cost(expected, model.predict(test), costs=MISSED_TUMOUR))
        plain.append(mean_cost(expected, clone(forest).fit(train, truth).predict(test), costs=MISSED_TUMOUR))
    assert np.mean(augmented) < 0.9 * np.mean(plain)


class Recorder(DecisionTreeClassifier):
    """Remembers what it was fitted on."""

    def fit(self, X, y, sample_weight=None):
        self.seen_ = X, y, sample_weight
        return super().fit(X, y, sample_weight)


def test_the_added_samples_keep_their_label_their_ball_and_lambda_n_of_weight(wine):
    X, y = wine
    costs = {(0, 1): 4, (0, 2): 0, (1, 0): 0, (1, 2): 1, (2, 0): 0, (2, 1): 0}
    model = AugmentedClassifier(Recorder(random_state=0), costs=costs, weight=0.5, rounds=2, epochs=3, epsilon=0.3)
    model.set_params(random_state=0).fit(X, y)
    points, labels, weights = model.estimator_.seen_
    np.testing.assert_array_equal(points[: len(X)], X)
    np.testing.assert_array_equal(weights[: len(X)], 1)
    points, labels, weights = points[len(X) :], labels[len(X) :], weights[len(X) :]
    assert weights.sum() == pytest.approx(0.5 * len(X))
    n = np.bincount(y)
    assert weights[labels == 0].sum() / weights.sum() == pytest.approx(4 * n[0] / (4 * n[0] + n[1]), abs=0.08)
    assert set(labels) == {0, 1}  # mistakes on class 2 cost nothing
    away = np.abs(points[:, None] - X).max(2)
    assert all(away[i, y == label].min() <= 0.3 + 1e-9 for i, label in enumerate(labels))


def test_without_costs_or_weight_the_model_stays_as_it_is(wine):
    X, y = wine
    for options in ({"costs": np.zeros((3, 3))}, {"weight": 0.0}):
        model = AugmentedClassifier(Recorder(random_state=0), **options).fit(X, y)
        assert len(model.estimator_.seen_[0]) == len(X)
        assert len(model.outcomes_) == 0


def test_augmentation_refuses_what_it_cannot_use(wine):
    with pytest.raises(InputError, match=r"KNeighborsClassifier\.fit takes no sample_weight"):
        AugmentedClassifier(KNeighborsClassifier()).fit(*wine)
    with pytest.raises(InputError, match="zero or more, got -1"):
        AugmentedClassifier(DecisionTreeClassifier(), rounds=-1).fit(*wine)
    with pytest.raises(InputError, match="one class only"):
        AugmentedClassifier(DecisionTreeClassifier()).fit(wine[0], np.zeros(len(wine[0]), int))


# --- rivals -----------------------------------------------------------------------------------------------------------

RIVALS = [
    OneSidedRegressionSVM(),
    OneSidedRegressionSVM(kernel="rbf", random_state=0),
    CostSensitiveSVM(C=0.1),
    ExampleDependentLogisticRegression(),
    cost_tree(random_state=0),
]


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: type(rival).__name__)
def test_a_dearer_mistake_becomes_rarer(rival, tumours):
    X, y = tumours
    train, test, truth, expected = train_test_split(X[:, :3], y, test_size=0.5, random_state=0, stratify=y)

    def missed(cost):
        predicted = clone(rival).fit(train, truth, costs={(0, 1): cost}).predict(test)
        assert (predicted == expected).mean() > 0.65
        return int(((expected == 0) & (predicted == 1)).sum())

    assert missed(10) < 0.6 * missed(1)


@pytest.mark.parametrize("rival", [*RIVALS[:3], RIVALS[4]], ids=lambda rival: type(rival).__name__)
def test_several_classes_with_names(rival, wine, tmp_path):
    X, y = wine
    names = np.array(["barolo", "grignolino", "barbera"])[y]
    model = clone(rival).fit(X, names, costs={("barolo", "grignolino"): 5})
    assert model.score(X, names) > 0.9
    joblib.dump(model, tmp_path / "model")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model").predict(X), model.predict(X))
    with pytest.raises(InputError, match="'chianti', which y never has"):
        clone(rival).fit(X, names, costs={("barolo", "chianti"): 5})


def test_one_sided_estimates_lie_on_the_right_side_where_the_data_allow_it(wine):
    X, y = wine
    model = OneSidedRegressionSVM(C=1e4, costs={(0, 1): 5}).fit(X, y)
    estimates, rows = model.estimated_costs(X), model.costs_.values[y]
    truth = np.eye(3, dtype=bool)[y]
    assert (estimates[truth] <= 0.05).all()
    assert (estimates[~truth] >= rows[~truth] - 0.05).all()


def test_the_rbf_kernel_separates_what_no_line_can():
    X, y = make_circles(200, factor=0.4, noise=0.1, random_state=0)
    assert OneSidedRegressionSVM(kernel="rbf", gamma=1.0, random_state=0).fit(X, y).score(X, y) > 0.95
    assert OneSidedRegressionSVM().fit(X, y).score(X, y) < 0.7


def test_equal_costs_and_margins_give_the_ordinary_support_vector_machine(tumours):
    X, y = tumours
    ours = CostSensitiveSVM(C=0.1, kappa=1.0).fit(X, y)
    theirs = SVC(C=0.1, kernel="linear").fit(X, y)
    assert (ours.predict(X) == theirs.predict(X)).mean() > 0.99
    np.testing.assert_allclose(ours.coef_[0, :-1], theirs.coef_[0], atol=0.05)


@pytest.mark.parametrize("kappa", [0.3, 1.0])
@pytest.mark.parametrize(("ratio", "called"), [(2.0, 0), (3.0, 1)])  # of 30 %: called positive from 1 / (1 + r) on
@pytest.mark.parametrize("flipped", [False, True])
def test_the_support_vector_machine_decides_at_the_bayes_threshold(kappa, ratio, called, flipped):
    y = np.array([1] * 30 + [0] * 70 + [1] * 100)
    X = np.array([0.0] * 100 + [1.0] * 100)[:, None]
    if flipped:
        y, called = 1 - y, 1 - called
    dear = 0 if flipped else 1
    model = CostSensitiveSVM(kappa=kappa, costs={(dear, 1 - dear): ratio}).fit(X, y)
    assert model.predict([[0.0], [1.0]]).tolist() == [called, dear]


def test_example_costs_that_repeat_the_class_costs_change_nothing(tumours):
    X, y = tumours
    table = np.array([[0, 10.0], [1, 0]])
    by_class = ExampleDependentLogisticRegression(costs=table).fit(X, y)
    by_sample = ExampleDependentLogisticRegression().fit(X, y, costs=table[y])
    np.testing.assert_array_equal(by_class.coef_, by_sample.coef_)


def test_example_costs_save_money_over_logistic_regression_and_are_split_with_the_samples():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    y = (X[:, 0] + rng.normal(size=600) > 1).astype(int)
    amount = np.exp(X[:, 1])  # what a missed positive costs; a false alarm costs 0.5
    costs = np.where(
        y[:, None] == 1,
        np.column_stack([amount, np.full(600, 0.0)]),
        np.column_stack([np.zeros(600), np.full(600, 0.5)]),
    )

    def paid(predicted):
        return costs[np.arange(600), predicted].sum()

    ours = ExampleDependentLogisticRegression().fit(X, y, costs=costs)
    assert paid(ours.predict(X)) < 0.9 * paid(LogisticRegression().fit(X, y).predict(X))
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), ExampleDependentLogisticRegression().set_fit_request(costs=True))
        assert cross_validate(pipeline, X, y, params={"costs": costs}, cv=3)["test_score"].min() > 0.6


@pytest.mark.parametrize(
    ("model", "costs", "message"),
    [
        (ExampleDependentLogisticRegression(), np.ones((5, 2)), r"shape \(5, 2\); give 2 x 2"),
        (ExampleDependentLogisticRegression(), np.full((569, 2), -1.0), "zero or more"),
        (ExampleDependentLogisticRegression(alpha=-1), None, "alpha"),
        (CostSensitiveSVM(kappa=2), None, "kappa must lie"),
        (CostSensitiveSVM(C=0), None, "C must be"),
        (OneSidedRegressionSVM(kernel="cubic"), None, "unknown kernel 'cubic'"),
        (OneSidedRegressionSVM(C=-1), None, "C must be"),
        (OneSidedRegressionSVM(), np.zeros((3, 3)), r"shape \(3, 3\) for 2 classes"),
    ],
)
def test_bad_options_are_refused(model, costs, message, tumours):
    with pytest.raises(InputError, match=message):
        model.fit(*tumours, costs=costs)


def test_more_than_two_classes_are_refused_where_there_is_no_formula(wine):
    with pytest.raises(InputError, match=r"Only binary classification is supported.*3 classes"):
        ExampleDependentLogisticRegression().fit(*wine)


def test_a_leaf_answers_with_the_class_of_least_expected_cost():
    X, y = np.zeros((10, 1)), np.array([0] * 3 + [1] * 7)
    assert cost_tree({(0, 1): 2}).fit(X, y).predict(X[:1]) == [1]  # 3 x 2 < 7
    assert cost_tree({(0, 1): 3}).fit(X, y).predict(X[:1]) == [0]  # 3 x 3 > 7


# --- the study --------------------------------------------------------------------------------------------------------


def test_the_study_records_every_method_on_one_split_and_reads_its_file_back(tmp_path):
    runs = tabular.one("wine", 0)
    methods = [run["method"] for run in runs]
    assert len(set(methods)) == len(methods)
    assert {*METHODS, "baseline", "baseline_rule", "csada_rule", "forest_csada"} <= set(methods)
    assert "example_dependent_logistic" not in methods  # three classes
    splits, costs = tabular.load("wine", 0)
    for run in runs:
        confusion = np.array(run["confusion"])
        np.testing.assert_array_equal(confusion.sum(1), np.bincount(splits.test.y))
        assert run["cost"] == pytest.approx((confusion * costs.values).sum() / len(splits.test))
    record = {"format": 1, "runs": runs}
    assert json.loads(write_json(tmp_path / "new" / "tabular.json", record).read_text()) == record
    lines = tabular.summary(record, "wine")
    assert [line.cost for line in lines] == sorted(run["cost"] for run in runs)
    assert next(line for line in lines if line.method == "baseline").difference == 0


def test_settings_are_chosen_on_validation_and_never_on_test():
    splits, costs = tabular.load("wine", 0)
    right_there = {id(splits.validation): ["validation"], id(splits.test): ["test"]}

    def knows(part_name):
        return lambda part: part.y.numpy() if part_name in right_there[id(part)] else 0 * part.y.numpy()

    candidates = [({"knows": name}, knows(name), 0.0) for name in ("test", "validation")]
    chosen = tabular.judged("any", candidates, splits=splits, costs=costs, head={})
    assert chosen["chosen"] == {"knows": "validation"}
    assert chosen["accuracy"] < 0.5
