"""Out-of-fold scores: what to choose by where validation is too small.

Training and validation samples together are cut into folds. For each fold the given network is trained again by its recipe on
the other folds, and the candidates from it. So every sample is scored by networks that never saw it, trained on about as many
samples as those that are judged by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from csada.classifier import Classifier, Member
from csada.data.augment import View
from csada.data.splits import Part, Splits
from csada.decisions import stratified_folds
from csada.decisions.calibration import FOLDS
from csada.evaluation import predict_logits
from csada.models import RECIPES
from csada.models.members import as_network
from csada.models.modes import device_of
from csada.training import Epoch
from csada.workflow.candidates import Candidate, epoch_seconds, train_candidates
from csada.workflow.train import train

Library = dict[str, dict[View, torch.Tensor]]  # name -> view -> logits


def not_again(classifier: Classifier, splits: Splits, minutes: float | None) -> str | None:
    """Why the given network cannot be trained again fold by fold; None where it can."""
    training = classifier.training
    as_trained = classifier.evidence is None and classifier.views == ("identity",)
    if training is None or training.recipe not in RECIPES or training.pretrained is not None or not as_trained:
        return "a model that csada train did not make from its first weights cannot be trained again"
    needed = FOLDS * len(training.history) * (epoch_seconds(classifier, splits) or 0.0)
    if minutes is not None and needed > 60 * minutes:
        return f"training the given model again {FOLDS} times takes longer than {minutes:g} minutes"
    return None


def out_of_fold(
    classifier: Classifier,
    splits: Splits,
    views: Sequence[View],
    candidates: Callable[[Classifier, Splits], Sequence[Candidate]],
    *,
    seconds: float | None = None,
    checkpoints: Path | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
) -> tuple[Library, torch.Tensor]:
    """Scores of all training and validation samples, by the given network first, and their labels.

    candidates(classifier, splits): what is trained from the network of one fold. One that was left out in any fold, for lack
    of time or because it diverged, has no scores. on_epoch counts the epochs of all folds.
    """
    training, end = classifier.training, None if seconds is None else time.monotonic() + seconds
    assert training is not None
    everything = joined(splits.train, splits.validation)
    _, first, which = np.unique(everything.ids, return_index=True, return_inverse=True)
    folds = stratified_folds(everything.y[first])[which]  # copies of a sample are in the same
    epochs = len(training.history) if len(RECIPES[training.recipe]) == 1 else None
    done, found = 0, list[tuple[NDArray[np.int64], Library]]()

    def told(line: Epoch, total: int) -> None:
        if on_epoch is not None:
            on_epoch(line | {"epoch": done + line["epoch"]}, total)

    for fold in range(FOLDS):
        out = np.flatnonzero(folds == fold)
        held = everything.take(out)
        fewer = replace(splits, train=everything.take(np.flatnonzero(folds != fold)), validation=held, test=held)
        given = train(
            fewer,
            training.model,
            training.recipe,
            seed=training.seed,
            epochs=epochs,
            device=device_of(classifier.network),
            checkpoints=checkpoints,
            on_epoch=told,
        )
        done += len(training.history)
        left = None if end is None else (end - time.monotonic()) / (FOLDS - fold)
        members: dict[str, Member] = {"given": given.start}
        for each, member, _ in train_candidates(
            given, fewer, candidates(given, fewer), seconds=left, checkpoints=checkpoints, on_epoch=told
        ):
            members[each.name] = member
            done += each.epochs
        found.append((out, {name: scores_of(member, held, views) for name, member in members.items()}))
    order = torch.from_numpy(np.argsort(np.concatenate([out for out, _ in found])))
    names = [name for name in found[0][1] if all(name in library for _, library in found)]
    scores = {
        name: {view: torch.cat([library[name][view] for _, library in found])[order] for view in views}
        for name in names
    }
    return scores, everything.y


def scores_of(member: Member, part: Part, views: Sequence[View]) -> dict[View, torch.Tensor]:
    """What the network says of the samples under each view."""
    return {view: predict_logits(as_network((member,), (view,)), part).logits for view in views}


def joined(first: Part, second: Part) -> Part:
    """The samples of both, augmented as the first."""
    both = {
        "x": torch.cat([first.x, second.x]),
        "y": torch.cat([first.y, second.y]),
        "content": np.concatenate([first.ids, second.ids]),
        "names": None,
        "costs": None if first.costs is None or second.costs is None else torch.cat([first.costs, second.costs]),
    }
    return replace(first, **both)  # type: ignore[arg-type]
