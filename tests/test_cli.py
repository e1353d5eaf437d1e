"""The program as a user starts it: a process of its own."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import patch

import pytest
import torch
from program import Program
from torch import nn
from typer.main import get_command

from csada import Classifier, CostMatrix, data, fit
from csada.cli import app, main
from csada.data import folder as folders
from csada.workflow.fit import improve
from csada.workflow.train import train


def csada(*arguments, **kw):
    return subprocess.run([sys.executable, "-m", "csada", *map(str, arguments)], capture_output=True, text=True, **kw)


def inside(*arguments, cwd="."):
    """The same program in this process, where PyTorch is loaded already; its output goes to files, as of a process."""
    words, plain = ["csada", *map(str, arguments)], {"mode": "w+", "encoding": "utf-8"}
    with TemporaryFile(**plain) as out, TemporaryFile(**plain, errors="backslashreplace") as err:
        given, caught = patch.object(sys, "argv", words), pytest.raises(SystemExit)
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err), given, caught as end:
            main()
            sys.exit(0)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, end.value.code or 0, out.read(), err.read())


def refused(*arguments):
    """The one line that says why."""
    run = inside(*arguments)
    assert run.returncode == 2 and run.stdout == "" and len(run.stderr.splitlines()) == 1, run.stderr
    return run.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("train", "--epochs", "x"), "Invalid value for '--epochs'"),
        (("train", "--epoch", "3"), "No such option: --epoch"),
        (("data", "shew"), "No such command 'shew'"),
        (("tables", "--out"), "requires an argument"),
        (("nothing",), "No such command 'nothing'"),
    ],
)
def test_words_that_no_command_knows_are_one_line_too(words, why):
    said = refused(*words)
    assert said.startswith("csada: ") and why in said and "--help shows what there is" in said


def test_neither_help_nor_import_needs_torch():
    code = (
        "import sys, csada; from csada.cli import app; assert not {'torch', 'numpy'} & set(sys.modules); csada.attack"
    )
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' in sys.modules"], check=True)
    assert csada("--help").returncode == 0


def test_help_lists_every_command_in_the_order_of_use():
    shown = inside("--help").stdout
    listed = re.findall(r"^│ (\w+) ", shown, re.MULTILINE)
    assert set(listed) == set(get_command(app).commands)
    first = ["init", "data", "costs", "train", "fit", "tune", "compare", "evaluate", "check", "report", "review"]
    assert listed[:17] == [*first, "predict", "monitor", "export", "decide", "diff", "demo"]
    assert shown.index("export") < shown.index("The paper") < shown.index("demo")


def test_every_public_name_is_there():
    import csada as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'atack'"):
        package.atack  # noqa: B018


def test_toy_writes_its_figure_and_its_table(tmp_path):
    run = inside("toy", "--seeds", "1", "--out", tmp_path)
    assert run.returncode == 0, run.stderr
    assert "critical errors" in run.stdout and (tmp_path / "toy.png").stat().st_size > 50_000
    assert "<svg" in (tmp_path / "toy.svg").read_text()[:2000]


def test_bad_input_is_one_line_and_exit_code_2(tmp_path):
    run = csada("toy", "--spread", "-1", cwd=tmp_path)
    assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and "spread must be a positive num" in run.stderr
    assert "nowhere" in refused("compare", "nowhere", "--costs", "uniform")


def build(classes, width):
    """A factory of the user's, as `test_cli:build`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, classes))


