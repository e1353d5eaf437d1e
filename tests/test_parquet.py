"""Parquet tables: read as the CSV file that pandas would write, a few rows at a time; what cannot be used is one line."""

import sys
from itertools import islice

import numpy as np
import pytest
from samples import in_memory_of
from test_cli import inside, refused

import csada.data
from csada.data.splits import PARTS
from csada.errors import InputError
from csada.rows import read_rows

pa, parquet, pd = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet", "pandas"))


def frame(n=300):
    draw = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "wide": draw.normal(size=n),
            "narrow": draw.normal(size=n).astype(np.float32),
            "half": draw.normal(size=n).astype(np.float16),
            "whole": draw.integers(0, 2**60, n),
            "few": pd.array([None if i % 9 == 0 else i % 5 for i in range(n)], "Int16"),
            "word": draw.choice(["x", "y", " z z", None], n),
            "yes": draw.random(n) < 0.5,
            "kind": pd.Categorical(draw.choice(["u", "v"], n)),
            "mixed": draw.choice(["1", "2.0", "A"], n),
        }
    )
    found["label"] = np.where(found.narrow > 0, 9, 10)
    found.loc[::7, "wide"] = np.nan
    return found


@pytest.mark.parametrize("index", [False, True])
def test_a_table_gives_the_same_splits_as_its_csv_file(tmp_path, index):
    table = frame()
    table = table[table.wide.isna() | (table.wide > -1)] if index else table
    table.to_parquet(tmp_path / "t.parquet", row_group_size=70)
    table.to_csv(tmp_path / "t.csv", index=index)
    text, binary = (csada.data.load(tmp_path / f"t.{form}") for form in ("csv", "parquet"))
    assert text.fingerprint == binary.fingerprint
    assert (text.classes, text.columns, text.categories) == (binary.classes, binary.columns, binary.categories)
    assert [w.replace("t.csv", "t.parquet") for w in text.warnings] == list(binary.warnings)
    assert len(text.categories) == 4 and text.classes == ("9", "10")
    for name in PARTS:
        one, other = text.parts[name], binary.parts[name]
        assert one.names == other.names and np.array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.x, other.x)
        assert one.y.equal(other.y) and one.normalization == other.normalization


def test_rows_are_read_a_few_at_a_time(tmp_path):
    n = 1_000_000
    table = pa.table({name: np.random.default_rng(0).random(n) for name in "abcdefgh"})
    parquet.write_table(table, tmp_path / "t.parquet")
    del table
    before = pa.total_allocated_bytes()
    rows = read_rows(tmp_path / "t.parquet")
    assert next(rows) == (1, list("abcdefgh")) and next(rows)[0] == 2
    assert sum(1 for _ in islice(rows, 100_000)) == 100_000
    assert pa.total_allocated_bytes() - before < 8 * 8 * n / 2  # of pages and buffers; the whole is larger


def test_a_table_is_in_memory_about_thrice_while_it_is_split(tmp_path):
    """Cells as 8 bytes, as numbers row by row, and the training part's; the text of some rows beside them."""
    n, k = 20_000, 40
    columns = {f"c{i}": np.random.default_rng(i).random(n).astype(np.float32) for i in range(k)}
    parquet.write_table(pa.table(columns | {"label": np.arange(n) % 3}), tmp_path / "t.parquet")
    with in_memory_of(26 * n * k + 30_000_000):
        csada.data.load(tmp_path / "t.parquet")


def test_every_command_takes_a_parquet_table(tmp_path):
    table = frame().drop(columns="kind")
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    model, fitted = tmp_path / "m", tmp_path / "f"
    assert inside("train", tmp_path / "t.parquet", "--model", "mlp", "--epochs", "20", "--out", model).returncode == 0
    rule = ("--costs", "uniform", "--epochs", "0", "--out", fitted)
    assert inside("fit", model, tmp_path / "t.parquet", *rule).returncode == 0
    told = []
    for form in ("csv", "parquet"):
        run = inside("evaluate", fitted, tmp_path / f"t.{form}", "--json")
        decided = inside("predict", fitted, tmp_path / f"t.{form}", "--out", tmp_path / form)
        told.append((run.stdout, (tmp_path / form).read_text()))
        assert run.returncode == decided.returncode == 0, run.stderr + decided.stderr
        assert inside("data", "show", tmp_path / f"t.{form}").returncode == 0
    assert told[0][1] == told[1][1] and told[0][0].replace("t.csv", "t.parquet") == told[1][0]


def repeated_word(word, n=20):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int32()), pa.array([word]))
    return pa.table({"a": words, "label": ["p", "q"] * (n // 2)})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"a": [[1.0]] * 20, "label": ["p", "q"] * 10}), "column 'a' holds list<element: double>"),
        (pa.table({"a": [{"b": 1}] * 20, "label": ["p", "q"] * 10}), "column 'a' holds struct<b: int64>"),
        (pa.table({"a": [b"\xff"] * 20, "label": ["p", "q"] * 10}), "column 'a' holds binary"),
        (pa.table({"a": pa.array([], pa.float64()), "label": pa.array([], pa.string())}), "labels of 0 class"),
        (pa.table({}), "is empty"),
        (
            pa.table({"a": [float("inf")] + [1.0] * 99, "label": ["p", "q"] * 50}),
            "line 2, column 'a': 'inf' is not a finite number",
        ),
        (pa.table({"a": [1.0, 2.0], "label": ["p", None]}), "line 3 has no label"),
        (repeated_word("x" * 200_000), "a cell of 200,000 letters"),
        (repeated_word("x" * 40_000_000), "40,000,052 bytes of one column in row group 1"),
        (pa.table({"a": np.zeros(1 << 20), "label": ["p", "q"] * (1 << 19)}), "2,097,152 cells; at most"),
        (pa.table({f"a{i}": [1.0] for i in range(50)}), "has 50 columns; at most 40"),
    ],
    ids=str.split("list struct bytes rowless empty infinite unlabelled cell page rows columns"),
)
def test_what_cannot_be_used_is_one_line(tmp_path, table, said, monkeypatch):
    monkeypatch.setenv("CSADA_BOUNDS", "cells=1000000,group=30000000,columns=40")
    parquet.write_table(table, tmp_path / "t.parquet", compression="zstd", store_schema=False)
    with pytest.raises(InputError) as error:
        csada.data.load(tmp_path / "t.parquet")
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_word_that_stands_in_many_rows_is_in_memory_once(tmp_path):
    parquet.write_table(repeated_word("x" * 130_000, 60_000), tmp_path / "t.parquet", store_schema=False)
    parquet.read_metadata(tmp_path / "t.parquet")
    before = pa.default_memory_pool().max_memory()
    rows = list(read_rows(tmp_path / "t.parquet"))  # 7.8 GB, if each were there by itself
    assert len(rows) == 60_001 and pa.default_memory_pool().max_memory() - before < 100e6
    assert rows[1][1][0] is rows[60_000][1][0]


def test_damaged_files_are_refused(tmp_path):
    frame(100).to_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    for damaged in (content[:-100], content[: len(content) // 2], b"", b"a,b\n1,2\n", content[:200] + content[600:]):
        (tmp_path / "t.parquet").write_bytes(damaged)
        assert "is no Parquet file, or is damaged" in refused("data", "show", tmp_path / "t.parquet")


def test_without_pyarrow_one_line_says_what_to_install(tmp_path, monkeypatch):
    frame(50).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow: pip install 'csada\[parquet\]', or save it as CSV"):
        csada.data.load(tmp_path / "t.parquet")
