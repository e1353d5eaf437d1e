"""Out-of-fold scores: what to choose by where validation is too small.

Training and validation samples together are cut into folds. For each fold the given network is trained again by its recipe on
the other folds, and the candidates from it. So every sample is scored by networks that never saw it, trained on about as many
samples as those that are judged by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from csada.folders import OWN
from csada.models import RECIPES
from csada.models.members import as_network
from csada.models.modes import borrowed_threads, device_of
from csada.training import Epoch
from csada.workflow.candidates import Candidate, epoch_seconds, train_candidates
from csada.workflow.engine import Engine, Progress, Task, Tell, carry_out
from csada.workflow.settings import threads_for
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
    engine: Engine | None = None,
    on_progress: Progress | None = None,
) -> tuple[Library, torch.Tensor, list[Epoch]]:
    """Scores of all training and validation samples, by the given network first, their labels, and the epochs of all folds.

    candidates(classifier, splits): what is trained from the network of one fold. One that was left out in any fold, for lack
    of time or because it diverged, has no scores. on_epoch counts the epochs of all folds. engine: where folds are done side
    by side, without `on_epoch` and if there are checkpoints; None: one after the other, here.
    """
    training, end = classifier.training, None if seconds is None else time.monotonic() + seconds
    assert training is not None
    everything, done = joined(splits.train, splits.validation), list[Fold]()

    def told(line: Epoch, total: int) -> None:
        if on_epoch is not None:
            on_epoch(line | {"epoch": sum(len(fold.history) for fold in done) + line["epoch"]}, total)

    one = partial(one_fold, classifier, splits, views, candidates, checkpoints=checkpoints)
    if engine is None or checkpoints is None:
        for number in range(FOLDS):
            left = None if end is None else (end - time.monotonic()) / (FOLDS - number)
            done.append(one(number, told, seconds=left))
    else:
        found, kept, shape = dict[int, Fold](), checkpoints.resolve() / OWN, splits.shape
        one, epochs = partial(one, checkpoints=kept.parent), len(training.history)
        epochs += sum(each.epochs for each in candidates(classifier, splits))
        tasks = [
            Task(f"fold {i + 1}", partial(apart, one, shape, i, epochs), partial(found.__setitem__, i), file, epochs)
            for i, file in enumerate(kept / f"fold-{i}.epoch" for i in range(FOLDS))
        ]
        for error in carry_out([tasks], engine, on_progress=on_progress).values():
            raise error
        done = [found[i] for i in range(FOLDS)]
    order = torch.from_numpy(np.argsort(np.concatenate([fold.samples for fold in done])))
    names = [name for name in done[0].scores if all(name in fold.scores for fold in done)]
    scores = {
        name: {view: torch.cat([fold.scores[name][view] for fold in done])[order] for view in views} for name in names
    }
    return scores, everything.y, [line for fold in done for line in fold.history]


@dataclass(frozen=True)
class Fold:
    """What came of one: of which samples, the scores by those trained without them, and the epochs of these."""

    samples: NDArray[np.int64]
    scores: Library
    history: list[Epoch]


def one_fold(
    classifier: Classifier,
    splits: Splits,
    views: Sequence[View],
    candidates: Callable[[Classifier, Splits], Sequence[Candidate]],
    number: int,
    on_epoch: Callable[[Epoch, int], None],
    *,
    seconds: float | None = None,
    checkpoints: Path | None = None,
) -> Fold:
    """on_epoch counts the epochs of this fold."""
    training, history = classifier.training, list[Epoch]()
    assert training is not None
    everything = joined(splits.train, splits.validation)
    _, first, which = np.unique(everything.ids, return_index=True, return_inverse=True)
    folds = stratified_folds(everything.y[first])[which]  # copies of a sample are in the same
    out = np.flatnonzero(folds == number)
    held = everything.take(out)
    fewer = replace(splits, train=everything.take(np.flatnonzero(folds != number)), validation=held, test=held)

    def told(line: Epoch, total: int) -> None:
        on_epoch(line | {"epoch": len(history) + line["epoch"]}, total)

    given = train(
        fewer,
        training.model,
        training.recipe,
        seed=training.seed,
        epochs=len(training.history) if len(RECIPES[training.recipe]) == 1 else None,
        device=device_of(classifier.network),
        checkpoints=checkpoints,
        on_epoch=told,
    )
    assert given.training is not None
    history += [vars(line) for line in given.training.history]
    members: dict[str, Member] = {"given": given.start}
    for each, member, lines in train_candidates(
        given, fewer, candidates(given, fewer), seconds=seconds, checkpoints=checkpoints, on_epoch=told
    ):
        members[each.name] = member
        history += lines
    return Fold(out, {name: scores_of(member, held, views) for name, member in members.items()}, history)


def apart(one: Callable[..., Fold], shape: Sequence[int], number: int, epochs: int, tell: Tell) -> Fold:
    with borrowed_threads(threads_for(shape)):
        return one(number, lambda line, _: tell(line["epoch"], epochs))


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
