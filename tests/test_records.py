"""What is on record was measured, or killed, of every command that there is: with a new command the record is made again."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def record(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def test_the_memory_of_every_command_is_on_record(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    memory, found = pytest.importorskip("memory"), record("memory")
    expected = {each.name: f"csada {each.words}" for each in memory.measurements()}
    assert {name: each["command"] for name, each in found["measured"].items()} == expected
    assert found["not_measured"] == memory.NOT_MEASURED


def test_the_deaths_of_every_command_are_on_record(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "deaths")
    commands, found = pytest.importorskip("commands"), record("deaths")
    words = {name: command.words for name, command in commands.COMMANDS.items()}
    assert {name: each["words"] for name, each in found["commands"].items()} == words
    assert found["write_nothing"] == commands.NOTHING and found["left_out"] == []
    assert all(sum(each["kills"].values()) for each in found["commands"].values())
    assert not [line for each in found["commands"].values() for line in each["wrong"]]
