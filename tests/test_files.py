"""Files that are there whole or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from csada.errors import InputError
from csada.files import whole, write_text
from csada.reading import read_json, write_json


def test_what_went_wrong_leaves_the_old_file_and_nothing_else(tmp_path):
    file = write_text(tmp_path / "new folder" / "a.txt", "old")
    with pytest.raises(ZeroDivisionError), whole(file) as partial:
        partial.write_text("ne")
        assert file.read_text() == "old"
        raise ZeroDivisionError
    assert file.read_text() == "old" and os.listdir(file.parent) == ["a.txt"]
    assert write_text(file, "new").read_text() == "new" and os.listdir(file.parent) == ["a.txt"]


def test_whoever_is_killed_while_writing_leaves_the_old_file(tmp_path):
    file = write_text(tmp_path / "a.txt", "old")
    code = """
import os, signal, sys
from csada.files import whole
with whole(sys.argv[1]) as partial:
    partial.write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code, file]).returncode == -signal.SIGKILL
    assert file.read_text() == "old"


def test_two_that_write_at_once_do_not_meet(tmp_path):
    with whole(tmp_path / "a.txt") as one, whole(tmp_path / "a.txt") as two:
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "a.txt").read_text() == "one"  # whose name came last
    assert os.listdir(tmp_path) == ["a.txt"]


def test_json_that_cannot_be_written_leaves_the_old_file_and_damage_is_named(tmp_path):
    file = write_json(tmp_path / "a.json", {"a": (1, None)})
    with pytest.raises(ValueError):
        write_json(file, {"a": float("nan")})
    assert read_json(file, dict[str, list[int | None]]) == {"a": [1, None]} and os.listdir(tmp_path) == ["a.json"]
    file.write_text("{")
    with pytest.raises(InputError, match=r"a\.json is damaged"):
        read_json(file, dict)
