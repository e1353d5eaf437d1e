"""The records of the paper's experiments, read and checked once; tables and figures are built from what comes out.

A file says what each run was, by its settings, and what came of it. The settings are all that a run is known by.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from csada.costs import CostMatrix, Pair
from csada.errors import InputError
from csada.evidence import Environment
from csada.metrics import Counts
from csada.paper import EXPERIMENTS
from csada.paper.toy_figure import ToyPanel
from csada.reading import build, plain, read_json

Toml = dict[str, Any]

DATA = {"cifar10": "CIFAR-10", "mnist": "MNIST", "pmi": "PMI", "pills": "drawn pill bottles (instead of PMI)"}
# -- as it is on disk ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pareto:
    kind: Literal["pareto"]
    seed: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed must be zero or more, got {self.seed}")


@dataclass(frozen=True)
class OnePair:
    """The only one that costs."""

    kind: Literal["pair"]
    truth: int
    predicted: int


@dataclass(frozen=True)
class Preset:
    kind: Literal["preset"]
    name: str


@dataclass(frozen=True, kw_only=True)
class Config:
    """What every run is known by: the data, and the network's first weights."""

    kind: str
    data: str
    data_scale: float
    data_options: Toml
    data_seed: int
    model: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class BaselineConfig(Config):
    kind: Literal["baseline"] = "baseline"
    recipe: str
    options: Toml  # in place of the recipe's own
    pretrained: str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodConfig(Config):
    kind: Literal["method", "toy"]
    method: str
    options: Toml  # of csada.fit
    costs: Pareto | OnePair | Preset
    baseline: str  # the hash of its settings
    spread: float | None = None  # of the toy
    track: Literal["test_wer"] | None = None

    def __post_init__(self) -> None:
        for name in {"weight", "epsilon"} & self.options.keys():  # what is shown
            build(float, self.options[name], f"options: {name}")


@dataclass(frozen=True, kw_only=True)
class Epoch:
    epoch: int
    loss: float
    lr: float
    seconds: float
    test_wer: float | None = None


@dataclass(frozen=True)
class Data:
    """By its own name, which may be more exact than the one that was asked for: CIFAR-10 (JPEG)."""

    name: str
    classes: tuple[str, ...]
    samples: dict[str, int]


@dataclass(frozen=True)
class Ruled:
    temperature: float
    strength: float
    validation: Counts
    test: Counts


@dataclass(frozen=True)
class BothWays:
    """By the largest score, and by the rule."""

    validation: Counts
    test: Counts
    rule: Ruled


@dataclass(frozen=True, kw_only=True)
class BaselineResult:
    validation: Counts
    test: Counts
    training_loss: float  # without augmentation: does it fit its data?
    seconds: float
    data: Data

    def __post_init__(self) -> None:
        check_counts(self, self.data.classes)


@dataclass(frozen=True, kw_only=True)
class MethodResult(BothWays):
    baseline: BothWays
    training_loss: None
    before: Counts | None = None  # of the toy, in records of old
    after: Counts | None = None
    panels: tuple[ToyPanel, ToyPanel] | None = None  # before and after, of the toy's run that the figure shows
    seconds: float
    data: Data | None = None  # in a run's own folder; a record has it once

    def __post_init__(self) -> None:
        if self.data is not None:
            check_counts(self, self.data.classes)


@dataclass(frozen=True)
class BaselineRun:
    config: BaselineConfig
    result: BaselineResult
    history: tuple[Epoch, ...]
    environment: Environment


@dataclass(frozen=True)
class MethodRun:
    config: MethodConfig
    result: MethodResult
    history: tuple[Epoch, ...]
    environment: Environment


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    format: Literal[1] = 1
    experiment: str
    scale: str
    title: str
    data: Data
    classes: tuple[str, ...]
    planned: int
    baselines: tuple[BaselineRun, ...]
    runs: tuple[MethodRun, ...]

    def __post_init__(self) -> None:
        for result in [*(run.result for run in self.baselines), *(run.result for run in self.runs)]:
            check_counts(result, self.classes)


def check_counts(result: Any, classes: Sequence[str]) -> None:
    """Every table of counts has a row and a column for each class."""
    for each in map(vars(result).get, ("validation", "test", "before", "after", "rule", "baseline")):
        if isinstance(each, np.ndarray):
            if each.shape != (len(classes), len(classes)):
                raise InputError(f"confusion counts have shape {each.shape}, but there are {len(classes)} classes")
            if not 0 <= int(each.min()) <= int(each.max()) < 2**40 or not each.any():
                raise InputError("confusion counts must be zero or more, of at most 40 bits, and not all zero")
        elif each is not None:
            check_counts(each, classes)


