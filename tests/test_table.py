"""Tables of numbers: which row falls into which part, and what is told about those that cannot be read."""

import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Caught, caught, counts, refused, rows, within
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from test_cli import inside

import csada.data
from csada.classifier import Classifier
from csada.data.splits import PARTS
from csada.errors import InputError
from csada.rows import MISSING
from csada.sample import Sample
from csada.workflow.predict import Model, predict

TEN = "".join(f"{i},{'xy'[i % 2]}\n" for i in range(10))


def write_table(path, n=100):
    generator = np.random.default_rng(0)
    values = generator.normal((100, -3), (20, 0.1), (n, 2))
    lines = [f"{a:.6f},{b:.6f},0.1,{('low', 'high')[i % 2]}" for i, (a, b) in enumerate(values)]
    path.write_text("\n".join(["age,dose,constant,risk", *lines]) + "\n")
    return values


def test_table_is_split_and_standardised_by_its_training_part(tmp_path):
    write_table(tmp_path / "patients.csv")
    splits = csada.data.load("patients.csv", data_dir=tmp_path)
    assert (splits.name, splits.classes) == ("patients", ("high", "low"))
    for part, share in zip(PARTS, (0.6, 0.2, 0.2), strict=True):
        assert all(within(n, 50, share) for n in counts(splits.parts[part]))
    assert len(set.union(*(rows(splits.parts[part]) for part in PARTS))) == 100
    x = splits.train.batch(torch.arange(len(splits.train))).x
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_table_takes_another_label_column_and_sorts_numbers_by_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("grade,x\n" + "\n".join(f"{grade},{i}{grade}" for i in range(20) for grade in (9, 10, 1)))
    splits = csada.data.load(path, label="grade")
    assert splits.classes == ("1", "9", "10")
    assert splits.train.x.shape[1:] == (1,)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_change_to_a_table_moves_another_row(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    lines = [("a" if i % 2 else "b", f"{i / 8}", f"{i * i}") for i in range(60)]

    def parts(lines, order=(1, 2, 0), names=("risk", "age", "dose"), text=str):
        found = [[names[i] for i in order], *([text(line[i]) for i in order] for line in lines)]
        path.write_text("\n".join(map(",".join, found)))
        splits = csada.data.load(path, label=names[0])
        at = splits.columns.index("dose")
        return {float(x[at]): part for part in PARTS for x in splits.parts[part].x}

    before = parts(lines)
    kept = data.draw(st.lists(st.sampled_from(lines), min_size=40, unique=True))
    fresh = [(label, "0.5", str(10_000 + i)) for i, label in enumerate(data.draw(st.lists(st.sampled_from("ab"))))]
    shuffled, order = data.draw(st.permutations(kept + fresh)), data.draw(st.permutations((0, 1, 2)))
    relabelled = [(data.draw(st.sampled_from("ab")), *line[1:]) for line in shuffled[:3]] + shuffled[3:]
    after = parts(relabelled, order, text=lambda cell: f"{cell}0" if "." in cell else f" {cell}")
    assert set(before) & set(after)
    assert {dose: part for dose, part in after.items() if dose in before} == {
        d: before[d] for d in after if d in before
    }


def test_rows_that_contradict_each_other_and_classes_without_rows_are_named(tmp_path):
    lines = [f"{i}.5,{'ab'[i % 2]}" for i in range(80)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,y", *lines, "4.5,b", "5.5,a", "6.5,a"]))  # the first two with another label
    assert csada.data.load(path).warnings == (
        f"{path}: the same values in two classes: line 6 and line 82, line 7 and line 83; keep the right ones",
    )
    path.write_text("\n".join(["x,y", *lines, "1000,c", "1001,c"]))
    found = set()
    for seed in range(12):
        try:
            splits = csada.data.load(path, seed=seed)
            lines = splits.warnings
            assert len(lines) == sum(2 not in splits.parts[part].y for part in PARTS) > 0
        except InputError as error:
            lines = (str(error),)
        for line in lines:
            part = re.fullmatch(f"{path}: (.*) has no row of c; add some, or take these classes out", line)[1]
            found.add(part)
    assert found == set(PARTS)


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])  # as pandas writes an index, and as it names it when it reads it
def test_an_index_written_by_pandas_is_no_feature(tmp_path, name):
    lines = [f"{100 + i},{i % 7}.{i},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join([f"{name},dose,risk", *lines]))
    splits = csada.data.load(tmp_path / "t.csv")
    assert splits.columns == ("dose",) and splits.train.x.shape[1] == 1
    assert csada.data.load(tmp_path / "t.csv", ignore=name).columns == ("dose",)
    assert [line for line in splits.warnings if "the first column is an index" in line]


def test_the_program_shows_what_is_odd(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join([",dose,risk", *(f"{i},{i}.5,{'ab'[i % 2]}" for i in range(40))]))
    for flags in ([], ["--json"]):
        run = inside("data", "show", tmp_path / "t.csv", *flags)
        assert run.returncode == 0 and "the first column is an index and was left out" in run.stdout + run.stderr


@pytest.mark.parametrize("text", ["1e39", "1_000", "0x10", "1,5"])
def test_training_and_predict_refuse_the_same_numbers(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(30)) + f'"{text}",x\n')
    refused(f"line 32, column 'a': '{text}' is not a finite number", path)
    path.write_text(f'a,b\n"{text}",x\n')
    (row,) = predict(Model(("x", "y"), Sample((1,), columns=("a",)), caught), [path])
    assert f"line 2, column 'a': '{text}' is not a finite number" in row["error"]


