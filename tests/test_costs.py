import pickle
import subprocess
import sys

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


@pytest.mark.parametrize("classes", [[1, 2, 3], ["1", "2", "3"], np.array([1, 2, 3])])
def test_an_integer_in_a_pair_is_a_position_and_never_taken_for_another_class_s_name(classes):
    named = CostMatrix.from_pairs(classes, {("1", "2"): 10})
    assert named["1", "2"] == 10 == named[0, 1] and named.values.sum() == 15
    for pair in [(1, 2), (3, 0), (np.int64(2), 0)]:
        with pytest.raises(InputError, match=f"class {pair[0]} in a pair is the name of another class .* '{pair[0]}'"):
            CostMatrix.from_pairs(classes, {pair: 10})


@pytest.mark.parametrize("classes", [range(3), ["0", "1", "2"], DRUGS])
def test_positions_in_pairs_are_those_of_indexing(classes):
    costs = CostMatrix.from_pairs(classes, {(0, 1): 10})
    assert costs[0, 1] == 10 and costs.values.sum() == 15


@pytest.mark.parametrize("values", [[[0, 1.5], [2, 0]], [[-0.0, 1.5], [2, -0.0]]])
def test_equal_costs_are_one_key_even_in_another_process(values):
    """A string hashes differently in every process."""
    costs = CostMatrix([[0, 1.5], [2, 0]], ["a", "b"])
    assert CostMatrix(values, ["a", "b"]) == costs and len({CostMatrix(values, ["a", "b"]), costs}) == 1
    code = (
        "import pickle, sys; from csada.costs import CostMatrix; costs = pickle.loads(sys.stdin.buffer.read()); "
        "print(len({costs, CostMatrix([[0, 1.5], [2, 0]], ['a', 'b'])}), costs.values.flags.writeable)"
    )
    sent = pickle.dumps(CostMatrix(values, ["a", "b"]))
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout.split() == [b"1", b"False"]


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


NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda n: n == n.strip() != "*"),
    min_size=2,
    max_size=6,
    unique=True,
)


@given(cost_matrices(), NAMES, st.booleans())
def test_any_names_come_back_from_a_table_and_from_a_list(tmp_path_factory, costs, names, as_list):
    n = min(len(costs), len(names))
    named = CostMatrix(costs.values[:n, :n], names[:n])
    path = tmp_path_factory.mktemp("csv") / "costs.csv"
    named.to_csv(path, as_list=as_list, comment='first, "second"\n\nthird;')
    assert CostMatrix.from_csv(path) == named


def test_a_list_names_the_mistakes_that_differ_and_the_more_exact_line_wins(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text(
        "# said by a pharmacist\nTruth,Predicted,Cost,why\n"
        'trazodone,glipizide,10,"lowers the sugar, unasked"\n'
        "*,*,1\nranitidine,*,0.5,harmless\n*,glipizide,3\nranitidine,ranitidine,0\n"
    )
    costs = CostMatrix.from_csv(path)
    assert costs.classes == ("trazodone", "glipizide", "ranitidine")
    assert costs.values.tolist() == [[0, 10, 1], [1, 0, 1], [0.5, 3, 0]]


def test_the_line_for_every_class_is_for_those_too_that_no_line_names(tmp_path):
    """`*,*,1` and one expensive mistake: each of the other classes had to be written down."""
    file = tmp_path / "costs.csv"
    file.write_text("truth,predicted,cost\n*,*,1\nc,a,10\n")
    costs = CostMatrix.from_csv(file, "abcd")
    assert costs.classes == tuple("abcd") and costs["c", "a"] == 10 and costs.values.sum() == 10 + 11
    with pytest.raises(InputError, match="take out 'c'"):
        CostMatrix.from_csv(file, "abd")
    file.write_text("truth,predicted,cost\na,*,1\nc,*,10\n")
    with pytest.raises(InputError, match="add 'b'"):  # nothing says what its mistakes cost
        CostMatrix.from_csv(file, "abc")


@pytest.mark.parametrize("text", ["1.000", "1,000", "12.500"])
def test_thousands_or_decimals_in_a_semicolon_file_are_not_guessed(tmp_path, text):
    path = tmp_path / "costs.csv"
    path.write_text(f"truth;predicted;cost\n*;*;1\na;b;{text}\n")
    with pytest.raises(InputError, match=r"line 3, column 3: '.*' may be thousands or decimals; write 1000 or 1,0"):
        CostMatrix.from_csv(path)
    path.write_text("truth;predicted;cost\n*;*;0.125\na;b;1.5\nb;a;1,25\n")  # none of these can be thousands
    np.testing.assert_array_equal(CostMatrix.from_csv(path).values, [[0, 1.5], [1.25, 0]])


def test_a_spreadsheet_may_write_semicolons_and_decimal_commas(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text('"# a comment, in quotes";;\ntruth;predicted;cost\n*;*;1,5\na;b, c;20\n', encoding="utf-8-sig")
    assert CostMatrix.from_csv(path) == CostMatrix([[0, 20], [1.5, 0]], ["a", "b, c"])
    path.write_text(";a;b\na;0;2,5\nb;1;0\n")
    assert CostMatrix.from_csv(path) == CostMatrix([[0, 2.5], [1, 0]], ["a", "b"])


def test_a_spreadsheet_may_make_all_rows_as_long_as_a_comment(tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("# one, two, three, four\n,a,b,,\na,0,5,,\nb,1,0,,\n,,,,\n")
    assert CostMatrix.from_csv(path) == CostMatrix([[0, 5], [1, 0]], ["a", "b"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a,b,1\n", r"does not say what calling 'b' 'a' costs; add a line \*,\*,1"),
        ("*,*,1\na,b,2\na,b,3\n", "line 4: calling 'a' 'b' stands above already"),
        ("*,*,1\na,a,2\na,b,3\n", "line 3: calling 'a' what it is must cost 0, not 2"),
        ("*,*,1\na,b\n", "line 3: a cell is missing; write truth,predicted,cost"),
        ("*,*,1\na,,2\n", "line 3: a cell is missing"),
        ("*,*,1\na,b,dear\n", "calling 'a' 'b' is 'dear', no number"),
        ('*,*,1\na,b,"1,000"\n', "calling 'a' 'b' is '1,000', no number"),
        ("*,*,1\na,b,-2\n", "calling 'a' 'b' is -2; costs must be zero or more"),
        ("*,*,1\n", "at least two classes"),
    ],
)
def test_a_bad_list_is_named(tmp_path, lines, message):
    path = tmp_path / "costs.csv"
    path.write_text("truth,predicted,cost\n" + lines)
    with pytest.raises(InputError, match=message):
        CostMatrix.from_csv(path)


def test_a_list_cannot_hold_a_class_that_means_every_class(tmp_path):
    costs = CostMatrix(CostMatrix.uniform(2).values, ["*", "a"])
    with pytest.raises(InputError, match="write a table"):
        costs.to_csv(tmp_path / "costs.csv", as_list=True)
    assert not list(tmp_path.iterdir())
    costs.to_csv(tmp_path / "costs.csv")
    assert CostMatrix.from_csv(tmp_path / "costs.csv") == costs


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
    with pytest.raises(InputError, match=r"none\.csv cannot be read: No such file"):
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
