import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cost_matrices

from csada import CostMatrix, InputError

DRUGS = ["trazodone", "glipizide", "ranitidine"]


def test_named_pairs_are_truth_then_prediction():
    costs = CostMatrix.from_pairs(DRUGS, {("trazodone", "glipizide"): 10}, default=1)
    assert costs["trazodone", "glipizide"] == 10 == costs[0, 1]
    assert costs["glipizide", "trazodone"] == 1
    assert costs["glipizide", "glipizide"] == 0
    assert costs.values.tolist() == [[0, 10, 1], [1, 0, 1], [1, 1, 0]]


def test_values_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        CostMatrix.uniform(3).values[0, 1] = 5


@given(cost_matrices(), st.floats(0.1, 50))
def test_weights_are_a_distribution_that_follows_the_costs(costs, tau):
    weights = costs.weights(tau)
    assert np.isfinite(weights).all() and (weights >= 0).all()
    assert np.isclose(weights.sum(), 1) if costs.values.any() else not weights.any()
    order = np.argsort(costs.values, axis=None)
    assert (np.diff(weights.ravel()[order]) >= -1e-15).all()


def test_weights_are_the_papers_formula_and_do_not_overflow():
    costs = CostMatrix([[0, 2.0], [3.0, 0]])
    assert np.allclose(costs.weights(3), [[0, 8 / 35], [27 / 35, 0]])
    huge = CostMatrix([[0, 1e6, 1.0], [1e6, 0, 1.0], [1.0, 1.0, 0]]).weights(50)
    assert huge[0, 1] == 0.5 == huge[1, 0]


@given(cost_matrices())
def test_a_table_comes_back_from_csv_as_it_was(tmp_path_factory, costs):
    path = tmp_path_factory.mktemp("csv") / "costs.csv"
    costs.to_csv(path)
    assert CostMatrix.from_csv(path) == costs
    assert [p.name for p in path.parent.iterdir()] == ["costs.csv"]


def test_csv_columns_may_come_in_another_order(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("# a comment\ntruth,b,a\na,7,0\nb,0,2\n")
    costs = CostMatrix.from_csv(path)
    assert costs.classes == ("a", "b") and costs["a", "b"] == 7 and costs["b", "a"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a,b\na,0,1\n", "class 'b' is missing from the first column"),
        (",a\na,0\nb,1\n", "class 'b' is missing from the header"),
        (",a,a\na,0,1\na,1,0\n", "the header has 'a' twice"),
        (",a,b\na,0,1\na,1,0\n", "the first column has 'a' twice"),
        (",a,b\na,0,1\n,1,0\n", "lacks a name at position 2"),
        (",trazodone,glipizide\ntrazodone,0,1\nglipzide,1,0\n", "did you mean 'glipizide'"),
        (",a,b\na,0,ten\nb,1,0\n", "calling 'a' 'b' is 'ten', no number"),
        (",a,b\na,0\nb,1,0\n", "row 'a' has 1 costs, 2 are needed"),
        ("", "holds no cost table"),
    ],
)
def test_a_bad_csv_is_named(tmp_path, text, message):
    path = tmp_path / "costs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        CostMatrix.from_csv(path)


def test_a_missing_csv_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the cost table .*none\.csv"):
        CostMatrix.from_csv(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0, 1, 2], [1, 0, 2]], r"square .* got shape \(2, 3\)"),
        ([[0]], "at least two classes"),
        ([[0, -1], [1, 0]], "calling '0' '1' is -1; costs must be zero or more"),
        ([[0, float("nan")], [1, 0]], "calling '0' '1' is nan; costs must be finite"),
        ([[0, float("inf")], [1, 0]], "is inf; costs must be finite"),
        ([[3, 1], [1, 0]], "calling '0' '0' is 3; a correct prediction must cost 0"),
        ([["x", 1], [1, 0]], "square table of numbers"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        CostMatrix(values)


def test_bad_names_are_named():
    with pytest.raises(InputError, match="unknown class 'glipizid'; did you mean 'glipizide'"):
        CostMatrix.from_pairs(DRUGS, {("trazodone", "glipizid"): 10})
    with pytest.raises(InputError, match="'a' appears twice"):
        CostMatrix(np.zeros((2, 2)), ["a", "a"])
    with pytest.raises(InputError, match="3 class names for a 2 x 2"):
        CostMatrix(np.zeros((2, 2)), ["a", "b", "c"])
    with pytest.raises(InputError, match="must cost 0; leave it out"):
        CostMatrix.from_pairs(DRUGS, {("trazodone", "trazodone"): 10})
    with pytest.raises(InputError, match="class 3 does not exist"):
        CostMatrix.single_pair(3, 0, 3)
    with pytest.raises(InputError, match="tau must be a positive number, got 0"):
        CostMatrix.uniform(3).weights(0)


def test_top_pairs():
    costs = CostMatrix([[0, 5, 1], [4, 0, 2], [1, 9, 0]])
    assert costs.top_pairs(3) == [(2, 1), (0, 1), (1, 0)]
    assert costs.top_pairs(2, by="asymmetry") == [(2, 1), (0, 1)]
    assert len(costs.top_pairs(100)) == 6  # the diagonal is no mistake


def test_pareto_is_seeded_and_at_least_its_scale():
    costs = CostMatrix.pareto(10, seed=3)
    off = costs.values[~np.eye(10, dtype=bool)]
    assert costs == CostMatrix.pareto(10, seed=3) != CostMatrix.pareto(10, seed=4)
    assert off.min() >= 1 and np.allclose(
        CostMatrix.pareto(10, seed=3, lomax=True).values + 1 - np.eye(10), costs.values
    )


def test_printing_shows_names_and_orientation():
    text = str(CostMatrix.from_pairs(DRUGS, {("trazodone", "glipizide"): 10}))
    assert text.splitlines()[0].split()[:3] == ["truth", "\\", "predicted"]
    assert "10" in text.splitlines()[1] and text.splitlines()[1].split()[0] == "trazodone"