def test_a_column_of_words_is_never_taken_for_the_label_without_being_asked(tmp_path):
    lines = [f"{'fm'[i % 2]},{i},{i % 3}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["sex,age,outcome", *lines]))
    splits = csada.data.load(tmp_path / "t.csv")
    assert (splits.columns, splits.categories, splits.classes) == (("age", "sex"), (("f", "m"),), ("0", "1", "2"))
    assert csada.data.load(tmp_path / "t.csv", label="sex").columns == ("age", "outcome")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "labels of 0 class"),
        ("a\n1\n", "single column 'a'"),
        ("a;b\n1.5;x\n1,234;y\n", "line 3, column 'a': '1,234' may be thousands or decimals; write 1234 or 1,2340"),
        ("a\tb\n1.234\tx\n567\ty\n", "line 2, column 'a': '1.234' may be thousands or decimals"),
        ("a;b\n1,5;x\n2.5;y\n-1.234;x\n", "line 4, column 'a': '-1.234' may be thousands or decimals"),
        ("a;b\n1.234,5;x\n2;y\n", "line 2, column 'a': '1.234,5' is not a finite number"),
        ("a,a,b\n1,2,3\n", "several columns named 'a'"),
        ("a,b\n1,x\n\n2,y,z\n", "line 4 has 3 values; the header has 2 columns"),
        (f"a,b\n{TEN}\ntwo,y\n", "line 13, column 'a': 'two' is not a finite number; correct it, or leave it empty"),
        (f"a,b\n{TEN}\n1-2,x\n1.2.3,y\n", "line 13, column 'a': '1-2' is not a finite number"),
        ("a,b\n1,x\n2,\n", "line 3 has no label in column 'b'"),
        ("a,b\n1,x\n2,NA\n", "line 3 has no label in column 'b'"),
        (f"a,b,c\n{TEN.replace(',', ',?,')}", "column 'b' has no value in the training part.* --ignore b"),
        ("a,b\n1,x\n2,x\n", "labels of 1 class"),
        ("a,b\n1,x\n2,y\n", "too few rows"),
        ("dose,,risk\n1,2,a\n3,4,b\n", "column 2 has no name; name it or remove it"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_tables_that_cannot_be_read_name_the_place(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(f"{path}.*{message}", path)


def test_table_names_the_label_column_that_is_missing(tmp_path):
    write_table(tmp_path / "t.csv")
    refused("no column 'rsik'; did you mean 'risk'", tmp_path / "t.csv", label="rsik")


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), ("\t", ","), (";", "."), ("\t", ".")])
def test_spreadsheets_of_all_countries_give_the_same_table(tmp_path, separator, decimal):
    text = "\n".join(["dose,risk", *(f"{i}.25,{'ab'[i % 2]}" for i in range(60)), "2.125,a"])
    (tmp_path / "a.csv").write_text(text.replace("dose", '"dose, mg"'))
    other = text.replace(",", separator).replace(".", decimal).replace("dose", '"dose, mg"')
    (tmp_path / "b.csv").write_text("\ufeff" + other)
    a, b = (csada.data.load(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert a.columns == b.columns and all(torch.equal(a.parts[part].x, b.parts[part].x) for part in PARTS)
    model = Model(("a", "b"), Sample((1,), columns=("dose, mg",)), caught)
    given = []
    for name in ("a.csv", "b.csv"):
        with pytest.raises(Caught) as found:
            list(predict(model, [tmp_path / name]))
        given.append(found.value.args[0])
    assert np.array_equal(*given) and len(given[0]) == 61


def write_patients(path, extra=True):
    """The label is neither last nor a word; `who` holds words, `id` tells every row from the others."""
    lines = [(f"p{i}", i % 2, i % 7 + i / 100 + 9 * (i % 2), (i * i) % 11, 1000 + i) for i in range(200)]
    names = ("who", "risk", "dose", "age", "id")
    order = (0, 1, 2, 3, 4) if extra else (3, 2, 1)
    path.write_text("\n".join(",".join(str(line[i]) for i in order) for line in [names, *lines]))
    return path


def test_columns_that_are_no_features_are_named_and_left_out(tmp_path):
    path = write_patients(tmp_path / "t.csv")
    splits = csada.data.load(path, label="risk", ignore=("who", "id"))
    assert splits.columns == ("dose", "age") and splits.classes == ("0", "1")
    assert csada.data.load(path, ignore=("who", "id")).columns == ("risk", "dose")  # the label is the last one left
    refused("no column 'hwo'; did you mean 'who'", path, ignore="hwo")
    refused("no column 'risk' that may be the label", path, label="risk", ignore="risk")
    with pytest.raises(InputError, match="unknown option 'ignore' for digits"):
        csada.data.counts("digits", ignore="id")


def test_every_command_finds_the_label_and_the_features(tmp_path, monkeypatch):
    data, plain = write_patients(tmp_path / "t.csv"), write_patients(tmp_path / "plain.csv", extra=False)
    monkeypatch.chdir(tmp_path)
    flags = ("--label", "risk", "--ignore", "who,id")

    def ran(*words):
        run = inside(*words)
        assert run.returncode == 0, run.stderr
        return run.stdout

    ran("init", data, *flags)
    assert (
        'label = "risk"\n' in (text := (tmp_path / "csada.toml").read_text())
    ) and 'ignore = ["who", "id"]\n' in text
    assert "0 is labelled as 1" in ran("costs", "check")
    assert '"0": ' in ran("data", "show", "--json")
    ran("train", "--epochs", "2")
    found = json.loads(ran("evaluate", "baseline", "--costs", "uniform", "--json"))
    (tmp_path / "csada.toml").unlink()
    # Its columns are chosen by name, so every row is in its part; columns of words are not read.
    for words in ((data, "--label", "risk"), (data, "--label", "risk", "--ignore", "other"), (plain,)):
        again = json.loads(ran("evaluate", "baseline", *words, "--costs", "uniform", "--json"))
        assert again["confusion"] == found["confusion"] and again["trained_on"] == 0
    ran("fit", "baseline", data, *flags[:2], "--costs", "uniform", "--epochs", "0")
    command = json.loads(ran("tune", "baseline", data, *flags, "--costs", "uniform", "--trials", "1", "--json"))
    assert "--label risk --ignore who,id" in command["command"]
    ran("compare", data, *flags, "--costs", "uniform", "--methods", "sosr", "--seeds", "1", "--baseline-epochs", "1")
    ran("costs", "new", data, *flags, "--out", "new.csv")
    ran("predict", "baseline", data, "--out", "decisions.csv")
    assert len((tmp_path / "decisions.csv").read_text().splitlines()) == 201
    for words in (("evaluate", "baseline", data, "--label", "dose"), ("evaluate", "baseline", data, "--ignore", "age")):
        run = inside(*words, "--costs", "uniform")
        assert run.returncode == 2 and "the classifier takes dose, age" in run.stderr
    run = inside("data", "show", "digits", *flags[:2])
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "unknown option 'label' for digits" in run.stderr


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("dose,risk", lambda i: f"{i}.5,{i % 2}", []),
        ("dose,risk", lambda i: f"{i % 50},{i % 2}", []),
        ("dose,case", lambda i: f"{i}.5,{i % 10}", []),
        ("number,dose,risk", lambda i: f"{1000 + i},{i}.5,{i % 2}", ["column 'number' .* --ignore number"]),
        ("dose,Patient_ID,risk", lambda i: f"{i}.5,{i}.25,{i % 2}", ["column 'Patient_ID' .* --ignore Patient_ID"]),
        ("dose,price", lambda i: f"{i}.5,{i % 60}", ["column 'price' has 60 different values .* --label"]),
        ("0.25,7.5,1", lambda i: f"{i}.5,{i % 7}.5,{i % 2}", ["the first row looks like data"]),
        ("0.25,7.5,b", lambda i: f"{i}.5,{i % 7}.5,{'ab'[i % 2]}", ["the first row looks like data"]),
    ],
)
def test_columns_that_are_likely_mistaken_are_named(tmp_path, header, row, said):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([header, *map(row, range(500))]))
    found = [line for line in csada.data.load(path).warnings if "has no row of" not in line]
    assert len(found) == len(said)
    assert all(re.match(f"{path}: .*{message}", line) for message, line in zip(said, found, strict=True))


