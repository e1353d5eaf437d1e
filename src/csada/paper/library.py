"""Libraries of networks: what every candidate says of validation and test, so that any choice among them can be judged later.

library-DATA.npz holds the logits by baseline, network, part and view, library-DATA.json how each network was trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csada.data.scores import read_arrays
from csada.errors import InputError
from csada.evidence import HELD_OUT, Environment
from csada.files import whole
from csada.paper.sources import SOURCES
from csada.reading import read_json, write_json

GIVEN, MEMBERS, STUDENT = "baseline", ("baseline", "restart", "mixup", "mixup-2"), "student"
OUT_OF_FOLD = "folds"  # the part of training and validation samples, each scored by networks that never saw it
AIMED = "aimed"  # mixup whose partners are drawn by cost and confusion
RIVALS = ("csada", "adjusted_penalty", "sosr")

Array = NDArray[Any]


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
