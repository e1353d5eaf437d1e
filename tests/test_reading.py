"""The typed reader: a value of the right type, or one line with the place, what was found and what is needed."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import mlp
from test_cli import inside
from typing_extensions import TypeAliasType

import csada
from csada.decisions import Decision
from csada.errors import InputError
from csada.evidence import HELD_OUT, Attacks, Environment, EpochLine, Evidence, Training
from csada.reading import build, fields_from, parse_json, plain, read_json, read_toml, write_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    truth: int
    predicted: int = 0


@dataclass(frozen=True)
class Cost:
    pair: Pair
    cost: float = 1.0
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.cost < 0:
            raise InputError(f"cost is {self.cost}; zero or more is needed")


GOOD = [
    (int, 3, 3),
    (int, 1e3, 1000),
    (int, np.int32(4), 4),
    (float, 3, 3.0),
    (float, 1e300, 1e300),
    (float, np.float32(0.5), 0.5),
    (bool, False, False),
    (str, "", ""),
    (int | None, None, None),
    (int | str, "auto", "auto"),
    (float | int, 2, 2.0),
    (Literal["a", 1], 1, 1),
    (list[int], (1, 2), [1, 2]),
    (tuple[int, ...], [], ()),
    (tuple[int, str], [1, "a"], (1, "a")),
    (dict[str, float], {"a": 1}, {"a": 1.0}),
    (Colour, "red", Colour.RED),
    (Pair, {"truth": 1}, Pair(1)),
    (Cost, {"pair": {"truth": 1, "predicted": 2}}, Cost(Pair(1, 2))),
    (tuple[Cost, ...], [{"pair": {"truth": 1}, "cost": 2}], (Cost(Pair(1), 2.0),)),
    (dict[str, Any], {"a": [1, {}]}, {"a": [1, {}]}),
]
BAD = [
    (int, 1.5, "f: x is 1.5; a whole number is needed"),
    (int, True, "f: x is True; a whole number is needed"),
    (int, "3", "f: x is '3'; a whole number is needed"),
    (int, 2**63, f"f: x is {2**63}; a whole number of at most 64 bits is needed"),
    (int, 1e300, "f: x is 1e+300; a whole number of at most 64 bits is needed"),
    (float, 10**400, "f: x is 1" + "0" * 56 + "...; a number of at most 64 bits is needed"),
    (int, 10**5000, "f: x is a very large number; a whole number of at most 64 bits is needed"),
    (float, math.inf, "f: x is inf; a number is needed"),
    (float, math.nan, "f: x is nan; a number is needed"),
    (float, False, "f: x is False; a number is needed"),
    (bool, 1, "f: x is 1; true or false is needed"),
    (str, None, "f: x is None; text is needed"),
    (int | None, "a", "f: x is 'a'; a whole number is needed"),
    (int | str, [], "f: x is []; a whole number or text is needed"),
    (Literal["a", 1], True, "f: x is True; 'a' or 1 is needed"),
    (Literal["a", 1], [], "f: x is []; 'a' or 1 is needed"),
    (list[int], "12", "f: x is '12'; a list (a whole number each) is needed"),
    (tuple[int, ...], [1, None], "f: x[1] is None; a whole number is needed"),
    (tuple[int, str], [1], "f: x has 1 values; 2 are needed"),
    (dict[str, float], [], "f: x is []; a table of names and values is needed"),
    (dict[str, float], {"a": "b"}, "f: x.a is 'b'; a number is needed"),
    (dict[str, float], {1: 2}, "f: x is {1: 2}; a table of names and values is needed"),
    (Colour, "green", "f: x is 'green'; 'red' or 'blue' is needed"),
    (Colour, [], "f: x is []; 'red' or 'blue' is needed"),
    (Pair, [1, 2], "f: x is [1, 2]; a table of names and values is needed"),
    (Cost, {}, "f: x: pair is missing"),
    (Cost, {"pair": {}}, "f: x: pair: truth is missing"),
    (Cost, {"pair": {"truth": None}}, "f: x: pair: truth is None; a whole number is needed"),
    (Cost, {"par": 1}, "f: x: unknown key 'par'; known keys: pair, cost, notes"),
    (Cost, {"pair": {"truth": 1}, "cost": -1}, "f: x: cost is -1.0; zero or more is needed"),
    (Cost, "x" * 99, f"f: x is '{'x' * 56}...; a table of names and values is needed"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOOD)
def test_what_fits_becomes_its_type(kind, value, expected):
    built = build(kind, value, "f: x")
    assert built == expected and type(built) is type(expected)
    assert build(kind, json.loads(json.dumps(plain(built))), "f: x") == expected


@pytest.mark.parametrize(("kind", "value", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_does_not_fit_is_named_with_what_is_needed(kind, value, message):
    with pytest.raises(InputError) as error:
        build(kind, value, "f: x")
    assert str(error.value) == message


def test_fields_that_are_not_given_are_left_out():
    assert fields_from(Cost, {"cost": 2}, "f") == {"cost": 2.0}


# -- everything that a file keeps goes there and back

texts, counts, numbers = st.text(max_size=5), st.integers(0, 10**9), st.floats(-1e9, 1e9)
environments = st.builds(Environment, texts, st.none() | texts, texts, st.dictionaries(texts, texts), texts, counts)
decisions = st.builds(
    Decision,
    st.floats(1e-3, 1e3),
    st.none(),
    st.none() | st.lists(st.floats(0, 9), max_size=4).map(tuple),
    st.floats(0, 1),
    st.none() | st.floats(0, 9),
)
attacks = st.lists(st.builds(Attacks, *[counts] * 6), max_size=2).map(tuple)
epochs = st.builds(EpochLine, counts, numbers, numbers, numbers, st.none() | numbers, st.none() | numbers, attacks)
lines = st.lists(epochs, max_size=2).map(tuple)
samples = st.fixed_dictionaries(dict.fromkeys(("train", *HELD_OUT), counts))
trainings = st.builds(
    Training, texts, texts, texts, counts, texts | st.none(), samples, numbers, st.just({}), lines, environments
)
evidences = st.builds(
    Evidence,
    *(texts, st.lists(texts, max_size=3).map(tuple), samples, texts, texts, st.dictionaries(texts, numbers)),
    *(numbers, numbers, st.fixed_dictionaries({"before": decisions}), st.just("before + rule"), lines, environments),
    *(texts, counts),
)


@settings(deadline=None, max_examples=50)
@given(st.one_of(decisions, trainings, evidences))
def test_what_a_file_keeps_comes_back(value):
    assert build(type(value), json.loads(json.dumps(plain(value), allow_nan=False)), "file") == value


# -- files


def test_a_file_there_and_back(tmp_path):
    assert read_json(write_json(tmp_path / "a.json", Cost(Pair(1), 2.0)), Cost) == Cost(Pair(1), 2.0)
    (tmp_path / "a.toml").write_text("\ufeffa = 1\n", encoding="utf-8")
    assert read_toml(tmp_path / "a.toml") == {"a": 1}


@pytest.mark.parametrize("reader", [lambda p: read_json(p, Cost), read_toml])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "cannot be read: No such file or directory"),
        (os.mkfifo, "cannot be read: not a regular file"),
        (os.mkdir, "cannot be read: not a regular file"),
        (lambda p: p.symlink_to("/dev/zero"), "cannot be read: not a regular file"),
        (lambda p: p.symlink_to(p), "cannot be read: Too many levels of symbolic links"),
        (lambda p: p.touch() or os.truncate(p, 2**27), "cannot be read: more than 67,108,864 bytes"),
        (lambda p: p.write_bytes(b"\xff\xfe\x00"), "is not text in UTF-8"),
        (lambda p: p.write_text("a = [" + "[" * 10**5), "is damaged|is no TOML file"),
        (lambda p: p.write_text("a = " + "9" * 10**5), "is damaged|is no TOML file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_in_one_line(tmp_path, reader, make, message):
    make(path := tmp_path / "file")
    with pytest.raises(InputError, match=message) as error:
        reader(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', "[Infinity]", "[" * 10**5, "1" * 5000, "[1e999]"])
def test_text_that_is_no_plain_json_is_refused(text):
    with pytest.raises(InputError, match=r"^there is damaged: ") as error:
        parse_json(text, "there")
    assert "\n" not in str(error.value)


# -- the options of fit come in by the same door

WRONG = {
    "epochs": (1.5, "epochs is 1.5; a whole number is needed"),
    "seed": (-1, "seed must be zero or more, got -1"),
    "steps": ([], r"steps is \[\]; a whole number is needed"),
    "schedule": (3, "schedule is 3; text is needed"),
    "weight_decay": (-1, "weight_decay must be zero or more, got -1"),
    "batch_size": (10**30, f"batch_size is {10**30}; a whole number"),
    "lr": (math.nan, "lr is nan; a number is needed"),
    "momentum": (True, "momentum is True; a number is needed"),
    "precision": ("64", "unknown precision '64'; known: 32, bf16"),
    "estimator": (None, "estimator is None"),
}


@pytest.mark.parametrize(
    ("options", "said"),
    [({"epochs": 10**18}, "epochs must be at most 1,000,000"), ({"steps": 20_000}, "steps must be at most 10,000")],
)
def test_work_that_would_never_end_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        csada.fit(
            csada.models.create("mlp", 2, features=3),
            (torch.zeros(4, 3), torch.arange(4) % 2),
            "csada",
            csada.CostMatrix.uniform(2),
            **options,
        )


@pytest.mark.parametrize("name", WRONG)
def test_an_option_of_fit_that_cannot_be_is_one_line(name):
    value, message = WRONG[name]
    with pytest.raises(InputError, match=message) as error:
        csada.fit(
            mlp(), (torch.zeros(8, 5), torch.arange(8) % 4), "csada", csada.CostMatrix.uniform(4), **{name: value}
        )
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"seed is 1\.5; a whole number is needed"):
        csada.fit(mlp(), (torch.zeros(8, 5), torch.arange(8) % 4), "cross_entropy", seed=1.5)


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], [[1, 2], [3.5, 4]]])
def test_a_table_of_numbers_is_read_whatever_numpy_calls_it(values):
    """NDArray is an alias of its own kind since NumPy 2.5, which the oldest Python here does not have."""
    number = TypeVar("number", bound=np.generic)
    alias = TypeAliasType("alias", np.ndarray[tuple[Any, ...], np.dtype[number]], type_params=(number,))
    for kind in (NDArray[np.int64], alias[np.int64]):
        if values[1][0] == 3:
            found = build(kind, values, "counts")
            assert found.tolist() == values and found.dtype == np.int64
        else:
            with pytest.raises(InputError, match="a table of numbers is needed"):
                build(kind, values, "counts")


def test_on_the_command_line_too(tmp_path):
    given = {"architecture": "mlp", "arguments": {"features": 64}}
    network = csada.models.create("mlp", 10, features=64)
    folder = csada.Classifier.of(network, csada.data.load("digits"), **given).save(tmp_path / "model")
    arguments = [
        "fit",
        folder,
        "digits",
        "--costs",
        "uniform",
        "--method",
        "csada",
        "--set",
        "steps=[]",
        "--out",
        tmp_path / "out",
    ]
    done = inside(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.endswith("csada: steps is []; a whole number is needed\n") and done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["model"]
