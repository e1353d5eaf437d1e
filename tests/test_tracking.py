"""What a run logs arrives in the tool that reads it: pandas, TensorBoard, MLflow."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest
import torch
from torch import nn

import csada
from csada.errors import InputError
from csada.tracking import logger, tracked

SETTINGS = {"method": "csada", "lr": 0.01, "freeze_norm": None}


def train(on_epoch, epochs=3, lr=0.01):
    torch.manual_seed(0)
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    costs = csada.CostMatrix.pareto(3, seed=1)
    return csada.fit(nn.Linear(4, 3), (x, y), "csada", costs, epochs=epochs, lr=lr, on_epoch=on_epoch).history


def add_cost(line, model):
    return {"validation_cost": 1 / line["epoch"], "attacks": [{"reached": 3}], "note": "text"}


def test_a_csv_file_holds_every_number_by_epoch_and_the_settings(tmp_path):
    with tracked(f"csv:{tmp_path}", SETTINGS, add_cost) as on_epoch:
        history = train(on_epoch)
    table = pd.read_csv(tmp_path / "version_0" / "metrics.csv")
    assert sorted(table) == ["loss", "lr", "seconds", "step", "validation_cost"]
    assert table["step"].tolist() == [1, 2, 3]
    assert table["loss"].tolist() == pytest.approx([line["loss"] for line in history])
    assert table["validation_cost"].tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert [line["note"] for line in history] == ["text"] * 3  # what one's own on_epoch adds still joins the history
    assert json.loads((tmp_path / "version_0" / "settings.json").read_text()) == SETTINGS


def test_what_was_logged_before_an_error_is_kept_and_a_second_run_does_not_touch_it(tmp_path):
    def fail(line, model):
        if line["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tracked(f"csv:{tmp_path}", SETTINGS, fail) as on_epoch:
        train(on_epoch)
    with tracked(f"csv:{tmp_path}", {"lr": 0.02}) as on_epoch:
        train(on_epoch, epochs=1, lr=0.02)
    first, second = (pd.read_csv(tmp_path / f"version_{i}" / "metrics.csv") for i in range(2))
    assert first["step"].tolist() == [1, 2] and first["lr"].tolist() == [0.01, 0.01] and second["lr"].tolist() == [0.02]


def test_tensorboard_reads_the_run_back(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'csada[track]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracked(f"tensorboard:{tmp_path}", SETTINGS, add_cost) as on_epoch:
        history = train(on_epoch)
    events = EventAccumulator(str(tmp_path / "version_0")).Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3]
    assert [event.value for event in losses] == pytest.approx([line["loss"] for line in history])
    assert [event.value for event in events.Scalars("validation_cost")] == pytest.approx([1, 1 / 2, 1 / 3])
    assert "_hparams_/session_start_info" in events.summary_metadata


@pytest.mark.filterwarnings("default")  # of MLflow's own
@pytest.mark.parametrize("fails", [False, True])
def test_mlflow_reads_the_run_back_and_knows_how_it_ended(tmp_path, monkeypatch, fails):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'csada[track]'")
    pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed: pip install 'csada[track]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is enough here; MLflow prefers a database
    uri = (tmp_path / "runs").as_uri()

    def fail(line, model):
        if fails and line["epoch"] == 3:
            raise csada.RunError("stopped")

    try:
        with tracked(f"mlflow:{uri}", SETTINGS, fail) as on_epoch:
            train(on_epoch)
    except csada.RunError:
        assert fails
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("csada").experiment_id])
    assert run.info.status == ("FAILED" if fails else "FINISHED")
    assert run.data.params == {"method": "csada", "lr": "0.01", "freeze_norm": "None"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == ([1, 2] if fails else [1, 2, 3])


def test_no_tracker_is_no_tracking():
    with tracked(None, SETTINGS, add_cost) as on_epoch:
        assert on_epoch is add_cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord:runs", "unknown tracker 'tensorbord'; did you mean 'tensorboard'"),
        ("wandb:runs", "unknown tracker 'wandb'; known: csv, tensorboard, mlflow"),
        ("csv:", "'csv:' names no place; for example csv:runs"),
    ],
)
def test_what_cannot_be_tracked_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        logger(text)


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named_with_the_way_out(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, kind, None)  # as if it were not installed
    with pytest.raises(InputError, match=rf"{kind}:runs needs {kind}: pip install 'csada\[track\]'"):
        logger(f"{kind}:runs")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to csv:.*file"), tracked(f"csv:{tmp_path}/file", SETTINGS):
        pass
