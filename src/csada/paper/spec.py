"""An experiment as a TOML file of small commented differences from the defaults, resolved into runs.

A run is a plain dict, its config, and is known by the hash of it: the same settings are the same run, on any machine. What a
file leaves to the defaults of csada.fit is not in the hash; the commit in the run's environment.json tells those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from csada.costs import CostMatrix, Pair, did_you_mean
from csada.errors import InputError
from csada.methods import METHODS
from csada.models import RECIPES
from csada.models.recipes import Recipe, Stage
from csada.paper import EXPERIMENTS, SPECS
from csada.reading import build, fields_from, read_toml
from csada.training import Settings, make_method, split_options
from csada.workflow.runs import identity

SCALES = ("smoke", "fast", "chosen", "paper", "script")
OVER = {"chosen": "fast", "script": "paper"}  # a scale that changes a few settings of another
DRAWN = 0  # the seed with which pairs are drawn
ALL_PAIRS = 90  # of ten classes: what a plan counts before the data is known

Config = dict[str, Any]
Toml = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One experiment at one scale."""

    name: str
    scale: str
    title: str
    data: str
    model: str
    costs: str  # "pairs" (each in turn is the only one that costs), "pareto", or a preset's name
    methods: Sequence[str]
    options: dict[str, Toml]  # of each method
    baseline: Toml  # recipe, pretrained, and what replaces the recipe's own
    data_scale: float = 1.0
    data_options: Toml = field(default_factory=dict)
    pairs: Literal["all"] | int | list[Pair] = (
        "all"  # or a list of them, or how many: half the most confused on validation, half drawn by seed
    )
    matrices: int = 1  # Pareto matrices, seeds 0, 1, ...
    lambdas: Sequence[float] = ()  # values of csada's weight to run through
    replications: int = 1  # fine-tuning seeds
    replications_elsewhere: int | None = None  # of the matrices after the first, where fewer will do
    fresh: bool = False  # every replication has its own data seed and its own baseline
    track: Literal["test_wer"] | None = None  # the test cost after every epoch joins the history
    seconds: float = 60.0  # expected for a run
    runs_of: str | None = None  # shows other numbers of that experiment's runs
    variant: str = ""  # what was given instead of the file's data

    def __post_init__(self) -> None:
        """Whatever can be refused before any work is refused here."""
        for name in ("replications", "matrices", "replications_elsewhere"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.costs not in ("pairs", "pareto"):
            CostMatrix.preset(self.costs)
        stages(baseline_config(self, 0))
        for method, options in self.options.items():
            settings, own = split_options(options)
            make_method(method, CostMatrix.uniform(2), own, True)
            Settings(**settings)

    @property
    def record(self) -> str:
        return f"{self.name}-{self.scale}{self.variant}"

    @property
    def folder(self) -> str:
        return self.runs_of or self.name

    @property
    def count(self) -> int:
        """How many runs, baselines not counted."""
        pairs = ALL_PAIRS if self.pairs == "all" else self.pairs if isinstance(self.pairs, int) else len(self.pairs)
        costs = self.replications * (pairs if self.costs == "pairs" else 1)
        if self.costs == "pareto":
            costs = sum(self.matrices_in(replication) for replication in range(self.replications))
        return costs * sum(len(self.lambdas) or 1 if m == "csada" else 1 for m in self.methods)

    def matrices_in(self, replication: int) -> int:
        elsewhere = self.replications if self.replications_elsewhere is None else self.replications_elsewhere
        return self.matrices if replication < elsewhere else 1


@dataclass(frozen=True)
class Selection:
    """A part of an experiment's runs: some methods, the first cost matrices, the first replications. None: all."""

    methods: Sequence[str] | None = None
    matrices: int | None = None
    replications: int | None = None

    def check(self, spec: Spec) -> None:
        for method in self.methods or ():
            if method not in spec.methods:
                raise InputError(f"{spec.name} has no method {method!r}{did_you_mean(method, spec.methods)}")
        if self.matrices is not None and spec.costs != "pareto":
            raise InputError(f"{spec.name} has no series of cost matrices; leave out --matrices")

    def __contains__(self, config: Config) -> bool:
        return (
            (self.methods is None or config["method"] in self.methods)
            and (self.matrices is None or config["costs"]["seed"] < self.matrices)
            and (self.replications is None or config["seed"] < self.replications)
        )


def has_scale(name: str, scale: str) -> bool:
    table = read_toml(SPECS / f"{name}.toml")
    return scale in table or ("runs_of" in table and has_scale(table["runs_of"], scale))


def load_spec(name: str, scale: str = "fast", data: str | None = None) -> Spec:
    """One of EXPERIMENTS, or a TOML file of your own; `data` replaces the file's data set."""
    path = Path(name) if name.endswith(".toml") else SPECS / f"{name}.toml"
    if path.parent == SPECS and name not in EXPERIMENTS:
        raise InputError(f"unknown experiment {name!r}{did_you_mean(name, EXPERIMENTS)}")
    if scale not in SCALES:
        raise InputError(f"unknown scale {scale!r}; known: {', '.join(SCALES)}")
    own = read_toml(path)
    if "runs_of" in own:
        return replace(load_spec(own["runs_of"], scale, data), name=path.stem, **fields_from(Spec, own, path.name))
    if scale not in own:
        raise InputError(f"{path.name} has no scale {scale!r}; it has {', '.join(s for s in SCALES if s in own)}")
    files = (read_toml(SPECS / "defaults.toml"), own)
    table: Toml = {}
    for layer in (None, *((OVER[scale], scale) if scale in OVER else (scale,))):
        for file in files:
            table = _over(table, file.get(layer, {}) if layer else {k: v for k, v in file.items() if k not in SCALES})
    if fixed := table.keys() & {"name", "scale", "variant"}:
        raise InputError(f"{path.name}: {min(fixed)} cannot be set in the file; it follows from the command")
    if data is not None:
        table |= {"data": data, "data_options": {}, "variant": f"-{Path(data).stem}"}
    every = table.get("options", {})
    for method in every:
        if method not in (*METHODS, "every"):
            raise InputError(f"{path.name}: options for unknown method {method!r}{did_you_mean(method, METHODS)}")
    options = {method: every.get("every", {}) | every.get(method, {}) for method in table.get("methods", ())}
    table |= {"name": path.stem, "scale": scale, "options": options}
    spec: Spec = build(Spec, table, f"{path.name}, scale {scale}")
    return spec


def _over(below: Toml, above: Toml) -> Toml:
    """`above` wins, table by table."""
    merged = below | above
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = _over(below[key], above[key])
    return merged


# -- configs ---------------------------------------------------------------------------------------


def describe(config: Config) -> str:
    """The run's name, to be read."""
    if config["kind"] == "baseline":
        return f"baseline {config['data']} {config['model']} seed {config['seed']}"
    costs = config["costs"]
    words = {"pair": "pair {truth} as {predicted}", "pareto": "pareto {seed}", "preset": "{name}"}
    text = f"{config['method']}, {words[costs['kind']].format(**costs)}"
    return f"{text}, lambda {config['options'].get('weight', '-')}, seed {config['seed']}".replace(", lambda -", "")


def baseline_config(spec: Spec, replication: int) -> Config:
    seed = replication if spec.fresh else 0
    own = {k: v for k, v in spec.baseline.items() if k not in ("recipe", "pretrained")}
    config = {"kind": "baseline", **_data(spec, seed), "seed": seed, "recipe": spec.baseline["recipe"], "options": own}
    return config | {k: v for k, v in spec.baseline.items() if k == "pretrained"}


def baseline_configs(spec: Spec) -> list[Config]:
    return [baseline_config(spec, r) for r in range(spec.replications if spec.fresh else 1)]


def run_configs(spec: Spec, confusions: Mapping[str, Any], all_pairs: bool = False) -> list[Config]:
    """Every run but the baselines, one replication after the other, so that a part of a sweep is a smaller sweep.

    confusions: validation counts by the baseline's hash, needed where they decide the pairs. all_pairs: not only the
    number of them that the file gives; those that it lists stay.
    """
    pairs = "all" if all_pairs and not isinstance(spec.pairs, list) else spec.pairs
    configs = []
    for replication in range(spec.replications):
        baseline = identity(baseline_config(spec, replication))
        seed = replication if spec.fresh else 0
        for costs in _costs(spec, replication, pairs, confusions.get(baseline)):
            for method in spec.methods:
                for weight in (spec.lambdas if method == "csada" else ()) or (None,):
                    options = spec.options[method] | ({} if weight is None else {"weight": weight})
                    config = {"kind": "method", **_data(spec, seed), "seed": replication, "method": method}
                    config |= {"options": options, "costs": costs, "baseline": baseline}
                    if spec.data == "toy":  # its result also holds what the figure shows
                        config |= {"kind": "toy", "spread": spec.data_options["spread"]}
                    configs.append(config | ({"track": spec.track} if spec.track else {}))
    return configs


def _data(spec: Spec, seed: int) -> Config:
    return {
        "data": spec.data,
        "data_scale": spec.data_scale,
        "data_options": spec.data_options,
        "data_seed": seed,
        "model": spec.model,
    }


def _costs(spec: Spec, replication: int, pairs: Any, confusion: Any) -> list[Config]:
    if spec.costs == "pareto":
        return [{"kind": "pareto", "seed": k} for k in range(spec.matrices_in(replication))]
    if spec.costs != "pairs":
        return [{"kind": "preset", "name": spec.costs}]
    if not isinstance(pairs, list):
        pairs = [] if confusion is None else choose_pairs(np.asarray(confusion), pairs)
    return [{"kind": "pair", "truth": y, "predicted": z} for y, z in pairs]


def choose_pairs(confusion: Any, count: int | str) -> list[Pair]:
    """All pairs, or `count`: first those confused most often (share of the truth), then as many drawn from the others."""
    n = len(confusion)
    rates = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    np.fill_diagonal(rates, -1.0)
    order = [(int(i // n), int(i % n)) for i in np.argsort(-rates, axis=None, kind="stable")[: n * (n - 1)]]
    if count == "all":
        return order
    top, rest = order[: -(-int(count) // 2)], sorted(order[-(-int(count) // 2) :])
    drawn = np.random.default_rng(DRAWN).permutation(len(rest))[: int(count) - len(top)]
    return top + [rest[i] for i in drawn]


def stages(config: Config) -> Recipe:
    """The baseline's recipe with what the config replaces in it."""
    recipe, own = config["recipe"], config["options"]
    if recipe not in RECIPES:
        raise InputError(f"unknown recipe {recipe!r}; known: {', '.join(RECIPES)}")
    if own and len(RECIPES[recipe]) > 1:
        raise InputError(
            f"recipe {recipe!r} has {len(RECIPES[recipe])} stages; {next(iter(own))} cannot replace its own"
        )
    given = fields_from(Stage, own, "baseline")
    return tuple(replace(stage, **given) for stage in RECIPES[recipe])


def epochs(config: Config) -> int:
    if config["kind"] == "baseline":
        return sum(stage.epochs for stage in stages(config))
    return int(config["options"].get("epochs", Settings.epochs))
