"""How the libraries of the study grow: their networks, each trained from a baseline or from fresh weights.

From every baseline: a restart, two with mixup, and a student of the first three; and aimed at a cost problem a mixup and the
methods that a user might fit instead. For tables the members are trained five times more, fold by fold, so that choices can be
made on training and validation samples together. A library is written after every network; a training that was interrupted
resumes from its checkpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data.augment import VIEWS
from csada.data.splits import Splits
from csada.decisions.calibration import FOLDS
from csada.errors import Diverged, InputError, RunError
from csada.evaluation import predict_logits
from csada.evidence import HELD_OUT
from csada.folders import OWN, locked
from csada.metrics import confusion_counts
from csada.models.members import Member, as_network
from csada.models.modes import best_device, best_precision, borrowed_threads, device_of
from csada.paper import problems
from csada.paper.library import (
    AIMED,
    GIVEN,
    MEMBERS,
    OUT_OF_FOLD,
    RIVALS,
    STUDENT,
    About,
    Array,
    Library,
    Network,
    missing,
    read_library,
    write_library,
)
from csada.paper.sources import SOURCES, Source
from csada.paper.spec import load_spec
from csada.reading import plain
from csada.training import Epoch
from csada.workflow.candidates import Candidate, candidates, confusion_of, train_candidate, train_options
from csada.workflow.engine import Engine, Progress, Task, Tell, alone, carry_out
from csada.workflow.folds import out_of_fold
from csada.workflow.project import suited
from csada.workflow.runs import environment
from csada.workflow.settings import kind_of, options_for, threads_for
from csada.workflow.train import few_samples, train

STUDY = "study"  # the folder of its runs
NAMES = {  # of candidates, here
    "restart": "restart",
    "restart with mixup": "mixup",
    "second restart with mixup": "mixup-2",
}
ALONE = RIVALS[1:]  # never in an average, so never asked for other views
log = logging.getLogger("csada")

ELSEWHERE = (
    "the weights of baseline {seed} of {name} are not under {kept}: its library cannot grow here; train further baselines "
    "(--baselines {more})"
)
OTHERS = (
    "{name}: the {part} samples are not those of its library, or are in another order; give the files it was made from"
)
SAME = 0.05  # logits of the same network, stored in half precision


def extend(
    name: str,
    results: Path,
    runs: Path,
    *,
    baselines: int | None = None,
    deadline: float = math.inf,
    engine: Engine | None = None,
    on_network: Callable[[str, float], object] | None = None,
    on_progress: Progress | None = None,
) -> list[str]:
    """Train what is missing, and store every network as soon as it is done; the names of those that are still missing.

    deadline: of time.time(); no network is begun after it. engine: where networks are trained side by side.
    """
    source, library = SOURCES[name], read_library(results, name)
    left = missing(name, library, baselines)
    if left and library is not None and not source.splits:
        for part in HELD_OUT:  # else the scores of all other baselines would get these labels
            if not np.array_equal(library.arrays[f"{part}_labels"], _splits(name, source, 0).parts[part].y):
                raise InputError(OTHERS.format(name=name, part=part))

    def stored(seed: int, each: str, made: Library) -> None:
        nonlocal library
        with locked(results, wait=True):
            library = read_library(results, name)  # another command may have added to it
            if new := library is None or f"{seed}/{each}" not in library.about.networks:
                library = made if library is None else _joined(library, made)
                write_library(results, name, library)
        if new and on_network is not None:
            on_network(f"{seed}/{each}", made.about.networks[f"{seed}/{each}"].seconds)
        if not new and each == GIVEN:  # which others need
            known, own = (
                rounded(torch.from_numpy(arrays[f"{seed}/{each}/test/identity"]).float()).astype(float)
                for arrays in (library.arrays, made.arrays)
            )
            if np.abs(known - own).max() > SAME * max(np.abs(known).max(), 1):
                raise RunError(ELSEWHERE.format(seed=seed, name=name, kept=place(seed), more=len(library.seeds) + 2))

    def place(seed: int) -> Path:
        return runs.resolve() / STUDY / name / str(seed)

    def task(seed: int, each: str) -> Task:
        call = partial(_made, name, source, seed, each, place(seed))
        file = place(seed) / OWN / f"{each}.epoch"
        return Task(f"{name} {seed}/{each}", call, partial(stored, seed, each), file, 1)

    stages: list[list[list[Task]]] = []  # by seed: what comes first, what needs it, and what needs all of that
    for seed in sorted({int(each.split("/")[0]) for each in left}):
        if library is not None and f"{seed}/{GIVEN}" in library.about.networks and not place(seed).exists():
            log.warning(ELSEWHERE.format(seed=seed, name=name, kept=place(seed), more=len(library.seeds) + 2))
            continue
        todo = [each.split("/", 1)[1] for each in left if each.startswith(f"{seed}/")]
        last = [each for each in todo if each == STUDENT]
        rest = [each for each in todo if each not in (GIVEN, STUDENT)]
        stages.append([[task(seed, each) for each in names] for names in ([GIVEN], rest, last)])
    rounds = [
        [one for stage in (2, 1, 0) if 0 <= i - stage < len(stages) for one in stages[i - stage][stage]]
        for i in range(len(stages) + 2)
    ]
    for network, error in carry_out(rounds, engine or Engine(), deadline, on_progress, sum(map(len, rounds))).items():
        if not isinstance(error, Diverged):
            raise error
        log.warning("%s is left out: %s", network, error)
    return missing(name, library, baselines)


def _joined(library: Library, made: Library) -> Library:
    """With the network of a library that has only that."""
    about, (own,) = library.about, made.about.environments
    known = about.environments if own in about.environments else (*about.environments, own)
    networks = {name: replace(each, environment=known.index(own)) for name, each in made.about.networks.items()}
    about = replace(about, environments=known, networks=about.networks | networks)
    return Library(about, {**library.arrays, **made.arrays})


@lru_cache(maxsize=2)
def _splits(name: str, source: Source, seed: int) -> Splits:
    return source.load(name, seed)


@lru_cache(maxsize=2)
def _start(name: str, source: Source, seed: int, kept: Path) -> Classifier:
    """A baseline, which was trained before."""
    return _trained(_splits(name, source, seed), source, seed, kept)


def _trained(splits: Splits, source: Source, seed: int, kept: Path, **more: Any) -> Classifier:
    own = suited(splits, source.model, None, source.epochs, gpu=best_device().type == "cuda")
    return train(splits, own.model, own.recipe, seed=seed, epochs=own.epochs, checkpoints=kept, **more)


def _made(name: str, source: Source, seed: int, each: str, kept: Path, tell: Tell) -> Library:
    """One network, from its start or from where it was left; those that it needs are read from their checkpoints."""
    splits = _splits(name, source, seed)
    with alone(kept / each), borrowed_threads(threads_for(splits.shape)):
        return _network(name, source, seed, each, kept, tell, splits)


def _network(name: str, source: Source, seed: int, each: str, kept: Path, tell: Tell, splits: Splits) -> Library:
    def on_epoch(line: Epoch, total: int) -> None:
        tell(line["epoch"], total)

    if each == GIVEN:
        _trained(splits, source, seed, kept, on_epoch=on_epoch)
    classifier = _start(name, source, seed, kept)
    training, device = classifier.training, device_of(classifier.network)
    assert training is not None
    samples = {p: len(part) for p, part in splits.parts.items()}

    def alone_in(network: Network, arrays: dict[str, Array]) -> Library:
        networks = {f"{seed}/{each}": network}
        return Library(About(splits.name, samples, source.model, None, (environment(),), networks), arrays)

    if each == OUT_OF_FOLD:
        return alone_in(*_folds(classifier, splits, seed, kept))
    model, lines, method = classifier.network, [vars(line) for line in training.history], "cross_entropy"
    options: dict[str, Any] = {"seed": seed}
    more: dict[str, Any] = {}
    if each != GIVEN:
        candidate, target = _candidate(classifier, splits, source, each)
        method, more = candidate.method, {"costs": target or None, "start": candidate.start}
        options = {"precision": best_precision(device)} | candidate.options
        teacher = None
        if each == STUDENT:
            taught_by = [_candidate(classifier, splits, source, name)[0] for name in MEMBERS[1:3]]
            others = [train_candidate(classifier, splits, one, checkpoints=kept)[0] for one in taught_by]
            teacher = as_network([Member(model), *(Member(one.model) for one in others)], classifier.allowed_views)
            options = {**options, "teachers": MEMBERS[:3], "views": list(classifier.allowed_views)}
        member, lines = train_candidate(
            classifier, splits, candidate, checkpoints=kept, on_epoch=on_epoch, teacher=teacher
        )
        model = member.model
    views = tuple(view for view in classifier.allowed_views if view in VIEWS)
    scores, accuracy = _scores(model, splits, views if method not in ALONE else views[:1])
    network = Network(
        method,
        plain({key: value for key, value in options.items() if key != "confusion"}),
        len(lines),
        round(sum(line["seconds"] for line in lines), 2),
        round(median(line["seconds"] for line in lines), 4),
        float(lines[-1]["loss"]),
        accuracy,
        **more,
    )
    arrays: dict[str, Array] = {f"{part}_labels": splits.parts[part].y.numpy().astype(np.uint8) for part in HELD_OUT}
    if source.splits:
        arrays = {f"{seed}/{key}": value for key, value in arrays.items()} | {f"{seed}/test_ids": splits.test.ids}
    arrays |= {f"{seed}/{each}/{key}": value for key, value in scores.items()}
    return alone_in(network, arrays)


def _candidate(classifier: Classifier, splits: Splits, source: Source, each: str) -> tuple[Candidate, str]:
    """How the network of that name is trained, and the problem that it is aimed at."""
    what, _, target = each.partition("@")
    k, kind, seed = len(splits.classes), kind_of(source.model, splits.shape), {"seed": 10}
    costs = CostMatrix.uniform(k)
    if target:
        scores, _ = _scores(classifier.network, splits, ("identity",), ("validation",))  # rounded, as they are judged
        truth, found = splits.validation.y.numpy(), scores["validation/identity"].argmax(1)
        target, costs = problems.problem(target, confusion_counts(truth, found, k), source.group)
    if what in NAMES.values() or what == AIMED:
        found = {_name(each.name): each for each in candidates(classifier, splits, costs)}
        if what != AIMED:
            return found[what], target
        mixup = found["mixup"].options
        confusion = confusion_of(predict_logits(classifier.network, splits, part="validation"))
        partners = {"partners": "cost", "confusion": tuple(map(tuple, confusion.tolist()))}
        return replace(found["mixup"], name=each, options=mixup | {"seed": mixup["seed"] + 2} | partners), target
    if what == STUDENT:
        return Candidate(each, "distillation", seed | train_options(classifier, splits, kind, "given"), costs), target
    own = source.rivals.get(f"{what} pairs" if target.startswith("pair:") else what) or source.rivals.get(what)
    options = dict(load_spec(*own).options[what]) if own else few_samples(options_for(what, kind), len(splits.train))
    options.pop("precision", None)  # the device's
    return Candidate(each, what, seed | options, costs), target


def _name(candidate: str) -> str:
    return NAMES.get(candidate.replace("fresh", "restart"), candidate)


def _folds(classifier: Classifier, splits: Splits, seed: int, kept: Path) -> tuple[Network, dict[str, Array]]:
    """The members' scores of training and validation samples, as `auto` makes them where validation is small."""
    uniform = CostMatrix.uniform(len(splits.classes))

    def generic(given: Classifier, fewer: Splits) -> list[Candidate]:
        return [c for c in candidates(given, fewer, uniform) if _name(c.name) in MEMBERS]

    views = tuple(view for view in classifier.allowed_views if view in VIEWS)
    found, labels, lines = out_of_fold(classifier, splits, views, generic, checkpoints=kept)
    arrays: dict[str, Array] = {f"{seed}/{OUT_OF_FOLD}_labels": labels.numpy().astype(np.uint8)}
    accuracy = {}
    for told, seen in found.items():
        name = GIVEN if told == "given" else _name(told)
        arrays |= {f"{seed}/{name}/{OUT_OF_FOLD}/{v}": rounded(s) for v, s in seen.items()}
        accuracy[name] = float((seen["identity"].argmax(1) == labels).float().mean())
    seconds = [line["seconds"] for line in lines]
    settings = {"folds": FOLDS, "members": list(accuracy)}
    loss, taken = float(lines[-1]["loss"]), round(sum(seconds), 2)
    return Network(OUT_OF_FOLD, settings, len(lines), taken, round(median(seconds), 4), loss, accuracy), arrays


def rounded(logits: Tensor) -> Array:
    """Below the largest of the row and to bfloat16, in which networks compute: a third smaller than float16 when packed."""
    return (logits - logits.amax(1, keepdim=True)).bfloat16().half().numpy()


def _scores(
    model: nn.Module, splits: Splits, views: tuple[str, ...], parts: tuple[str, ...] = HELD_OUT
) -> tuple[dict[str, Array], dict[str, float]]:
    scores, accuracy = {}, {}
    for part in parts:
        own = splits.parts[part]
        for view in views:
            seen = replace(own, x=VIEWS[view](own.x)) if view != "identity" else own  # type: ignore[index]
            found = predict_logits(model, seen)
            scores[f"{part}/{view}"] = rounded(found.logits)
            accuracy[f"{part} {view}"] = float((found.logits.argmax(1) == found.labels).float().mean())
    return scores, accuracy
