"""The program as a user starts it: a process of its own."""

import json
import os
import subprocess
import sys

import pytest


def csada(*arguments, **kw):
    return subprocess.run([sys.executable, "-m", "csada", *map(str, arguments)], capture_output=True, text=True, **kw)


def test_help_needs_no_torch():
    code = "import sys; from csada.cli import app; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert csada("--help").returncode == 0


def test_importing_csada_needs_no_torch_until_it_is_used():
    code = "import sys, csada; assert 'torch' not in sys.modules; csada.attack; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there():
    import csada as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'atack'"):
        package.atack  # noqa: B018


def test_toy_writes_its_figure_and_its_table(tmp_path):
    run = csada("toy", "--seeds", "1", "--out", tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    assert "critical errors" in run.stdout and (tmp_path / "toy.png").stat().st_size > 50_000
    assert "<svg" in (tmp_path / "toy.svg").read_text()[:2000]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy", "--spread", "-1"], "spread must be a positive number"),
        (["compare", "nowhere", "--costs", "uniform"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    run = csada(*arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert message in run.stderr and "Traceback" not in run.stderr and len(run.stderr.strip().splitlines()) == 1


def test_quiet_when_the_output_is_no_terminal():
    run = csada("data", "show", "digits")
    assert run.returncode == 0 and run.stderr == "" and "\x1b" not in run.stdout


def test_what_is_there_as_json():
    shown = json.loads(csada("data", "show", "digits", "--scale", "0.2", "--json").stdout)
    assert list(shown["samples"]) == ["train", "validation", "test"] and len(shown["samples"]["test"]) == 10
    listed = json.loads(csada("reproduce", "--list", "--scale", "smoke", "--json", "--runs", "nowhere").stdout)
    assert len(listed) == 10 and {"name", "runs", "done", "seconds_left"} <= set(listed[0])