def test_a_label_that_is_none_is_named_where_the_table_cannot_be_split(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["dose,risk,price", *(f"{i}.5,{i % 2},{i}.25" for i in range(100))]))
    refused("column 'price' has 100 different values .* --label", path)


# -- words and missing values ----------------------------------------------------------------------


def write_mixed(path, n=200):
    """Numbers and words, some missing, and a few words that occur once. `weight` tells the number of the row."""
    draw, table = np.random.default_rng(0), []
    for i in range(n):
        dose = MISSING[i % len(MISSING)] if i % 6 == 0 else f"{draw.normal(3 * (i % 2)):.4f}"
        colour = MISSING[i % len(MISSING)] if i % 11 == 0 else ("red", "blue", "white")[i % 2 + (i % 5 == 0)]
        table.append((colour, dose, f"{i}.5", f"odd{i}" if i % 20 == 3 else "oval", "ab"[i % 2]))
    path.write_text("\n".join(map(",".join, [("colour", "dose", "weight", "shape", "risk"), *table])))
    return np.array(table, object)


def test_words_and_missing_values_are_encoded_as_by_scikit_learn_on_the_training_part_alone(tmp_path):
    table = write_mixed(tmp_path / "t.csv")
    splits = csada.data.load(tmp_path / "t.csv")
    assert splits.columns == ("dose", "weight", "colour", "shape")
    numbers = np.where(np.isin(table[:, 1:3], MISSING), "nan", table[:, 1:3]).astype(float)
    words = np.where(np.isin(table[:, [0, 3]], MISSING), None, table[:, [0, 3]])
    rows = {name: (part.x[:, 1].numpy() - 0.5).astype(int) for name, part in splits.parts.items()}
    by_numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(numbers[rows["train"]])
    fill = SimpleImputer(missing_values=None, strategy="most_frequent")
    by_words = make_pipeline(fill, OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    by_words.fit(words[rows["train"]])
    assert not set(words[rows["test"], 1]) <= {None, *splits.categories[1]}  # a category that training lacks
    for name, part in splits.parts.items():
        expected = np.hstack([by_numbers.transform(numbers[rows[name]]), by_words.transform(words[rows[name]])])
        found = part.batch(torch.arange(len(part))).x
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_was_found_in_a_table_is_said_once(tmp_path):
    path = tmp_path / "t.csv"
    write_mixed(path)
    found = "\n".join(csada.data.load(path).warnings)
    known = len(csada.data.load(path).categories[1])
    assert f"{path}: categorical: colour (3 categories), shape ({known} categories)" in found
    assert f"{path}: missing: colour (19 cells), dose (34 cells); the training part's median" in found
    assert re.search(rf"{path}: column 'shape': {11 - known} cells hold a category that training lacks", found)
    path.write_text("\n".join(["name,dose,risk", *(f"n{i},{i}.5,{'ab'[i % 2]}" for i in range(100))]))
    (said,) = (line for line in csada.data.load(path).warnings if "--ignore" in line)
    assert "column 'name' has 100 different words in 100 rows; if they are ids or free text: --ignore name" in said
    path.write_text("\n".join(["name,dose,risk", *(f"n{i},{i}.5,{'ab'[i % 2]}" for i in range(2000))]))
    refused("column 'name' has .* categories; at most 1,000 .* --ignore name", path)


def test_a_row_keeps_its_part_whatever_others_make_of_its_columns(tmp_path):
    """Words and missing values in other rows turn a column of numbers into a categorical one; ids and parts stay."""
    path = tmp_path / "t.csv"
    lines = [f"{i % 9},{i}.5,{'ab'[i % 2]}" for i in range(100)]
    path.write_text("\n".join(["code,dose,risk", *lines]))
    before = csada.data.load(path)
    path.write_text("\n".join(["code,dose,risk", *lines, *(f"c{i % 9},{i}.75,a" for i in range(40)), ",1000.5,b"]))
    after = csada.data.load(path)
    assert before.categories == () and len(after.categories) == 1
    for part in PARTS:
        assert set(before.parts[part].ids) <= set(after.parts[part].ids)


def test_a_table_of_numbers_alone_is_split_and_standardised_as_ever(tmp_path):
    write_table(tmp_path / "t.csv")
    splits = csada.data.load(tmp_path / "t.csv")
    assert splits.fingerprint == "3c39e21571447c17"
    assert splits.train.normalization.mean == (98.72009617857145, -2.979023678571429, 0.09999999999999994)


@pytest.mark.parametrize("order", [("colour", "dose", "weight", "shape"), ("shape", "weight", "dose", "colour")])
def test_a_classifier_encodes_other_tables_as_it_learned_to(tmp_path, order):
    write_mixed(tmp_path / "t.csv")
    splits = csada.data.load(tmp_path / "t.csv")
    features = splits.shape[0]
    arguments = {"architecture": "mlp", "arguments": {"features": features}}
    csada.Classifier.of(csada.models.create("mlp", 2, features=features), splits, **arguments).save(tmp_path / "m")
    classifier = Classifier.load(tmp_path / "m")
    assert (
        classifier.input.categories == splits.categories and classifier.input == Classifier.load(tmp_path / "m").input
    )
    odd, usual = {"colour": "mauve", "dose": "", "shape": "?"}, {"colour": "white", "dose": "2", "shape": "oval"}
    rows = [{**(usual, odd)[i % 2], "weight": f"{i}.25"} for i in range(60)]
    lines = [",".join([*(row[name] for name in order), "ab"[i % 2]]) for i, row in enumerate(rows)]
    (tmp_path / "new.csv").write_text("\n".join([",".join([*order, "risk"]), *lines]))
    new = classifier.load_data(tmp_path / "new.csv")
    assert any("column 'colour': 30 cells hold a category that training lacks" in line for line in new.warnings)
    norm = classifier.input.normalization
    for part in classifier.adapt(new).parts.values():
        for dose, weight, *one_hot in norm.undo(part.batch(torch.arange(len(part))).x).tolist():
            is_odd = int(weight) % 2
            assert dose == pytest.approx(norm.fill[0] if is_odd else 2, abs=1e-4)
            assert one_hot[:3] == [0, 0, not is_odd]  # blue, red, white
            assert one_hot[3:] == [name == "oval" for name in splits.categories[1]]
    alone = csada.data.load(tmp_path / "new.csv")  # its categories are others
    with pytest.raises(InputError, match=r"other categories .* 'colour'; .*load_data"):
        classifier.adapt(alone)


@pytest.mark.filterwarnings("ignore:the true class scores no higher")  # there is nothing to learn from these rows
def test_the_commands_take_words_and_missing_values(tmp_path, monkeypatch):
    data, new = tmp_path / "t.csv", tmp_path / "new.csv"
    write_mixed(data)
    lines = [f"mauve,,{1000 + i},oval,{'ab'[i % 2]}" for i in range(40)]
    new.write_text("\n".join(["colour,dose,weight,shape,risk", *lines]))
    monkeypatch.chdir(tmp_path)
    found, said = (
        "categorical: colour (3 categories), shape (",
        "column 'colour': 40 cells hold a category that training lacks",
    )
    for words, expected in (
        (("init", data), found),
        (("train", "--epochs", "1"), found),
        (("fit", "--epochs", "0", "--costs", "uniform"), ""),
        (("evaluate", "model", new), said),
        (("predict", "model", new, "--out", "decisions.csv"), said),
        (("report",), ""),
        (("compare", "--methods", "penalty", "--seeds", "2", "--epochs", "1", "--baseline-epochs", "1"), found),
    ):
        run = inside(*words)
        assert run.returncode == 0 and expected in run.stderr, run.stderr
        assert run.stderr.count("categorical:") == (expected is found)
    assert "4 columns: dose, weight, colour (3 categories), shape (" in (tmp_path / "model" / "README.md").read_text()
    assert len((tmp_path / "decisions.csv").read_text().splitlines()) == 41
