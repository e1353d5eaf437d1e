"""A classifier from its first weights on: cross-entropy by a recipe, and the proof that it fits its training data.

CSADA is for models that interpolate, so the training loss is measured on the training samples as they are, without
augmentation; a model that does not reach it is marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from csada.classifier import Classifier, Input, Member
from csada.data.augment import allowed_views
from csada.data.splits import Splits
from csada.errors import InputError, check_known
from csada.evaluation import predict_logits
from csada.evidence import Training
from csada.folders import OWN
from csada.models import MODELS, RECIPES, Recipe, arguments_for, freeze, head, load, load_weights, unfreeze
from csada.models.factories import check_trust
from csada.models.members import check_members
from csada.models.modes import best_device, best_precision, device_of
from csada.training import Epoch, fit
from csada.training.checkpoints import digest
from csada.workflow.runs import environment, lines, run_id


def train(
    splits: Splits,
    model: str = "resnet34",
    recipe: str | None = None,
    *,
    seed: int = 0,
    epochs: int | None = None,
    pretrained: str | None = None,
    trust: bool = False,
    device: torch.device | None = None,
    checkpoints: Path | None = None,
    known: Classifier | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
) -> Classifier:
    """Train by one of RECIPES on the best device there is; `epochs` replaces a one-stage recipe's number of them.

    Without a recipe it is "fast" for the ResNets and "small" for networks without batch norm. Where samples are few, a
    batch holds a 32nd of them, 16 at least, so that an epoch has enough steps, and the learning rate is lowered with it.

    trust: lets `model` name a factory of yours, package.module:factory, which is code that runs.
    checkpoints: a folder from which the same training resumes. known: returned as it is, if this very training made it.
    on_epoch(line, total) is called after every epoch, `total` counting those of all stages.
    """
    if not len(splits.train):
        raise InputError(f"{splits.name} has no training samples; csada decide takes a table of scores")
    recipe, stages = stages_for(model, recipe, epochs, len(splits.train))
    check_trust(model, trust, "model")
    arguments = arguments_for(model, splits.shape)
    net = load(model, len(splits.classes), seed=seed, **arguments)
    if model not in MODELS:
        check_members((Member(net),), Input.of(splits), len(splits.classes))
    if pretrained is not None:
        load_weights(net, pretrained, seed=seed)
    net = net.to(device or best_device())
    settings = {"model": model, "stages": [dataclasses.asdict(stage) for stage in stages], "pretrained": pretrained}
    labels = (part.y[torch.from_numpy(part.ids.argsort(kind="stable"))] for part in splits.parts.values())
    told = (splits.classes, splits.columns, splits.shape, splits.train.augmentation)
    made_from = digest(*told, *labels, *net.state_dict().values())
    run = run_id(splits, seed=seed, made_from=made_from, **settings)
    if known is not None and known.training is not None and known.training.run == run and known.evidence is None:
        return known
    if checkpoints is not None:
        checkpoints = checkpoints / OWN / run
    total = sum(stage.epochs for stage in stages)
    net, history = train_stages(
        net, splits, stages, seed, lambda line: on_epoch(line, total) if on_epoch else None, checkpoints
    )
    scores = {part: predict_logits(net, splits, part=part) for part in ("train", "validation", "test")}
    return Classifier(
        (Member(net, model, arguments),),
        Input.of(splits),
        splits.classes,
        trained_on=np.unique(splits.train.ids),
        training=Training(
            splits.name,
            model,
            recipe,
            seed,
            None if pretrained is None else Path(pretrained).name,
            {part: len(s.labels) for part, s in scores.items()},
            float(F.cross_entropy(*scores["train"])),
            {part: float((s.logits.argmax(1) == s.labels).float().mean()) for part, s in scores.items()},
            lines(history),
            environment(),
            run,
        ),
        allowed_views=allowed_views(splits.train.augmentation, splits.shape),
    )


def stages_for(model: str, recipe: str | None, epochs: int | None, samples: int) -> tuple[str, Recipe]:
    """The recipe's name, and its stages as `train` runs them for that number of training samples."""
    recipe = recipe or ("fast" if model.startswith("resnet") else "small")
    check_known("recipe", recipe, RECIPES)
    stages = RECIPES[recipe]
    if epochs is not None:
        if len(stages) > 1:
            raise InputError(f"recipe {recipe!r} has {len(stages)} stages; its epochs cannot be replaced by one number")
        stages = (dataclasses.replace(stages[0], epochs=epochs),)
    return recipe, tuple(dataclasses.replace(stage, **few_samples(vars(stage), samples)) for stage in stages)


def few_samples(settings: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """The settings with a batch of at most a 32nd of the samples, 16 at least, and the learning rate lowered with it."""
    few, size = max(samples // 32, 16), settings["batch_size"]
    return {**settings, **({"batch_size": few, "lr": settings["lr"] * few / size} if size > few else {})}


def train_stages(
    net: nn.Module,
    splits: Splits,
    stages: Recipe,
    seed: int,
    on_epoch: Callable[[Epoch], object],
    checkpoints: Path | None = None,
) -> tuple[nn.Module, list[Epoch]]:
    """The stages of a recipe, one after the other on the network's device; epochs are counted over all of them.

    checkpoints: a folder in which every stage has its own, so that a finished one is only read.
    """
    history: list[Epoch] = []

    def told(line: Epoch, _: nn.Module) -> None:
        on_epoch(line | {"epoch": len(history) + line["epoch"]})

    for i, stage in enumerate(stages):
        options = dataclasses.asdict(stage) | {"precision": best_precision(device_of(net)), "seed": seed}
        if options.pop("train_only") == "head":
            freeze(net, except_=head(net))
        kept = None if checkpoints is None else checkpoints / f"checkpoint-{i}"
        fitted = fit(net, splits, "cross_entropy", on_epoch=told, checkpoint=kept, **options)
        net = fitted.model
        unfreeze(net)
        history += [line | {"epoch": len(history) + line["epoch"]} for line in fitted.history]
    return net, history
