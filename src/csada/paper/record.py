"""The records of the paper's experiments, read and checked once; tables and figures are built from what comes out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from csada.costs import CostMatrix, Pair
from csada.errors import InputError
from csada.metrics import Counts
from csada.paper.toy_figure import ToyPanel
from csada.reading import parse_json, read_text

EXPERIMENTS = (
    "toy",
    "failure-mnist",
    "failure-cifar10",
    "lambda-cifar10",
    "convergence-cifar10",
    "table-cifar10",
    "table-mnist",
    "table-pmi-resnet34",
    "errors-pmi",
    "table-pmi-resnet9",
)
DATA = {"cifar10": "CIFAR-10", "mnist": "MNIST", "pmi": "PMI", "pills": "drawn pill bottles (in place of PMI)"}


@dataclass(frozen=True)
class Result:
    """One fine-tuned model and the baseline it started from, as confusion counts on the test data."""

    method: str
    seed: int
    baseline: str  # which one
    weight: float  # lambda
    options: str  # all of them, to tell settings apart
    data: str
    model: str
    costs: CostMatrix
    matrix: str  # the name of the costs
    counts: Mapping[tuple[bool, bool], Counts]  # (of the baseline?, decided by the rule?)
    history: Sequence[Mapping[str, float]]

    @property
    def pair(self) -> Pair:
        return self.costs.top_pairs(1)[0]


class ToyResult(NamedTuple):
    spread: float
    counts: Mapping[tuple[bool, bool], Counts]  # as a run's; those by the rule may be lacking
    epsilon: float
    panels: tuple[ToyPanel, ToyPanel] | None  # before and after, of the run that the figure shows


@dataclass(frozen=True)
class Record:
    name: str  # of its files
    experiment: str
    scale: str
    classes: tuple[str, ...]
    runs: tuple[Result, ...]  # by cost matrix
    toys: tuple[ToyResult, ...] = ()
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


def read_records(folder: str | os.PathLike[str]) -> list[Record]:
    """The records of the paper's experiments in a folder, by name; other JSON files there are left alone."""
    found = []
    for path in sorted(Path(folder).glob("*.json")):
        content = parse_json(read_text(path), str(path))
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
        methods = [run for run in record["runs"] if run["config"]["kind"] == "method"]
        methods.sort(key=lambda run: run["config"]["costs"].get("seed", 0))
        runs = tuple(_run(run, classes) for run in methods)
        toys = tuple(_toy(run, classes) for run in record["runs"] if run["config"]["kind"] == "toy")
    except KeyError as error:
        raise InputError(f"the record of {experiment} lacks {error}; make it again with `csada reproduce`") from None
    if not (toys if experiment == "toy" else runs):
        raise InputError(f"the record of {experiment} holds no finished run; continue it with `csada reproduce`")
    loaded = str((record.get("data") or {}).get("name", ""))
    return Record(name, experiment, scale, classes, runs, toys, loaded)


def _run(run: Mapping[str, Any], classes: tuple[str, ...]) -> Result:
    config, result = run["config"], run["result"]
    options = config["options"]
    counts = {
        (baseline, rule): _counts((part["rule"] if rule else part)["test"], classes)
        for baseline, part in ((False, result), (True, result["baseline"]))
        for rule in (False, True)
    }
    return Result(
        config["method"],
        config["seed"],
        f"{config['baseline']} {result['baseline']['test']}",  # trained on two GPUs, one recipe gives two models
        float(options.get("weight", np.nan)),
        json.dumps(options, sort_keys=True),
        config["data"],
        config["model"],
        cost_matrix(config["costs"], classes),
        " ".join(f"{value}" if key == "kind" else f"{key} {value}" for key, value in config["costs"].items()),
        counts,
        run.get("history") or (),
    )


def _toy(run: Mapping[str, Any], classes: tuple[str, ...]) -> ToyResult:
    config, result = run["config"], run["result"]
    parts = {(True, False): result["before"], (False, False): result["after"]}
    if "rule" in result:
        parts |= {(True, True): result["baseline"]["rule"]["test"], (False, True): result["rule"]["test"]}
    counts = {key: _counts(values, classes) for key, values in parts.items()}
    epsilon = float(config.get("options", {}).get("epsilon", np.nan))
    panels = (_panel(result["panels"][0]), _panel(result["panels"][1])) if "panels" in result else None
    return ToyResult(float(config["spread"]), counts, epsilon, panels)


def _panel(values: Mapping[str, Any]) -> ToyPanel:
    arrays: dict[str, Any] = {
        key: np.array(value) if isinstance(value, list) else value for key, value in values.items()
    }
    return ToyPanel(**arrays)


def _counts(values: Any, classes: tuple[str, ...]) -> Counts:
    counts = np.array(values, dtype=np.int64)
    if counts.shape != (len(classes), len(classes)):
        raise InputError(f"confusion counts have shape {counts.shape}, but there are {len(classes)} classes")
    return counts


def cost_matrix(costs: Mapping[str, Any], classes: tuple[str, ...]) -> CostMatrix:
    """The matrix that a run's config names, with the record's classes."""
    options = {key: value for key, value in costs.items() if key != "kind"}
    if costs["kind"] == "pareto":
        return CostMatrix(CostMatrix.pareto(len(classes), **options).values, classes)
    if costs["kind"] == "pair":
        return CostMatrix.from_pairs(classes, {(int(costs["truth"]), int(costs["predicted"])): 1.0}, default=0.0)
    if costs["kind"] == "preset":
        preset = CostMatrix.preset(costs["name"])
        order = [preset.index(name) for name in classes]  # names decide, not the order
        return CostMatrix(preset.values[np.ix_(order, order)], classes)
    raise InputError(f"unknown kind of costs {costs['kind']!r}; known: pareto, pair, preset")
