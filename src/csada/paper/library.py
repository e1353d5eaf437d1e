"""Libraries of networks: what every candidate says of validation and test, so that any choice among them can be judged later.

From every baseline: a restart, two with mixup, and a student of the first three; and aimed at a cost problem a mixup and the
methods that a user might fit instead. For tables the members are trained five times more, fold by fold, so that choices can be
made on training and validation samples together. library-DATA.npz holds the logits by baseline, network, part and view,
library-DATA.json how each network was trained. Both are written after every network; a training that was interrupted resumes
from its checkpoint.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data import load
from csada.data.augment import VIEWS
from csada.data.scores import read_arrays
from csada.data.splits import Splits, proportional
from csada.decisions.calibration import FOLDS
from csada.errors import Diverged, InputError, RunError
from csada.evaluation import predict_logits
from csada.evidence import HELD_OUT, Environment
from csada.files import whole
from csada.folders import OWN, locked
from csada.metrics import confusion_counts
from csada.models.members import Member, as_network
from csada.models.modes import best_device, best_precision, borrowed_threads, device_of
from csada.paper import problems
from csada.paper.spec import load_spec
from csada.reading import plain, read_json, write_json
from csada.training import Epoch
from csada.workflow.candidates import Candidate, candidates, confusion_of, train_candidate, train_options
from csada.workflow.engine import Engine, Progress, Task, Tell, alone, carry_out
from csada.workflow.folds import out_of_fold
from csada.workflow.project import suited
from csada.workflow.runs import environment
from csada.workflow.settings import kind_of, options_for, threads_for
from csada.workflow.train import few_samples, train

STUDY = "study"  # the folder of its runs
GIVEN, MEMBERS, STUDENT = "baseline", ("baseline", "restart", "mixup", "mixup-2"), "student"
OUT_OF_FOLD = "folds"  # the part of training and validation samples, each scored by networks that never saw it
NAMES = {  # of candidates, here
    "restart": "restart",
    "restart with mixup": "mixup",
    "second restart with mixup": "mixup-2",
}
AIMED = "aimed"  # mixup whose partners are drawn by cost and confusion
RIVALS = ("csada", "adjusted_penalty", "sosr")
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

Array = NDArray[Any]


@dataclass(frozen=True)
class Source:
    """One data set of the study. group: the classes on one side of the block problems; targets: what networks are aimed at."""

    title: str
    model: str
    baselines: int = 2
    splits: bool = False  # every baseline has a split of its own
    folds: bool = False  # members are scored out of fold too
    group: tuple[int, ...] | None = None
    sides: str = ""
    targets: tuple[str, ...] = ("pareto:0", "block:10:both")
    aimed: tuple[int, ...] = (0, 1)  # baselines of which networks are aimed at these
    data: str | None = None  # if not the name
    samples: int | None = None  # training samples, where not all are used
    epochs: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # method, or "METHOD pairs" for single pairs -> experiment and scale that say how it is trained; else as `csada fit` does
    rivals: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)

    def load(self, name: str, seed: int) -> Splits:
        seed = seed if self.splits else 0
        if name in ("breast_cancer", "wine"):
            from csada.paper.tabular import load as load_table

            return load_table(name, seed)[0]
        splits = load(self.data or name, seed=seed, **self.options)
        if self.samples is None:
            return splits
        return replace(splits, train=splits.train.take(proportional(splits.train.y.numpy(), self.samples, seed)))


LOW, SIDES = tuple(range(5)), "digits below 5 and the others"
HEART = (0, 9, 10, 15, 16, 17)  # furosemide, metoprolol, amiodarone and amlodipine
TARGETS = (  # three of each kind and five pairs
    *("pareto:0", "pareto:1", "pareto:2", "pmi:0", "pmi:1", "pmi:2", "block:10:both", "block:10:out", "block:10:in"),
    *("pairs:0", "pairs:1", "pairs:2", "pairs:3", "pairs:4"),
)
TWO_CLASSES = (*TARGETS[:3], "pmi:0", "pmi:3", *TARGETS[-5:-3])  # all that are different
THREE_CLASSES = (*TARGETS[:3], "pmi:0", "pmi:1", "pmi:3", *TARGETS[-5:])
SOURCES = {
    "cifar10": Source(
        "CIFAR-10",
        "resnet34",
        3,
        group=(0, 1, 8, 9),
        sides="vehicles and animals",
        targets=TARGETS,
        aimed=(2,),
        rivals={
            "csada": ("table-cifar10", "fast"),
            "csada pairs": ("failure-cifar10", "fast"),
            "adjusted_penalty": ("table-cifar10", "fast"),
            "sosr": ("table-cifar10", "fast"),
        },
    ),
    "mnist": Source("MNIST", "cnn", group=LOW, sides=SIDES, data="mnist", epochs=15, targets=TARGETS, aimed=(0,)),
    "mnist_few": Source(
        "MNIST, 2,000 images", "cnn", group=LOW, sides=SIDES, data="mnist", samples=2000, epochs=15, targets=()
    ),
    "digits": Source("digits", "cnn", 10, True, group=LOW, sides=SIDES, targets=TARGETS, aimed=(3,)),
    "breast_cancer": Source("breast cancer", "mlp", 20, True, True, targets=TWO_CLASSES, aimed=tuple(range(10, 20))),
    "wine": Source("wine", "mlp", 30, True, True, targets=THREE_CLASSES, aimed=tuple(range(10, 20))),
    "pills": Source(
        "drawn pill bottles",
        "resnet9",
        group=HEART,
        sides="heart drugs and the others",
        targets=TARGETS,
        aimed=(0,),
        options={"size": 112},
        rivals=dict.fromkeys(("adjusted_penalty", "sosr"), ("table-pmi-resnet9", "chosen")),
    ),
}


@dataclass(frozen=True)
class Network:
    """How one was trained. costs: the problem that it was trained for; None where it was for none."""

    method: str
    options: dict[str, Any]
    epochs: int
    seconds: float
    epoch_seconds: float
    loss: float
    accuracy: dict[str, float]
    costs: str | None = None
    start: str = "given"
    environment: int = 0  # of About.environments


@dataclass(frozen=True)
class About:
    data: str
    samples: dict[str, int]
    model: str
    recipe: str | None
    environments: tuple[Environment, ...]
    networks: dict[str, Network]


@dataclass(frozen=True)
class Library:
    """networks are named SEED/NAME, arrays SEED/NAME/PART/VIEW; labels PART_labels, or SEED/PART_labels and SEED/test_ids."""

    about: About
    arrays: Mapping[str, Array] = field(repr=False)

    @property
    def seeds(self) -> list[int]:
        """Of the baselines that have all members."""
        names = self.about.networks
        found = sorted({int(name.split("/")[0]) for name in names})
        return [seed for seed in found if all(f"{seed}/{member}" in names for member in MEMBERS)]

    def labels(self, seed: int, part: str) -> Array:
        own = f"{seed}/{part}_labels"
        return self.arrays[own if own in self.arrays else f"{part}_labels"].astype(np.int64)

    def ids(self, seed: int) -> Array:
        """Which test samples of two splits are the same."""
        own = f"{seed}/test_ids"
        return self.arrays[own] if own in self.arrays else np.arange(len(self.labels(seed, "test")), dtype=np.uint64)

    def scores(self, seed: int, part: str, name: str) -> dict[str, NDArray[np.float64]]:
        """View -> logits."""
        start = f"{seed}/{name}/{part}/"
        return {
            key.removeprefix(start): each.astype(np.float64)
            for key, each in self.arrays.items()
            if key.startswith(start)
        }

    def aimed(self, seed: int, target: str) -> dict[str, str]:
        """Method -> network that was trained for this problem."""
        return {
            each.method: name.removeprefix(f"{seed}/")
            for name, each in self.about.networks.items()
            if name.startswith(f"{seed}/") and each.costs == target
        }


def read_library(folder: Path, name: str) -> Library | None:
    """None where there is none."""
    path = folder / f"library-{name}.json"
    if not path.exists():
        return None
    library = Library(read_json(path, About), read_arrays(path.with_suffix(".npz")))
    if wrong := _flaw(library):
        raise InputError(f"{path.with_suffix('.npz')} is not what {path.name} names: {wrong}")
    return library


def _flaw(library: Library) -> str:
    """Why these are not the scores of the networks that the library names; empty where they are."""
    arrays, views = library.arrays, dict[str, set[tuple[str, tuple[int, ...]]]]()
    for name, network in library.about.networks.items():
        if not re.fullmatch(r"\d{1,9}/[^/]+", name):
            return f"{name!r} is no SEED/NAME"
        if network.method != OUT_OF_FOLD and not all(f"{name}/{part}/identity" in arrays for part in HELD_OUT):
            return f"it lacks the scores of {name}"
    for key, each in arrays.items():
        places = key.split("/")
        seed, last = places[0], places[-1]
        part = places[2] if len(places) == 4 else last.partition("_")[0]
        truth = arrays.get(f"{seed}/{part}_labels", arrays.get(f"{part}_labels", np.empty(0)))
        fits = truth.ndim == 1 and truth.size > 0 and truth.dtype.kind in "iu" and each.shape[:1] == truth.shape
        if len(places) == 4:
            fits = fits and each.ndim == 2 and each.dtype == np.float16 and bool(np.isfinite(each).all())
            fits = fits and 0 <= int(truth.min()) <= int(truth.max()) < each.shape[1] > 1
            views.setdefault(key.removesuffix(f"/{last}"), set()).add((last, each.shape[-1:]))
        elif last.endswith("ids"):
            fits = fits and each.dtype == np.uint64 and each.ndim == 1
        if not fits:
            return f"{key} is {each.dtype} {each.shape}"
    every = max(views.values(), key=len, default=set())
    one = {each for each in every if each[0] == "identity"}
    if any(each not in (every, one) for each in views.values()):
        return "its networks have other views or classes than each other"
    return ""


def write_library(folder: Path, name: str, library: Library) -> list[Path]:
    """The arrays first: what the JSON file names is there."""
    scores, about = folder / f"library-{name}.npz", folder / f"library-{name}.json"
    with whole(scores) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **library.arrays)
    return [scores, write_json(about, library.about)]


def planned(name: str, baselines: int | None = None) -> list[str]:
    """Every network of the study on this data set."""
    source = SOURCES[name]
    aimed = [f"{method}@{target}" for target in source.targets for method in (AIMED, *RIVALS)]
    return [
        f"{seed}/{each}"
        for seed in range(baselines or source.baselines)
        for each in (
            *MEMBERS,
            STUDENT,
            *(aimed if seed in source.aimed else ()),
            *([OUT_OF_FOLD] if source.folds else []),
        )
    ]


def missing(name: str, library: Library | None, baselines: int | None = None) -> list[str]:
    """What is planned and not there. A library may name an aimed network otherwise: its costs and its method tell."""
    if library is None:
        return planned(name, baselines)
    known = set(library.about.networks)
    for each, network in library.about.networks.items():
        if network.costs is not None:
            known.add(f"{each.split('/')[0]}/{AIMED if network.method == 'mixup' else network.method}@{network.costs}")
    return [each for each in planned(name, baselines) if each not in known]


# -- training --------------------------------------------------------------------------------------


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
