"""One method, from a saved baseline to a saved model, with what it changed on the test part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from csada.costs import CostMatrix
from csada.data.splits import Splits
from csada.decisions import MinimumExpectedCost
from csada.errors import InputError
from csada.evaluation import evaluate_scores, predict_logits
from csada.experiments.baseline import best_device
from csada.experiments.records import environment, write_json
from csada.metrics import Evaluation
from csada.models import load, read_config, save
from csada.training import Epoch, fit


@dataclass(frozen=True)
class FineTuned:
    model: nn.Module
    history: list[Epoch]
    rows: dict[str, Evaluation]  # on the test part: before and after, each by argmax and by the calibrated rule


def fine_tune(
    folder: Path,
    splits: Splits,
    costs: CostMatrix,
    method: str,
    options: Mapping[str, Any],
    *,
    checkpoint: Path | None = None,
    on_epoch: Callable[[Epoch, nn.Module], None] | None = None,
) -> FineTuned:
    """The model of `folder`, trained further; `checkpoint` is gone on from where it exists."""
    classes = tuple(read_config(folder)["classes"])
    if classes != splits.classes:
        raise InputError(f"{folder} knows the classes {', '.join(classes)}; the data have {', '.join(splits.classes)}")
    baseline = load(folder).to(best_device())
    fitted = fit(baseline, splits, method, costs, checkpoint=checkpoint, on_epoch=on_epoch, **options)
    rows = {}
    for name, model in (("before", baseline), ("after", fitted.model)):
        rule = MinimumExpectedCost.calibrated(*predict_logits(model, splits, part="validation"), costs)
        scores = predict_logits(model, splits)
        rows[name], rows[f"{name} + rule"] = evaluate_scores(scores, costs), evaluate_scores(scores, costs, rule)
    return FineTuned(fitted.model, fitted.history, rows)


def save_fine_tuned(
    tuned: FineTuned, start: Path, out: Path, costs: CostMatrix, method: str, options: Mapping[str, Any]
) -> Path:
    """The model as a bundle with its costs, and the record of the run beside it."""
    config = {key: value for key, value in read_config(start).items() if key != "metadata"}
    try:
        save(tuned.model, out, config=config | {"metadata": {"method": method, "options": dict(options)}})
    except InputError as error:
        raise InputError(f"{method} changes the model's layers, and such a model cannot be saved: {error}") from None
    costs.to_csv(out / "costs.csv")
    rows = {name: {"test": e.confusion.tolist()} for name, e in tuned.rows.items()}
    record = {"experiment": "fit", "method": method, "options": dict(options), "costs": costs.values.tolist()}
    write_json(out / "record.json", record | {"rows": rows, "history": tuned.history, "environment": environment()})
    return out


def parse_options(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that reads as JSON (a number, true, null) is that, any other is text."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--set {text!r} is not NAME=VALUE; for example --set weight=5")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options
