"""One method, from a saved baseline to a saved model that carries its costs, its decision rule and the evidence for it.

Four rows are compared: the model before and after, each by argmax and by its decision rule. Rules are chosen on validation.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from csada.costs import CostMatrix
from csada.data.splits import Splits
from csada.decisions import to_plain
from csada.errors import InputError
from csada.evaluation import evaluate_scores, predict_logits
from csada.folders import checkpoint_name, replaced
from csada.methods.auxcst import AuxiliaryCosts
from csada.methods.sosr import CostRegressor
from csada.metrics import Evaluation
from csada.models import MODELS, head, load, read_config, save
from csada.models.modes import borrowed_threads
from csada.models.weights import WEIGHTS
from csada.report.card import card, evaluations, recommended
from csada.training import Epoch, Settings, fit, make_method
from csada.workflow.compare import make_plan
from csada.workflow.evidence import (
    PARTS,
    Arrays,
    Probe,
    counts,
    fitting,
    input_of,
    is_pictures,
    mistakes,
    rule_for,
    score_arrays,
)
from csada.workflow.runs import environment, write_json
from csada.workflow.train import best_device

WHO = ("devices", "num_nodes", "max_batch")  # settings that say who does the work, not what comes of it


@dataclass(frozen=True)
class FineTuned:
    """All that is written into a folder."""

    model: nn.Module
    config: dict[str, Any]  # of the bundle
    record: dict[str, Any]
    arrays: Arrays
    costs: CostMatrix

    @property
    def history(self) -> list[Epoch]:
        history: list[Epoch] = self.record["history"]
        return history

    @property
    def rows(self) -> dict[str, Evaluation]:
        """On the test part: before and after, each by argmax and by its rule."""
        return evaluations(self.record)


def fine_tune(
    folder: Path,
    splits: Splits,
    costs: CostMatrix,
    method: str,
    options: Mapping[str, Any],
    *,
    budget: float = 0.5,
    refer: float = 0.0,
    device: torch.device | None = None,
    checkpoints: Path | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
) -> FineTuned:
    """The model of `folder`, trained further.

    options: of `fit` and of the method; those that are not given are as in `compare`, by the kind of the model, with
    batches of at most an eighth of the samples. epochs=0 trains nothing and only chooses the rule. budget: points of
    accuracy that a rule may lose on validation. refer: the share of cases that it may leave to a person. checkpoints: a
    folder from which the same run goes on. on_epoch(line, total) is told after every epoch.
    """
    started = datetime.now(UTC)
    config = read_config(folder)
    if method == "csdnn":
        raise InputError(
            "csdnn trains a network of its own, which cannot be saved; `csada compare` shows what it gives"
        )
    splits = fitting(splits, config, str(folder))
    settings, threads = resolved(splits, costs, method, options, config)
    names = {f.name for f in dataclasses.fields(Settings)}
    chosen = make_method(method, costs, {k: v for k, v in settings.items() if k not in names}, costs_given=True)
    plain = {k: v for k, v in settings.items() if k not in WHO}
    before = load(folder).to(device or best_device())
    probe = Probe.of(chosen, splits.train)

    def told(line: Epoch, model: nn.Module) -> Epoch:
        e = evaluate_scores(predict_logits(model, splits, part="validation"), costs)
        more: Epoch = {"validation_accuracy": e.accuracy, "validation_cost": e.weighted_error_rate}
        if probe is not None:
            more["attacks"] = probe(model)
        if on_epoch is not None:
            on_epoch(line | more, settings["epochs"])
        return more

    with borrowed_threads(threads):
        after, history = before, []
        attacks = None if probe is None else probe(before)
        if settings["epochs"] > 0:
            weights = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
            run = checkpoint_name(splits, start=weights, costs=costs.values.tolist(), method=method, options=plain)
            kept = None if checkpoints is None else checkpoints / f"{run}.pt"
            given = {k: v for k, v in settings.items() if k in names}
            fitted = fit(before, splits, chosen, costs, checkpoint=kept, on_epoch=told, **given)
            after, history = folded(fitted.model), fitted.history
        models = {"before": before, "after": after}
        scores = {(n, part): predict_logits(m, splits, part=part) for n, m in models.items() for part in PARTS}
        examples = probe.examples(before) if probe is not None and is_pictures(splits.train) else {}
    rules = {name: rule_for(scores[name, "validation"], costs, budget / 100, refer) for name in models}
    rows: dict[str, Any] = {}
    for name in models:
        rows[name] = {part: counts(scores[name, part]) for part in PARTS}
        rows[f"{name} + rule"] = {part: counts(scores[name, part], rules[name]) for part in PARTS}
    arrays = score_arrays(scores)
    if is_pictures(splits.test):
        decided = np.asarray(rules["after"](scores["after", "test"].logits))
        arrays |= mistakes(splits.test, decided, costs) | examples
    about = {key: config[key] for key in ("architecture", "arguments")} | {"input": input_of(splits)}
    decision = to_plain(rules["after"])
    record = {
        "experiment": "fit",
        "data": {
            "name": splits.name,
            "classes": list(splits.classes),
            "samples": {part: len(getattr(splits, part)) for part in ("train", *PARTS)},
        },
        "start": config["metadata"],
        "model": about,
        "method": method,
        "options": plain,
        "costs": costs.values.tolist(),
        "budget": budget,
        "refer": refer,
        "decision": decision,
        "rows": rows,
        "rules": {name: to_plain(rule) for name, rule in rules.items()},
        "attacks": attacks,
        "history": history,
        "environment": environment(),
        "seconds": sum(line["seconds"] for line in history),
        "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    record["recommended"] = recommended(record)
    bundle = about | {
        "classes": list(splits.classes),
        "normalization": dataclasses.asdict(splits.train.normalization),
        "decision": decision,
        "metadata": {"data": splits.name, "method": method, "options": plain},
    }
    return FineTuned(after, bundle, record, arrays, costs)


def resolved(
    splits: Splits, costs: CostMatrix, method: str, options: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """Every setting, and the number of threads that suits the samples."""
    architecture = config["architecture"] if config["architecture"] in MODELS else None
    plan = make_plan(splits, costs, [method], architecture, None, None, None)
    settings = plan.methods[method]
    fewer = min(settings["batch_size"], max(len(splits.train) // 8, 16))
    return settings | {"batch_size": fewer, "seed": 0, **options}, plan.threads


def folded(model: nn.Module) -> nn.Module:
    """SOSR's and AuxCST's layer of cost estimates, and the last layer below it, as one: the layers that a bundle knows."""
    model = model.model if isinstance(model, AuxiliaryCosts) else model
    if not isinstance(model, CostRegressor):
        return model
    net, estimates = copy.deepcopy(model.net), model.estimates
    last = net.get_submodule(head(net))
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.bias.copy_(-(estimates.weight @ last.bias + estimates.bias))
        last.weight.copy_(-(estimates.weight @ last.weight))
    return net


def save_fine_tuned(tuned: FineTuned, out: Path) -> Path:
    """The model as a bundle with its costs, its card, the record of the run and the evidence: all of it or nothing."""
    with replaced(out) as new:
        try:
            save(tuned.model, new, config=tuned.config)
        except InputError as error:
            method = tuned.record["method"]
            raise InputError(
                f"{method} changes the model's layers, and such a model cannot be saved: {error}"
            ) from None
        tuned.costs.to_csv(new / "costs.csv")
        write_json(new / "record.json", tuned.record)
        np.savez_compressed(new / "evidence.npz", **tuned.arrays)  # type: ignore[arg-type]
        (new / "README.md").write_text(card(tuned.record), encoding="utf-8")
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
