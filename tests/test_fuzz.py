"""A fixed sample of `make fuzz`: one case of every reader."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxscript")
pytest.importorskip("optuna")
pytest.importorskip("pyarrow")

CASES = 59  # as many as there are readers, or nothing passes


def test_no_file_ends_in_a_traceback_a_signal_or_a_hang():
    script = Path(__file__).parent / "fuzz" / "run.py"
    words = [sys.executable, "-W", "ignore", script, "--cases", str(CASES), "--seed", "0", "--jobs", "1"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CASES} cases of {CASES} readers" in done.stdout and "; 0 went wrong" in done.stdout