def test_code_that_a_folder_names_runs_only_where_it_is_trusted(tmp_path):
    splits, folder, fitted = data.load("digits", scale=0.2), tmp_path / "own", tmp_path / "fitted"
    torch.manual_seed(0)
    costs = CostMatrix(CostMatrix.pareto(10).values, splits.classes)
    model = fit(build(10, 8), splits, "cross_entropy", epochs=3, lr=0.05, batch_size=16).model
    own = Classifier.of(model, splits, costs, architecture="test_cli:build", arguments={"width": 8})
    own.save(folder)
    folders.save(splits, tmp_path / "digits")
    image = next((tmp_path / "digits" / "test").glob("*/*.png"))
    digits = ("digits", "--scale", "0.2")
    for words in (
        ("evaluate", folder, *digits),
        ("fit", folder, *digits, "--costs", "pareto:0", "--epochs", "1", "--out", fitted),
        ("tune", folder, *digits, "--costs", "pareto:0", "--epochs", "1", "--trials", "1", "--out", tmp_path / "tuned"),
        ("export", fitted),
        ("predict", fitted, image, "--out", tmp_path / "decisions.csv"),
    ):
        assert "names code to run, 'test_cli:build'; if you trust its author" in refused(*words)
        run = inside(*words, "--trust")
        assert run.returncode == 0, run.stderr
    assert inside("report", fitted).returncode == 0  # it runs nothing
    assert (fitted / "report.html").exists() and (fitted / "model.onnx").exists()
    assert len((tmp_path / "decisions.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_says_what_is_kept_and_the_same_command_resumes(tmp_path, sent, code):
    words = ("train", "digits", "--model", "cnn", "--scale", "0.2", "--epochs", "100000", "--out", tmp_path / "m")
    run = Program(*words)
    try:
        while run.poll() is None and not list(tmp_path.glob("m/.csada/*/checkpoint-0")):
            time.sleep(0.01)
        run.send_signal(sent)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, out) == (code, "")
    assert err == "csada: interrupted; the epochs up to the last checkpoint are kept: the same command resumes\n"
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["checkpoint-0"]


def test_a_resumed_run_says_where_it_resumes_and_one_that_starts_anew_says_nothing(tmp_path):
    digits = data.load("digits", scale=0.2)

    def stop(line, total):
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    start = Classifier.load(train(digits, "cnn", epochs=1).save(tmp_path / "start"))
    costs = CostMatrix(CostMatrix.pareto(10).values, digits.classes)
    settings = {"epochs": 3, "seed": 0}
    for work in (
        lambda: train(digits, "cnn", "small", epochs=3, checkpoints=tmp_path / "m", on_epoch=stop),
        lambda: improve(start, digits, costs, "csada", settings, checkpoints=tmp_path / "f", on_epoch=stop),
    ):
        with pytest.raises(KeyboardInterrupt):
            work()
    same = ("--scale", "0.2", "--epochs", "3")
    for words in (
        ("train", "digits", "--model", "cnn", "--recipe", "small", *same, "--out", tmp_path / "m"),
        (
            "fit",
            tmp_path / "start",
            "digits",
            "--costs",
            "pareto:0",
            "--method",
            "csada",
            *same,
            "--out",
            tmp_path / "f",
        ),
    ):
        run = inside(*words)
        assert run.returncode == 0 and run.stderr.count("resuming after epoch 1 of 3\n") == 1, run.stderr
        again = inside(*words, *(["--force"] if words[0] == "train" else []))
        assert again.returncode == 0 and "resuming" not in again.stderr


def test_quiet_when_the_output_is_no_terminal():
    run = csada("data", "show", "digits")
    assert run.returncode == 0 and run.stderr == "" and "1,078" in run.stdout and "\x1b" not in run.stdout


def test_what_is_there_as_json():
    shown = json.loads(inside("data", "show", "digits", "--scale", "0.2", "--json").stdout)
    assert list(shown["samples"]) == ["train", "validation", "test"] and len(shown["samples"]["test"]) == 10
    listed = json.loads(inside("reproduce", "--list", "--scale", "smoke", "--json", "--runs", "nowhere").stdout)
    assert len(listed) == 10 and {"name", "runs", "done", "seconds_left"} <= set(listed[0])


def test_the_list_counts_the_part_that_is_asked_for():
    def pairs(*words):
        record = Path(__file__).parents[1] / "results" / "all-pairs"
        words = (
            "reproduce",
            "failure-cifar10",
            "--list",
            "--json",
            "--runs",
            "nowhere",
            "--results",
            str(record),
            *words,
        )
        (row,) = json.loads(inside(*words).stdout)
        return row["runs"], row["done"]

    some, all_of_them, one_method = pairs(), pairs("--all-pairs"), pairs("--all-pairs", "--methods", "csada")
    assert some[0] == 40 and all_of_them[0] == 180 and one_method[0] == 90
    assert some[1] < one_method[1] < all_of_them[1]
