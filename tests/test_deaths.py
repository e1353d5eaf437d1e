"""A fixed sample of `make deaths`: kills of the quick commands, and four commands on a full disk and in closed folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxscript")
pytest.importorskip("optuna")
pytest.importorskip("pyarrow")

SAMPLES = (
    ("--kills", "18", "--commands", "train", "fit/method", "compare", "check", "predict/log", "decide"),
    ("--kills", "2", "--others", "--commands", "fit/priors", "data save", "compare", "tune"),  # none of the long ones
)


@pytest.mark.parametrize("words", SAMPLES, ids=("kills", "others"))
def test_a_killed_command_leaves_whole_files_and_its_second_start_the_same_ones(words):
    script = Path(__file__).parent / "deaths" / "run.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, "--seed", "0", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{words[1]} kills of" in done.stdout and "; 0 went wrong" in done.stdout
