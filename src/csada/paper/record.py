"""The records of the paper's experiments, read and checked once; tables and figures are built from what comes out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csada.costs import CostMatrix, Pair
from csada.errors import InputError
from csada.metrics import Counts
from csada.paper import EXPERIMENTS
from csada.paper.toy_figure import ToyPanel
from csada.reading import read_json

DATA = {"cifar10": "CIFAR-10", "mnist": "MNIST", "pmi": "PMI", "pills": "drawn pill bottles (instead of PMI)"}


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
    history: Sequence[Mapping[str, float]]
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
    loaded: str = ""  # the data by their own name, which may be more exact than the one asked for: CIFAR-10 (JPEG)

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


def read_records(folder: str | os.PathLike[str]) -> list[Record]:
    """The records of the paper's experiments in a folder, by name; other JSON files there are left alone."""
    found = []
    for path in sorted(Path(folder).glob("*.json")):
        content = read_json(path, object)
        if isinstance(content, dict) and content.get("experiment") in EXPERIMENTS and "scale" in content:
            found.append(parse(content | {"name": path.stem}))
    if not found:
        raise InputError(f"no records of the paper's experiments in {folder}; `csada reproduce NAME` makes them")
    return found


def parse(record: Mapping[str, Any]) -> Record:
    """Runs of baselines alone are left out: every other run carries its own."""
    experiment = record.get("experiment")
    if experiment not in EXPERIMENTS:
        raise InputError(f"unknown experiment {experiment!r}; known: {', '.join(EXPERIMENTS)}")
    try:
        scale, classes = str(record["scale"]), tuple(map(str, record["classes"]))
        name = str(record.get("name", f"{experiment}-{scale}"))
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(f"{name!r} cannot name a record's files; use letters, digits, - and _")
        trained = [run for run in record["runs"] if run["config"]["kind"] != "baseline"]
        trained.sort(key=lambda run: run["config"]["costs"].get("seed", 0))
        runs = tuple(_result(run, classes) for run in trained)
    except KeyError as error:
        raise InputError(f"the record of {experiment} lacks {error}; make it again with `csada reproduce`") from None
    if not runs:
        raise InputError(f"the record of {experiment} holds no finished run; continue it with `csada reproduce`")
    loaded = str((record.get("data") or {}).get("name", ""))
    return Record(name, experiment, scale, classes, runs, loaded)


def _result(run: Mapping[str, Any], classes: tuple[str, ...]) -> Result:
    config, result = run["config"], run["result"]
    counts = {
        (baseline, rule): _counts((part["rule"] if rule else part)["test"], classes)
        for baseline, part in ((False, result), (True, result["baseline"]))
        for rule in (False, True)
    }
    return Result(
        config["method"],
        config["seed"],
        f"{config['baseline']} {result['baseline']['test']}",  # trained on two GPUs, one recipe gives two models
        config["options"],
        config["data"],
        config["model"],
        cost_matrix(config["costs"], classes),
        " ".join(f"{value}" if key == "kind" else f"{key} {value}" for key, value in config["costs"].items()),
        counts,
        run.get("history") or (),
        float(config.get("spread", np.nan)),
        (_panel(result["panels"][0]), _panel(result["panels"][1])) if "panels" in result else None,
    )


def _panel(values: Mapping[str, Any]) -> ToyPanel:
    arrays: dict[str, Any] = {k: np.array(v) if isinstance(v, list) else v for k, v in values.items()}
    return ToyPanel(**arrays)


def _counts(values: Any, classes: tuple[str, ...]) -> Counts:
    counts = np.array(values, dtype=np.int64)
    if counts.shape != (len(classes), len(classes)):
        raise InputError(f"confusion counts have shape {counts.shape}, but there are {len(classes)} classes")
    return counts


def cost_matrix(costs: Mapping[str, Any], classes: Sequence[str]) -> CostMatrix:
    """The costs that a run's config names, over these classes."""
    kind, options = costs["kind"], {key: value for key, value in costs.items() if key != "kind"}
    if kind == "pareto":
        return CostMatrix(CostMatrix.pareto(len(classes), **options).values, classes)
    if kind == "pair":
        return CostMatrix.from_pairs(classes, {(int(costs["truth"]), int(costs["predicted"])): 1.0}, default=0.0)
    if kind == "preset":
        return CostMatrix.preset(costs["name"]).ordered(classes)
    raise InputError(f"unknown kind of costs {kind!r}; known: pareto, pair, preset")
