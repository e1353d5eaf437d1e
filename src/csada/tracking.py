"""A run's numbers where you look at runs: a CSV file, TensorBoard or MLflow, through Lightning's loggers.

    with tracked("tensorboard:runs", {"method": "csada", "lr": 1e-4}) as on_epoch:
        csada.fit(model, data, "csada", costs, lr=1e-4, on_epoch=on_epoch)

The settings are written once, every number of an epoch at that epoch, and the run is closed however it ends.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from csada.costs import did_you_mean
from csada.errors import InputError
from csada.files import write_text

Told = Callable[[dict[str, Any], Any], Any]  # an on_epoch: of `fit`, or of anything else that tells of its epochs


class CSVFolder(CSVLogger):
    """Fabric's metrics.csv, written every epoch; the settings, for which Fabric has no place, are in a file beside it."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, name=None, flush_logs_every_n_steps=1)

    def log_hyperparams(self, params: Any) -> None:
        write_text(Path(self.experiment.log_dir) / "settings.json", json.dumps(params, indent=1, default=str))


def _tensorboard(folder: str) -> Logger:
    importlib.import_module("tensorboard")
    return TensorBoardLogger(folder, name=None)


def _mlflow(uri: str) -> Logger:
    importlib.import_module("mlflow")
    made: Logger = importlib.import_module("pytorch_lightning.loggers").MLFlowLogger("csada", tracking_uri=uri)
    return made


LOGGERS: dict[str, Callable[[str], Logger]] = {"csv": CSVFolder, "tensorboard": _tensorboard, "mlflow": _mlflow}


def logger(text: str) -> Logger:
    """csv:FOLDER and tensorboard:FOLDER write to version_0, version_1, ... in the folder; mlflow:URI to its own server."""
    kind, _, place = text.partition(":")
    if kind not in LOGGERS:
        raise InputError(f"unknown tracker {kind!r}{did_you_mean(kind, LOGGERS)}")
    if not place:
        raise InputError(f"{text!r} names no place; for example csv:runs, tensorboard:runs or mlflow:http://host:5000")
    try:
        return LOGGERS[kind](place)
    except ImportError as error:
        raise InputError(f"{text} needs {error.name}: pip install 'csada[track]'") from None


@contextmanager
def tracked(
    to: str | Logger | None, settings: Mapping[str, Any] | None = None, on_epoch: Told = lambda line, model: None
) -> Iterator[Told]:
    """The on_epoch for `fit` that writes each line, and what your own on_epoch adds to it; to=None writes nothing."""
    if to is None:
        yield on_epoch
        return
    try:
        log = logger(to) if isinstance(to, str) else to
        if settings:
            log.log_hyperparams(dict(settings))
    except InputError:
        raise
    except Exception as error:  # a full disk, a server that is not there: each logger has its own
        raise InputError(f"cannot write to {to}: {error}") from error

    def written(line: dict[str, Any], model: Any) -> dict[str, Any]:
        added = on_epoch(line, model) or {}
        numbers = {name: float(value) for name, value in (line | added).items() if isinstance(value, Real)}
        log.log_metrics(numbers, step=int(numbers.pop("epoch")))
        return added

    ended = "failed"
    try:
        yield written
        ended = "success"
    finally:
        log.finalize(ended)
