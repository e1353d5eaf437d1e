"""Candidates: networks that a given classifier may be averaged with, in the order in which they should be tried.

What removes cost is a better posterior, and the cheapest one is the average with networks that err elsewhere. On CIFAR-10
(`csada study`, two baselines, test part, a budget of half a point) the rule removes 14 % of the cost of Pareto matrices, 24 %
if images and their mirror images are averaged, and 31 % together with a restart and a restart with mixup. A second mixup adds 2
points, and one aimed at the costs as much as a generic one, so it comes later.

Networks without batch norm on small data start from fresh weights: a restart hardly leaves the given ones. Seen on validation
(calibrated log-loss of the given network and two more, mean change over the splits): wine and breast cancer, 8 splits each:
restarts 0.000 and 0.000, with mixup -0.010 and +0.004, fresh +0.002 and -0.005, fresh and fresh with mixup -0.008 and -0.009,
fresh on bootstrap samples +0.002 and -0.009.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
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
from csada.errors import Diverged
from csada.evaluation import Scores, predict_logits
from csada.models import MODELS, create
from csada.models.modes import borrowed_threads, device_of
from csada.training import Epoch, fit, make_method, split_options
from csada.workflow.fit import checkpoint
from csada.workflow.runs import environment
from csada.workflow.settings import Options, default_model, kind_of, options_for, restart, threads_for
from csada.workflow.train import few_samples, stages_for

SEEDS = 1000  # from here on, so that a fresh network is not the given one again
log = logging.getLogger("csada")

OnEpoch = Callable[[Epoch, int], None]


@dataclass(frozen=True)
class Candidate:
    """How one network is trained. costs: what the method gets, which for CSADA is cost x confusion."""

    name: str
    method: str  # of METHODS; "none": the given network as it is
    options: Options  # of `fit` and of the method, all of them
    costs: CostMatrix
    start: Literal["given", "fresh"] = "given"
    work: float = 1.0  # of an epoch, in epochs of cross-entropy

    @property
    def epochs(self) -> int:
        return int(self.options.get("epochs", 0))

    def seconds(self, epoch: float) -> float:
        """What training is expected to take where an epoch of cross-entropy takes so long."""
        return self.epochs * self.work * epoch


def candidates(classifier: Classifier, splits: Splits, costs: CostMatrix) -> tuple[Candidate, ...]:
    """For data as `Classifier.adapt` gives them. The given network comes first; where `no_restarts`, it is alone."""
    given = Candidate("given", "none", {}, costs)
    if no_restarts(classifier) is not None:
        return (given,)
    architecture = classifier.members[0].architecture
    kind = kind_of(architecture if architecture in MODELS else default_model(splits.shape), splits.shape)
    start: Literal["given", "fresh"] = "fresh" if kind == "plain" and architecture in MODELS else "given"
    options = train_options(classifier, splits, kind, start)
    confusion = confusion_of(predict_logits(classifier.network, splits, part="validation"))
    seed = SEEDS + (0 if classifier.training is None else classifier.training.seed)

    def another(name: str, method: str, number: int, **own: object) -> Candidate:
        return Candidate(name, method, options | {"seed": seed + number} | own, costs, start)

    first = "restart" if start == "given" else "fresh"
    aimed = {"partners": "cost", "confusion": tuple(map(tuple, confusion.tolist()))}
    found = [
        given,
        another(first, "cross_entropy", 1),
        another(f"{first} with mixup", "mixup", 2),
        another(f"second {first} with mixup", "mixup", 3),
        another(f"{first} with aimed mixup", "mixup", 4, **aimed),
    ]
    weights = CostMatrix(costs.values * confusion, costs.classes)
    if weights.values.any():
        own = options_for("csada", kind, epochs=max(restart(kind)["epochs"] // 3, 1))
        own["batch_size"] = min(own["batch_size"], options["batch_size"])
        attack = make_method("csada", weights, split_options(own)[1], costs_given=True)
        # forward and backward are three forward passes, the attack two a step; the rest as the paper has it
        work = 1 + attack.tasks / own["batch_size"] * (2 * attack.steps + 4) / 3  # type: ignore[attr-defined]
        found.append(Candidate("csada", "csada", own | {"seed": seed + 5}, weights, work=work))
    return tuple(found)


def no_restarts(classifier: Classifier) -> str | None:
    """Why no other network can be trained from this classifier; None where one can."""
    if classifier.members[0].architecture is None:
        return (
            "a network without an architecture cannot be saved beside others, so no further ones are trained: give "
            "architecture='package.module:factory' to Classifier.of"
        )
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
) -> Member:
    """checkpoints: a folder from which the same training resumes. on_epoch(line, total) is called after every epoch."""
    given = classifier.members[0]
    if candidate.method == "none":
        return given
    device = device_of(given.model)
    net = given.model
    options: Options = {"precision": "bf16" if device.type == "cuda" else "32", **candidate.options}
    if candidate.start == "fresh":
        architecture, classes = str(given.architecture), len(classifier.classes)
        net = create(architecture, classes, seed=options["seed"], **given.arguments).to(device)
    kept = None
    if checkpoints is not None:
        told = options | {"start": candidate.start}
        kept = checkpoints / checkpoint(classifier, splits, candidate.costs, candidate.method, told)

    def each(line: Epoch, _: nn.Module) -> None:
        if on_epoch is not None:
            on_epoch(line, candidate.epochs)

    with borrowed_threads(threads_for(splits.shape)):
        fitted = fit(net, splits, candidate.method, candidate.costs, checkpoint=kept, on_epoch=each, **options)
    return Member(fitted.model, given.architecture, given.arguments)


def train_candidates(
    classifier: Classifier,
    splits: Splits,
    tried: Sequence[Candidate],
    *,
    seconds: float | None = None,
    checkpoints: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Iterator[tuple[Candidate, Member]]:
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
            member = train_candidate(classifier, splits, candidate, checkpoints=checkpoints, on_epoch=watched)
        except _OutOfTime:
            log.info("%s is left out: it would take longer than the time that is left", candidate.name)
            return
        except Diverged as error:
            log.warning("%s is left out: %s", candidate.name, error)
            continue
        epoch = median(seen) / candidate.work if seen else epoch
        yield candidate, member


class _OutOfTime(Exception):
    pass


def epoch_seconds(classifier: Classifier, splits: Splits) -> float | None:
    """What an epoch of cross-entropy took when the given network was trained; None where it was not on such a device."""
    training = classifier.training
    if training is None or not training.history or training.environment.device != environment().device:
        return None
    return median(line.seconds for line in training.history) * len(splits.train) / training.samples["train"]
