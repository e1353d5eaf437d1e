"""Files that are there whole or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from csada.files import whole, write_text


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
