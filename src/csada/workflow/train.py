"""Baselines: cross-entropy by a recipe, and the proof that the model fits its training data.

CSADA is for models that interpolate, so the training loss is measured on the training images as they are, without
augmentation; a baseline that does not reach it is marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.data.splits import Splits
from csada.errors import InputError
from csada.evaluation import evaluate_scores, predict_logits
from csada.folders import checkpoint_name, replaced
from csada.models import RECIPES, Recipe, create, freeze, head, load_weights, save, unfreeze
from csada.models.modes import device_of
from csada.models.zoo import arguments_for
from csada.training import Epoch, fit
from csada.workflow.evidence import input_of
from csada.workflow.runs import environment, write_json

INTERPOLATES = 0.01  # training loss without augmentation below which a baseline counts as fitting its data


@dataclass(frozen=True)
class Baseline:
    model: nn.Module
    record: dict[str, Any]


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train_baseline(
    splits: Splits,
    model: str = "resnet34",
    recipe: str | None = None,
    *,
    seed: int = 0,
    epochs: int | None = None,
    pretrained: str | None = None,
    device: torch.device | None = None,
    checkpoints: Path | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
) -> Baseline:
    """Train by one of RECIPES on the best device there is; `epochs` replaces a one-stage recipe's number of them.

    Without a recipe it is "fast" for the ResNets and "small" for networks without batch norm. Where samples are few, a
    batch holds a 32nd of them, 16 at least, so that an epoch has steps enough, and the learning rate is lowered with it.

    checkpoints: a folder from which the same training goes on. on_epoch(line, total) is told after every epoch, `total`
    counting those of all stages.
    """
    recipe = recipe or ("fast" if model.startswith("resnet") else "small")
    if recipe not in RECIPES:
        raise InputError(f"unknown recipe {recipe!r}; known: {', '.join(RECIPES)}")
    stages = RECIPES[recipe]
    if epochs is not None:
        if len(stages) > 1:
            raise InputError(f"recipe {recipe!r} has {len(stages)} stages; its epochs cannot be replaced by one number")
        stages = (dataclasses.replace(stages[0], epochs=epochs),)
    few = max(len(splits.train) // 32, 16)
    stages = tuple(
        stage
        if stage.batch_size <= few
        else dataclasses.replace(stage, batch_size=few, lr=stage.lr * few / stage.batch_size)
        for stage in stages
    )
    net = create(model, len(splits.classes), seed=seed, **arguments_for(model, splits.shape))
    if pretrained is not None:
        load_weights(net, pretrained, seed=seed)
    net = net.to(device or best_device())
    total = sum(stage.epochs for stage in stages)
    told: Callable[[Epoch], None] = lambda line: on_epoch(line, total) if on_epoch else None  # noqa: E731
    if checkpoints is not None:
        settings = {"model": model, "stages": [dataclasses.asdict(stage) for stage in stages], "pretrained": pretrained}
        checkpoints = checkpoints / checkpoint_name(splits, seed=seed, **settings)
    net, history = train_stages(net, splits, stages, seed, told, checkpoints)
    costs = CostMatrix.uniform(len(splits.classes))
    scores = {part: predict_logits(net, splits, part=part) for part in ("train", "validation", "test")}
    counts = {part: evaluate_scores(s, costs) for part, s in scores.items()}
    loss = float(F.cross_entropy(*scores["train"]))
    return Baseline(
        net,
        {
            "experiment": "baseline",
            "data": splits.name,
            "model": model,
            "arguments": arguments_for(model, splits.shape),
            "pretrained": None if pretrained is None else Path(pretrained).name,
            "recipe": recipe,
            "stages": [dataclasses.asdict(stage) for stage in stages],
            "seed": seed,
            "samples": {part: e.samples for part, e in counts.items()},
            "training_seconds": sum(line["seconds"] for line in history),
            "training_loss": loss,
            "interpolates": loss < INTERPOLATES,
            "accuracy": {part: e.accuracy for part, e in counts.items()},
            "confusion": {part: e.confusion.tolist() for part, e in counts.items() if part != "train"},
            "history": history,
            "environment": environment(),
        },
    )


def train_stages(
    net: nn.Module,
    splits: Splits,
    stages: Recipe,
    seed: int,
    on_epoch: Callable[[Epoch], None],
    checkpoints: Path | None = None,
) -> tuple[nn.Module, list[Epoch]]:
    """The stages of a recipe, one after the other where `net` lies; epochs are counted over all of them.

    checkpoints: a folder in which every stage has its own, so that a finished one is only read.
    """
    history: list[Epoch] = []
    precision = "bf16" if device_of(net).type == "cuda" else "32"

    def told(line: Epoch, _: nn.Module) -> None:
        on_epoch(line | {"epoch": len(history) + line["epoch"]})

    for i, stage in enumerate(stages):
        options = dataclasses.asdict(stage) | {"precision": precision, "seed": seed}
        if options.pop("train_only") == "head":
            freeze(net, except_=head(net))
        kept = None if checkpoints is None else checkpoints / f"checkpoint-{i}"
        fitted = fit(net, splits, "cross_entropy", on_epoch=told, checkpoint=kept, **options)
        net = fitted.model
        unfreeze(net)
        history += [line | {"epoch": len(history) + line["epoch"]} for line in fitted.history]
    return net, history


def save_baseline(baseline: Baseline, splits: Splits, folder: Path) -> Path:
    """The model as a bundle, and its record beside it: both or neither."""
    record = baseline.record
    config = {
        "architecture": record["model"],
        "arguments": record["arguments"],
        "classes": splits.classes,
        "normalization": dataclasses.asdict(splits.train.normalization),
        "input": input_of(splits),
        "metadata": {key: record[key] for key in ("data", "recipe", "seed", "accuracy", "training_loss")},
    }
    with replaced(folder) as new:
        save(baseline.model, new, config=config)
        write_json(new / "record.json", record)
    return folder
