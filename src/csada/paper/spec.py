"""An experiment as a TOML file of small commented differences from the defaults, resolved into runs.

A run is known by the hash of its settings: the same ones are the same run, on any machine. What a file leaves to the defaults
of csada.fit is not in the hash; the commit in the run's environment.json tells those.
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
from csada.paper.record import BaselineConfig, MethodConfig, OnePair, Pareto, Preset, Toml, written
from csada.reading import build, fields_from, read_toml
from csada.training import Settings, make_method, split_options
from csada.workflow.runs import identity

SCALES = ("smoke", "fast", "chosen", "paper", "script")
OVER = {"chosen": "fast", "script": "paper"}  # a scale that changes a few settings of another
DRAWN = 0  # the seed with which pairs are drawn
ALL_PAIRS = 90  # of ten classes: what a plan counts before the data is known
MOST = 100_000  # runs of an experiment

Config = BaselineConfig | MethodConfig


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
        for name in ("replications", "matrices", "replications_elsewhere", "pairs"):
            if isinstance(value := getattr(self, name), int) and not 1 <= value <= MOST:
                raise InputError(f"{name} must be at least 1{f' and at most {MOST:,}' * (value > MOST)}, got {value}")
        if not self.methods:
            raise InputError("methods is empty; name those to compare")
        if self.count > MOST:
            raise InputError(
                f"these are {self.count:,} runs; at most {MOST:,} are done: lower replications or matrices"
            )
        if self.data == "toy":
            build(float, self.data_options.get("spread"), "data_options: spread")
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
class Portion:
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
        return isinstance(config, MethodConfig) and (
            (self.methods is None or config.method in self.methods)
            and (self.matrices is None or getattr(config.costs, "seed", 0) < self.matrices)
            and (self.replications is None or config.seed < self.replications)
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
    if (shown := own.get("runs_of")) is not None:
        if shown not in EXPERIMENTS:
            raise InputError(f"{path.name}: runs_of is {shown!r}, no experiment; known: {', '.join(EXPERIMENTS)}")
        more = fields_from(Spec, _free(own, path.name), path.name)
        return replace(load_spec(shown, scale, data), name=path.stem, **more)
    if scale not in own:
        raise InputError(f"{path.name} has no scale {scale!r}; it has {', '.join(s for s in SCALES if s in own)}")
    files = (read_toml(SPECS / "defaults.toml"), own)
    table: Toml = {}
    for layer in (None, *((OVER[scale], scale) if scale in OVER else (scale,))):
        for file in files:
            more = file.get(layer, {}) if layer else {k: v for k, v in file.items() if k not in SCALES}
            table = _over(table, _free(build(Toml, more, f"{path.name}: {layer}"), path.name))
    if data is not None:
        table |= {"data": data, "data_options": {}, "variant": f"-{Path(data).stem}"}
    where = f"{path.name}, scale {scale}"
    every: dict[str, Toml] = build(dict[str, Toml], table.get("options", {}), f"{where}: options")
    for method in every:
        if method not in (*METHODS, "every"):
            raise InputError(f"{path.name}: options for unknown method {method!r}{did_you_mean(method, METHODS)}")
    methods = build(list[str], table.get("methods", []), f"{where}: methods")
    options = {method: every.get("every", {}) | every.get(method, {}) for method in methods}
    spec: Spec = build(Spec, table | {"name": path.stem, "scale": scale, "options": options}, where)
    return spec


def _free(table: Toml, file: str) -> Toml:
    if fixed := table.keys() & {"name", "scale", "variant"}:
        raise InputError(f"{file}: {min(fixed)} cannot be set in the file; it follows from the command")
    return table


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
    if isinstance(config, BaselineConfig):
        return f"baseline {config.data} {config.model} seed {config.seed}"
    words = {"pair": "pair {truth} as {predicted}", "pareto": "pareto {seed}", "preset": "{name}"}
    text = f"{config.method}, {words[config.costs.kind].format(**vars(config.costs))}"
    weight = f", lambda {config.options['weight']}" if "weight" in config.options else ""
    return f"{text}{weight}, seed {config.seed}"


def known_by(config: Config) -> str:
    """The hash of its settings."""
    return identity(written(config))


def baseline_config(spec: Spec, replication: int) -> BaselineConfig:
    seed = replication if spec.fresh else 0
    given, own = spec.baseline, {k: v for k, v in spec.baseline.items() if k not in ("recipe", "pretrained")}
    start = {key: given[key] for key in ("recipe", "pretrained") if key in given}
    config: BaselineConfig = build(
        BaselineConfig, {**_data(spec, seed), "seed": seed, "options": own} | start, "baseline"
    )
    return config


def baseline_configs(spec: Spec) -> list[BaselineConfig]:
    return [baseline_config(spec, r) for r in range(spec.replications if spec.fresh else 1)]


def run_configs(spec: Spec, confusions: Mapping[str, Any], all_pairs: bool = False) -> list[MethodConfig]:
    """Every run but the baselines, one replication after the other, so that a part of a sweep is a smaller sweep.

    confusions: validation counts by the baseline's hash, needed where they decide the pairs. all_pairs: not only the
    number of them that the file gives; those that it lists stay.
    """
    pairs = "all" if all_pairs and not isinstance(spec.pairs, list) else spec.pairs
    configs = []
    for replication in range(spec.replications):
        baseline = known_by(baseline_config(spec, replication))
        seed = replication if spec.fresh else 0
        for costs in _costs(spec, replication, pairs, confusions.get(baseline)):
            for method in spec.methods:
                for weight in (spec.lambdas if method == "csada" else ()) or (None,):
                    options = spec.options[method] | ({} if weight is None else {"weight": weight})
                    spread = float(spec.data_options["spread"]) if spec.data == "toy" else None
                    more: Toml = {"track": spec.track, "spread": spread, "kind": "method" if spread is None else "toy"}
                    more |= {"method": method, "options": options, "costs": costs, "baseline": baseline}
                    configs.append(MethodConfig(**_data(spec, seed), seed=replication, **more))
    return configs


def _data(spec: Spec, seed: int) -> Toml:
    return {
        "data": spec.data,
        "data_scale": spec.data_scale,
        "data_options": spec.data_options,
        "data_seed": seed,
        "model": spec.model,
    }


def _costs(spec: Spec, replication: int, pairs: Any, confusion: Any) -> Sequence[Pareto | OnePair | Preset]:
    if spec.costs == "pareto":
        return [Pareto("pareto", k) for k in range(spec.matrices_in(replication))]
    if spec.costs != "pairs":
        return [Preset("preset", spec.costs)]
    if not isinstance(pairs, list):
        pairs = [] if confusion is None else choose_pairs(np.asarray(confusion), pairs)
    return [OnePair("pair", y, z) for y, z in pairs]


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


def stages(config: BaselineConfig) -> Recipe:
    """The baseline's recipe with what the config replaces in it."""
    recipe, own = config.recipe, config.options
    if recipe not in RECIPES:
        raise InputError(f"unknown recipe {recipe!r}; known: {', '.join(RECIPES)}")
    if own and len(RECIPES[recipe]) > 1:
        raise InputError(
            f"recipe {recipe!r} has {len(RECIPES[recipe])} stages; {next(iter(own))} cannot replace its own"
        )
    given = fields_from(Stage, own, "baseline")
    return tuple(replace(stage, **given) for stage in RECIPES[recipe])


def epochs(config: Config) -> int:
    if isinstance(config, BaselineConfig):
        return sum(stage.epochs for stage in stages(config))
    return int(config.options.get("epochs", Settings.epochs))
