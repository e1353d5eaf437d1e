"""`auto`: the best classifier that can be made from a given one, within an accuracy budget.

A decision rule is only as good as the probabilities under it. So auto trains a few candidates from the given model, scores
every sample under the views that keep its label, averages the given model and the first candidates unless another choice costs
clearly less on validation, calibrates the average and gives it a decision rule. What is saved is what validation chose, be it
the given model with its rule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csada.classifier import Classifier, Member
from csada.costs import CostMatrix
from csada.data.augment import View
from csada.data.splits import Splits
from csada.decisions import Limits, select, test_part
from csada.decisions.calibration import FEWEST, FOLDS
from csada.errors import Diverged, InputError
from csada.evaluation import Scores
from csada.models.modes import borrowed_threads
from csada.training import Epoch
from csada.workflow.candidates import (
    Candidate,
    candidates,
    epoch_seconds,
    no_restarts,
    student,
    train_ahead,
    train_candidates,
)
from csada.workflow.engine import Engine, Progress
from csada.workflow.fit import Made, check_limits, checked, concluded
from csada.workflow.folds import not_again, out_of_fold, scores_of
from csada.workflow.runs import lines as typed
from csada.workflow.settings import Options, threads_for

TOO_FEW = "%d validation samples are too few to choose by, and %s: the given model is kept, with its decision rule"
MANY = "members is %d, and there are %d candidates: at most %d are averaged"
OUT_OF_FOLD = (
    "%d validation samples are too few to choose by: all choices are made on training and validation samples together, each "
    "scored by networks that were trained without it (%d folds)"
)
log = logging.getLogger("csada")


def auto(
    classifier: Classifier,
    splits: Splits,
    costs: CostMatrix,
    *,
    members: int = 3,
    views: Sequence[View] | None = None,
    single: bool = False,
    epochs: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    budget: float = 0.5,
    refer: float | None = None,
    limits: Limits | None = None,
    seen: str = "refuse",
    checkpoints: Path | None = None,
    on_epoch: Callable[[Epoch, int], None] | None = None,
    engine: Engine | None = None,
    on_progress: Progress | None = None,
) -> Classifier:
    """The classifier that costs least on validation among the given one and averages of networks trained from it.

    members: networks to average, at most. views: of each sample; where validation gains by them, all that training showed,
    unless given. single: what was chosen is distilled into one network that sees each sample once. epochs: of each training; 0
    trains nothing and chooses views and rule, as one member at most does; what has several members then keeps them. minutes:
    no training starts that would end later, or leave no time for the student; else the candidates take no more epochs than the
    given model did. With fewer than FEWEST validation samples, choices are made on out-of-fold scores where the given model
    can be trained again; else only its rule is fitted. budget, refer, seen, checkpoints, on_epoch: as for `improve`. engine:
    where candidates and folds are trained side by side, if there are checkpoints, without `minutes`, told by on_progress;
    None: one after the other, here.
    """
    if members < 1:
        raise InputError(f"members is {members}; 1 or more are needed")
    if engine is not None and minutes is not None:
        raise InputError("--time trains one network after the other: leave it out, or --engine and --workers")
    costs = costs.ordered(classifier.classes)
    started, deadline = datetime.now(UTC), None if minutes is None else time.monotonic() + 60 * minutes
    splits = checked(classifier, splits, seen)
    check_limits(limits, splits, refer)
    shown = classifier.allowed_views if views is None else tuple(views)
    replace(classifier, views=shown)  # refuses those that may change a label
    if single and epochs == 0:
        raise InputError("one network that learns from others needs training; leave out epochs=0, or single")
    common: dict[str, Any] = {"budget": budget, "refer": refer, "limits": limits}
    options: Options = {"members": members, "single": single, "seed": seed} | (
        {} if epochs is None else {"epochs": epochs}
    )
    if len(classifier.members) > 1 and (epochs == 0 or members == 1) and not single:
        other = None if views is None else replace(classifier, views=shown, evidence=None)
        made = Made("auto", options | {"views": list(shown if other else classifier.views)})
        return concluded(classifier, other, splits, costs, made, started=started, **common)
    given = classifier.start  # the only one
    if (reason := no_restarts(classifier)) is not None:
        log.warning(reason)
    tried = candidates(classifier, splits, costs, seed, epochs) if members > 1 and epochs != 0 else ()
    many = members > len(tried) + 1 > 1
    tried, folds = within(tried, classifier, minutes), 0
    if many:
        log.warning(MANY, members, len(tried), len(tried) + 1)
    if (count := len(splits.validation)) < FEWEST:
        alone = "they alone would judge a student" if single else "they alone can test limits" if limits else None
        reason = alone or not_again(classifier, splits, minutes)
        if reason := reason if tried else "no other network is trained":
            tried = ()
            log.warning(TOO_FEW, count, reason)
        else:
            folds = FOLDS
            log.warning(OUT_OF_FOLD, count, folds)
    learner = student(classifier, splits, costs, seed, epochs) if single else None
    total, history = sum(each.epochs for each in tried) + (learner.epochs if learner else 0), list[Epoch]()
    if classifier.training is not None:
        total += folds * (total + len(classifier.training.history))

    def told(line: Epoch, _: int) -> None:
        if on_epoch is not None:
            on_epoch(line | {"epoch": len(history) + line["epoch"]}, total)

    def left(share: int = 1, spared: float = 0.0) -> float | None:
        return None if deadline is None else (deadline - time.monotonic() - spared) / share

    def trained(these: Sequence[Candidate], teacher: Any = None) -> Iterator[tuple[str, Member]]:
        later = learner.seconds(epoch_seconds(classifier, splits) or 0.0) if learner and teacher is None else 0.0
        seconds = left(1 + folds, later)
        for each, member, lines in train_candidates(
            classifier, splits, these, seconds=seconds, checkpoints=checkpoints, on_epoch=told, teacher=teacher
        ):
            before = len(history)
            history.extend(line | {"epoch": before + line["epoch"]} for line in lines)
            yield each.name, member

    if engine is not None and checkpoints is not None:
        train_ahead(classifier, splits, tried, checkpoints, engine, on_progress)
    with borrowed_threads(threads_for(splits.shape)):
        library = {"given": replace(given, temperature=1.0, weight=1.0)} | dict(trained(tried))
        seen_as = tuple(dict.fromkeys(("identity", *shown)))  # the budget is counted from the samples as they are
        scores = {name: scores_of(member, splits.validation, seen_as) for name, member in library.items()}
        labels, out = splits.validation.y, {}
        if folds:
            try:
                scores, labels, _ = out_of_fold(
                    classifier,
                    splits,
                    seen_as,
                    partial(named, tuple(library), costs=costs, seed=seed, epochs=epochs),
                    seconds=left(),
                    checkpoints=checkpoints,
                    on_epoch=told,
                    engine=engine,
                    on_progress=on_progress,
                )
                out["before"] = Scores(scores["given"]["identity"], labels)
            except Diverged as error:
                log.warning(TOO_FEW, count, error)
        found, truth = scores, labels
        if limits is not None:  # what tests the limits chooses nothing
            free = torch.from_numpy(~test_part(labels.numpy()))
            found = {name: {view: s[free] for view, s in views_of.items()} for name, views_of in scores.items()}
            truth = labels[free]
        chosen = select(
            found, truth, costs, budget=budget / 100, members=members, views=views and tuple(views), tell=True
        )
        if out:
            out["after"] = Scores(torch.from_numpy(chosen.scores(scores)), labels)
        weights, temperatures = chosen.selection.weights, chosen.temperatures
        averaged = tuple(replace(library[n], weight=w, temperature=temperatures[n]) for n, w in weights.items())
        known = np.union1d(classifier.trained_on, splits.train.ids) if history else classifier.trained_on
        after = replace(classifier, members=averaged, views=chosen.views, trained_on=known, evidence=None)
        several = len(averaged) * len(after.views) > 1
        if learner is not None and not several:
            log.warning(
                "no network is distilled: validation chose the given model alone, and there is nothing to learn"
            )
        if learner is not None and several:
            taught = dict(trained([learner], after.network)).get(learner.name)
            several = taught is not None
            after = replace(after, members=(taught or given,), views=("identity",))
    options |= {"views": list(chosen.views)}
    tried_out = (*chosen.selection.steps, *chosen.selection.left)
    made = Made("auto", options, typed(history), admissions=tried_out, out_of_fold=out)
    return concluded(classifier, after if several else None, splits, costs, made, started=started, **common)


def named(names: Sequence[str], classifier: Classifier, splits: Splits, **options: Any) -> list[Candidate]:
    return [each for each in candidates(classifier, splits, **options) if each.name in names]


def within(tried: Sequence[Candidate], classifier: Classifier, minutes: float | None) -> tuple[Candidate, ...]:
    """The first that together take no longer than the given model's training did, twice as long if they start anew.

    With a time limit, that decides instead.
    """
    training = classifier.training
    if minutes is not None:
        return tuple(tried)
    allowed = np.inf if training is None else len(training.history) or np.inf
    work = np.cumsum([each.epochs * each.work / (2 if each.start == "fresh" else 1) for each in tried])
    return tuple(each for each, taken in zip(tried, work, strict=True) if taken <= allowed)