def written(value: Any) -> Any:
    """As JSON holds it: what a run does not have is left out, so that its hash stays when there is more to have."""
    if is_dataclass(value):
        own = [(f, getattr(value, f.name)) for f in fields(value)]
        return {f.name: written(each) for f, each in own if each is not None or f.default is not None}
    return [written(each) for each in value] if isinstance(value, tuple) else plain(value)


def cost_matrix(costs: Pareto | OnePair | Preset, classes: Sequence[str]) -> CostMatrix:
    """Over these classes."""
    if isinstance(costs, Pareto):
        return CostMatrix(CostMatrix.pareto(len(classes), seed=costs.seed).values, classes)
    if isinstance(costs, OnePair):
        return CostMatrix.from_pairs(classes, {(costs.truth, costs.predicted): 1.0}, default=0.0)
    return CostMatrix.preset(costs.name).ordered(classes)


def read_record(path: Path) -> Record:
    return parse(read_json(path, RecordFile), path.stem)


def read_records(folder: str | os.PathLike[str]) -> list[Record]:
    """The records of the paper's experiments in a folder, by name; other JSON files there are left alone."""
    found = []
    for path in sorted(Path(folder).glob("*.json")):
        content = read_json(path, object)
        if isinstance(content, dict) and content.get("experiment") in EXPERIMENTS and "scale" in content:
            found.append(parse(build(RecordFile, content, str(path)), path.stem))
    if not found:
        raise InputError(f"no records of the paper's experiments in {folder}; `csada reproduce NAME` makes them")
    return found


# -- as it is shown --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """One fine-tuned model and the baseline it started from, as confusion counts on the test data."""

    method: str
    seed: int
    baseline: str  # which one
    options: Mapping[str, Any]  # of csada.fit
    data: str
    model: str
    costs: CostMatrix
    matrix: str  # the name of the costs
    counts: Mapping[tuple[bool, bool], Counts]  # (of the baseline?, decided by the rule?)
    history: Sequence[Epoch]
    spread: float  # of the toy
    panels: tuple[ToyPanel, ToyPanel] | None  # before and after, of the toy's run that the figure shows

    @property
    def weight(self) -> float:
        """lambda"""
        return float(self.options.get("weight", np.nan))

    @property
    def pair(self) -> Pair:
        return self.costs.top_pairs(1)[0]


@dataclass(frozen=True)
class Record:
    name: str  # of its files
    experiment: str
    scale: str
    classes: tuple[str, ...]
    runs: tuple[Result, ...]  # by cost matrix
    loaded: str = ""  # the data by their own name

    @property
    def data(self) -> str:
        name = self.loaded or self.runs[0].data
        return DATA.get(name, name)

    def setting(self) -> str:
        samples = int(self.runs[0].counts[True, False].sum())
        return f"{self.data}, {self.runs[0].model}, {samples:,} test samples, scale {self.scale}."

    def matrices(self) -> dict[str, list[Result]]:
        """The runs by cost matrix, the first matrix first."""
        groups: dict[str, list[Result]] = {}
        for run in self.runs:
            groups.setdefault(run.matrix, []).append(run)
        return groups

    @property
    def first(self) -> list[Result]:
        """The runs of the first cost matrix."""
        return next(iter(self.matrices().values()))

    def pair_name(self, pair: Pair) -> str:
        return f"{self.classes[pair[0]]} → {self.classes[pair[1]]}"


def parse(file: RecordFile, name: str = "") -> Record:
    name = name or f"{file.experiment}-{file.scale}"
    if file.experiment not in EXPERIMENTS:
        raise InputError(f"unknown experiment {file.experiment!r}; known: {', '.join(EXPERIMENTS)}")
    if not re.fullmatch(r"[\w.-]+", name):
        raise InputError(f"{name!r} cannot name a record's files; use letters, digits, - and _")
    if not file.runs:
        raise InputError(f"the record of {file.experiment} holds no finished run; continue it with `csada reproduce`")
    runs = sorted(file.runs, key=lambda run: getattr(run.config.costs, "seed", 0))
    results = tuple(_result(run, file.classes) for run in runs)
    return Record(name, file.experiment, file.scale, file.classes, results, file.data.name)


def _result(run: MethodRun, classes: tuple[str, ...]) -> Result:
    config, result, costs = run.config, run.result, run.config.costs
    name, *numbers = vars(costs).items()
    return Result(
        config.method,
        config.seed,
        f"{config.baseline} {result.baseline.test.tolist()}",  # trained on two GPUs, one recipe gives two models
        config.options,
        config.data,
        config.model,
        cost_matrix(costs, classes),
        " ".join([name[1], *(f"{key} {value}" for key, value in numbers)]),
        {
            (baseline, rule): part.rule.test if rule else part.test
            for baseline, part in ((False, result), (True, result.baseline))
            for rule in (False, True)
        },
        run.history,
        np.nan if config.spread is None else config.spread,
        result.panels,
    )
