import json

import pytest
from test_cli import csada as program

import csada
from csada.experiments.fine_tuning import parse_options


def test_from_a_trained_folder_to_a_fitted_one(tmp_path):
    assert program("train", "digits", "--model", "cnn", "--epochs", "20", "--out", tmp_path / "base").returncode == 0
    settings = ["--lr", "0.001", "--batch-size", "64", "--epochs", "2", "--set", "step_size=0.02", "--set", "tasks=8"]
    run = program("fit", tmp_path / "base", "digits", "--costs", "pareto:1", "--out", tmp_path / "fitted", *settings)
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "fitted" / "record.json").read_text())
    splits, costs = csada.data.load("digits"), csada.CostMatrix.from_csv(tmp_path / "fitted" / "costs.csv")
    again = csada.evaluate(csada.models.load(tmp_path / "fitted"), splits, costs)
    assert record["rows"]["after"]["test"] == again.confusion.tolist()
    assert f"{100 * again.accuracy:.2f}" in run.stdout and len(record["history"]) == 2
    assert not (tmp_path / "fitted" / "checkpoint.pt").exists()


def test_bad_input_is_one_line(tmp_path):
    nowhere = program("fit", tmp_path / "none", "digits", "--costs", "uniform", "--out", tmp_path / "out")
    assert nowhere.returncode == 2 and "none" in nowhere.stderr and len(nowhere.stderr.splitlines()) == 1
    assert parse_options(["weight=5", "norm=l2", "freeze_norm=false"]) == {
        "weight": 5,
        "norm": "l2",
        "freeze_norm": False,
    }
    with pytest.raises(csada.InputError, match="is not NAME=VALUE"):
        parse_options(["weight"])
