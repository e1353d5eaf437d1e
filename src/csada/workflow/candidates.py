"""Candidates: networks that a given classifier may be averaged with, in the order in which they should be tried.

What removes cost is a better posterior, and the cheapest one is the average with networks that err elsewhere. The order was
chosen on validation, by the calibrated log-loss of the average. CIFAR-10, ResNet-34, two baselines, images and mirror images
(`results/library-cifar10.npz`): baseline 0.251 and 0.242; with a restart 0.232 and 0.226; with a restart under mixup 0.230 and
0.218; with both 0.220 and 0.212; with two mixups 0.227 and 0.217. A fourth, generic or aimed at costs, takes off another 0.001
to 0.004. None is aimed at the costs: as members such networks
showed no gain (`docs/study.md`).

Networks without batch norm on small data start from fresh weights: with nothing left to learn, a restart stays where it is. The
change of the same loss from the given network alone to it and two others; breast cancer and wine (mlp, 8 splits), digits (cnn,
4 splits); standard errors are up to 0.008:

                                    breast cancer     wine   digits
    restart, twice                          0.000    0.000    0.000
    restart with mixup, twice              +0.004   -0.010   -0.019
    fresh, twice                           -0.005   +0.002   -0.010
    fresh with mixup, and fresh            -0.009   -0.008   -0.023
    fresh with mixup, twice                -0.006   -0.011   -0.034
    fresh on bootstrap samples, twice      -0.009   +0.002   +0.003
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from csada.classifier import Classifier, Member
from csada.costs import CostMatrix
from csada.data.splits import Splits
from csada.decisions import MinimumExpectedCost
from csada.errors import Diverged, InputError
from csada.evaluation import Scores
from csada.folders import OWN
from csada.methods.distillation import Distillation, Teacher
from csada.models import MODELS, create
from csada.models.modes import best_precision, borrowed_threads, device_of
from csada.training import Epoch, fit
from csada.workflow.engine import Engine, Progress, Task, Tell, carry_out
from csada.workflow.fit import checkpoint
from csada.workflow.runs import environment
from csada.workflow.settings import Options, default_model, kind_of, restart, threads_for
from csada.workflow.train import few_samples, stages_for

STUDENT = 2.0  # an epoch of distillation from three networks and two views, in epochs of cross-entropy
SEEDS = 1000  # from here on, so that a fresh network is not the given one again
log = logging.getLogger("csada")

OnEpoch = Callable[[Epoch, int], None]


@dataclass(frozen=True)
class Candidate:
    """How one network is trained. costs: what the method gets."""

    name: str
    method: str  # of METHODS, or "distillation"
    options: Options  # of `fit` and of the method, all of them
    costs: CostMatrix
    start: Literal["given", "fresh"] = "given"
    work: float = 1.0  # of an epoch, in epochs of cross-entropy

    @property
    def epochs(self) -> int:
        return int(self.options["epochs"])

    def seconds(self, epoch: float) -> float:
        """What training is expected to take where an epoch of cross-entropy takes so long."""
        return self.epochs * self.work * epoch


def candidates(
    classifier: Classifier, splits: Splits, costs: CostMatrix, seed: int = 0, epochs: int | None = None
) -> tuple[Candidate, ...]:
    """For data as `Classifier.adapt` gives them; none where `no_restarts`. epochs: of each, instead of what suits them."""
    if no_restarts(classifier) is not None:
        return ()
    start, options = _restart(classifier, splits, epochs)
    first = SEEDS * (seed + 1) + (0 if classifier.training is None else 10 * classifier.training.seed)

    plain = "restart" if start == "given" else "fresh"
    tried = (
        (f"{plain} with mixup", "mixup", 2),
        (plain, "cross_entropy", 1),
        (f"second {plain} with mixup", "mixup", 3),
    )
    return tuple(
        Candidate(name, method, options | {"seed": first + number}, costs, start) for name, method, number in tried
    )


def student(
    classifier: Classifier, splits: Splits, costs: CostMatrix, seed: int = 0, epochs: int | None = None
) -> Candidate:
    """One network that learns what several say together; it starts from the given one."""
    if (reason := no_restarts(classifier)) is not None:
        raise InputError(reason)
    options = _restart(classifier, splits, epochs)[1] | {"seed": SEEDS * (seed + 1) + 6}
    return Candidate("student", "distillation", options, costs, work=STUDENT)


def _restart(classifier: Classifier, splits: Splits, epochs: int | None) -> tuple[Literal["given", "fresh"], Options]:
    """Where candidates start, and how they are trained."""
    architecture = classifier.members[0].architecture
    kind = kind_of(architecture if architecture in MODELS else default_model(splits.shape), splits.shape)
    start: Literal["given", "fresh"] = "fresh" if kind == "plain" and architecture in MODELS else "given"
    options = train_options(classifier, splits, kind, start)
    return start, options if epochs is None else options | {"epochs": epochs}


def no_restarts(classifier: Classifier) -> str | None:
    """Why no other network can be trained from this classifier; None where one can."""
    if not any(True for member in classifier.members for _ in member.model.parameters()):
        return "a table of scores has no network to train; only views and the decision rule are chosen"
    return None


def train_options(classifier: Classifier, splits: Splits, kind: str, start: str) -> Options:
    """Of a restart, a quarter as long as the training before it where that is known; or of the whole training again."""
    training, model = classifier.training, classifier.members[0].architecture
    epochs = None if training is None else len(training.history)
    if start == "fresh":
        (stage,) = stages_for(str(model), None, epochs, len(splits.train))[1]
        options = asdict(stage) | {"freeze_norm": False}
        del options["train_only"]
        return options
    return few_samples(restart(kind), len(splits.train)) | ({} if epochs is None else {"epochs": max(epochs // 4, 1)})


def confusion_of(scores: Scores) -> NDArray[np.float64]:
    """[K, K]: the mean calibrated probabilities of the samples of each class; held-out samples, never training ones."""
    k = scores.logits.shape[1]
    p = MinimumExpectedCost.calibrated(*scores, CostMatrix.uniform(k)).probabilities(scores.logits)
    one_hot = np.eye(k)[scores.labels.numpy()]
    return np.asarray(one_hot.T @ p / np.maximum(one_hot.sum(0), 1)[:, None])


# -- training --------------------------------------------------------------------------------------


def train_candidate(
    classifier: Classifier,
    splits: Splits,
    candidate: Candidate,
    *,
    checkpoints: Path | None = None,
    on_epoch: OnEpoch | None = None,
    teacher: nn.Module | None = None,
) -> tuple[Member, list[Epoch]]:
    """The network and its history. checkpoints: a folder from which the same training resumes. on_epoch(line, total) is
    called after every epoch.

    teacher: what a student learns from.
    """
    given = classifier.members[0]
    device = device_of(given.model)
    net = given.model
    options: Options = {"precision": best_precision(device), **candidate.options}
    if candidate.start == "fresh":
        architecture, classes = str(given.architecture), len(classifier.classes)
        net = create(architecture, classes, seed=options["seed"], **given.arguments).to(device)
    method: str | Distillation = candidate.method
    if teacher is not None:
        method = Distillation(candidate.costs, Teacher(teacher))
    kept = None
    if checkpoints is not None:
        told = options | {"start": candidate.start}
        kept = checkpoints / checkpoint(classifier, splits, candidate.costs, candidate.method, told)

    def each(line: Epoch, _: nn.Module) -> None:
        if on_epoch is not None:
            on_epoch(line, candidate.epochs)

    with borrowed_threads(threads_for(splits.shape)):
        fitted = fit(net, splits, method, candidate.costs, checkpoint=kept, on_epoch=each, **options)
    return Member(fitted.model, given.architecture, given.arguments), fitted.history


def train_ahead(
    classifier: Classifier,
    splits: Splits,
    tried: Sequence[Candidate],
    checkpoints: Path,
    engine: Engine,
    on_progress: Progress | None = None,
) -> None:
    """All at once, by an engine, into their checkpoints: who trains them then finds them finished.

    One that diverged is trained again there, which says so.
    """
    checkpoints = checkpoints.resolve()
    one = partial(_ahead, classifier, splits, checkpoints)
    tasks = [
        Task(each.name, partial(one, each), bool, checkpoints / OWN / f"{each.name}.epoch", each.epochs)
        for each in tried
    ]
    for error in carry_out([tasks], engine, on_progress=on_progress).values():
        if not isinstance(error, Diverged):
            raise error


def _ahead(classifier: Classifier, splits: Splits, checkpoints: Path, candidate: Candidate, tell: Tell) -> None:
    def on_epoch(line: Epoch, total: int) -> None:
        tell(line["epoch"], total)

    train_candidate(classifier, splits, candidate, checkpoints=checkpoints, on_epoch=on_epoch)


def train_candidates(
    classifier: Classifier,
    splits: Splits,
    tried: Sequence[Candidate],
    *,
    seconds: float | None = None,
    checkpoints: Path | None = None,
    on_epoch: OnEpoch | None = None,
    teacher: nn.Module | None = None,
) -> Iterator[tuple[Candidate, Member, list[Epoch]]]:
    """One after the other, without those that diverge. `seconds`: stops before the first one that will take longer.

    How long one will take is known from the epochs seen before: of the given network's training, then of the last candidate.
    Where there are none, or they mislead, its own first two epochs tell.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    epoch = epoch_seconds(classifier, splits)
    for candidate in tried:
        seen: list[float] = []

        def watched(line: Epoch, total: int, seen: list[float] = seen) -> None:
            if on_epoch is not None:
                on_epoch(line, total)
            seen.append(line["seconds"])
            rest = (total - line["epoch"]) * min(seen)  # the first may hold work that is done once
            if len(seen) == 2 and time.monotonic() + rest > end:
                raise _OutOfTime

        try:
            if candidate.epochs > 0 and time.monotonic() + candidate.seconds(epoch or 0.0) > end:
                raise _OutOfTime
            member, history = train_candidate(
                classifier, splits, candidate, checkpoints=checkpoints, on_epoch=watched, teacher=teacher
            )
        except _OutOfTime:
            log.info("%s is left out: it would take longer than the time that is left", candidate.name)
            return
        except Diverged as error:
            log.warning("%s is left out: %s", candidate.name, error)
            continue
        epoch = median(seen) / candidate.work if seen else epoch
        yield candidate, member, history


class _OutOfTime(Exception):
    pass


def epoch_seconds(classifier: Classifier, splits: Splits) -> float | None:
    """What an epoch of cross-entropy took when the given network was trained; None where it was not on such a device."""
    training = classifier.training
    if training is None or not training.history or training.environment.device != environment().device:
        return None
    return median(line.seconds for line in training.history) * len(splits.train) / training.samples["train"]
