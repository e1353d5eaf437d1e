"""Every method from the same start: one baseline per seed, fine-tuned by each, judged on the same test part.

A method has two rivals: the baseline as it is, and the baseline under the decision rule of `fit`, calibrated and within the
accuracy budget, which trains nothing. Settings are those of `settings.py`, which says how far each was searched for.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import ttest_rel
from torch import nn

from csada.costs import CostMatrix, did_you_mean
from csada.data import BUILTIN, SOURCES, load
from csada.data.splits import Splits
from csada.decisions import Rule
from csada.errors import Diverged, InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import HELD_OUT, Environment
from csada.folders import OWN
from csada.methods import METHODS
from csada.metrics import Evaluation
from csada.models import Recipe, arguments_for, load_weights
from csada.models import load as load_model
from csada.models.factories import check_trust
from csada.models.modes import best_device, best_precision, borrowed_threads
from csada.models.weights import HUB
from csada.reading import plain, read_json, write_json
from csada.training import Epoch, Settings, fit, make_method, split_options
from csada.workflow.engine import Engine, Progress, Rows, Task, Tell, carry_out
from csada.workflow.fit import decision_for
from csada.workflow.project import suited, suited_size
from csada.workflow.runs import environment, run_id
from csada.workflow.settings import Options, costs_for, kind_of, options_for, threads_for
from csada.workflow.train import stages_for, train_stages

log = logging.getLogger("csada")

FORMAT = 4
FILE = "compare.json"
MOST = 2**40  # samples
MeanSd = tuple[float, float | None]

BASELINE = "baseline"
RULED = {BASELINE: "baseline + rule", "csada": "csada + rule"}  # the rows that are also shown under the rule
SHOWN = "csada,adjusted_penalty,sosr,cost_weighted,expected_cost,penalty,oversampling,metacost,pgd_training"


@dataclass(frozen=True)
class SeedRun:
    """A row of the table for one seed. confusion: counts by part; empty where training diverged, and in which epoch."""

    seed: int
    row: str
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)
    seconds: float | None = None
    history: tuple[Epoch, ...] = ()
    temperature: float | None = None  # of the rule, and its strength
    strength: float | None = None
    diverged: int | None = None


@dataclass(frozen=True)
class Summary:
    """A row over all seeds: (mean, sd), and p of the paired tests on cost against both rivals."""

    row: str
    accuracy: MeanSd | None = None
    cost: MeanSd | None = None
    critical_errors: MeanSd | None = None
    p_baseline: float | None = None
    p_rule: float | None = None
    diverged: str | None = None


@dataclass(frozen=True)
class Plan:
    """What is the same for every seed."""

    model: str
    shape: tuple[int, ...]  # of a sample
    baseline: Recipe  # as `train` would use it
    methods: dict[str, Options]
    pretrained: str | None = None  # of every baseline

    @property
    def trainings(self) -> dict[str, int]:
        """The epochs of each, for one seed."""
        own = {row: int(options["epochs"]) for row, options in self.methods.items()}
        return {BASELINE: sum(stage.epochs for stage in self.baseline)} | own

    @property
    def epochs(self) -> int:
        return sum(self.trainings.values())


@dataclass(frozen=True)
class Comparison:
    """What was run, the confusion counts of every run, and their summary."""

    data: str
    samples_hash: str  # of the first seed's parts
    scale: float
    samples: dict[str, int]
    classes: tuple[str, ...]
    costs: Any  # [K, K]
    plan: Plan
    budget: float  # points of accuracy that the rule may lose on validation, against the baseline by argmax
    environment: Environment
    runs: tuple[SeedRun, ...] = ()
    summary: tuple[Summary, ...] = ()
    format: int = FORMAT


def compare(
    data: str,
    costs: str | CostMatrix,
    methods: str | Sequence[str] = SHOWN,
    *,
    seeds: int = 3,
    model: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    recipe: str | None = None,
    baseline_epochs: int | None = None,
    pretrained: str | None = None,
    scale: float = 1.0,
    budget: float = 0.5,
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    trust: bool = False,
    on_progress: Progress | None = None,
    on_start: Callable[[Comparison], object] | None = None,
    on_estimate: Callable[[float], object] | None = None,
    engine: Engine | None = None,
    **own: Any,
) -> Comparison:
    """Every method on every seed.

    costs: a matrix, or what `costs_for` reads. methods: names of METHODS, or "all". epochs and lr are those of the
    fine-tuning; recipe, baseline_epochs and pretrained (weights to start from) those of the baseline. Model, size and recipe
    are those of `csada train` where they are not given. budget: points of accuracy that the rule may lose. out: a folder for
    compare.json, from which the same comparison resumes; more seeds are added to it. on_progress(done, total, rows) counts
    epochs. on_start gets the plan before training, on_estimate after the first epoch the seconds that all take at its pace.
    engine: where trainings are done, first all baselines, then the methods. Other options belong to the data: size, pixels of
    an image's side; skip_bad, for broken ones; label and ignore, columns of a table.
    """
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    check_trust(model or "", trust, "model")
    names = method_names(methods)
    if own.get("size") is None:
        size = suited_size(data, None if data_dir is None else Path(data_dir), gpu=torch.cuda.is_available())
        own = {name: value for name, value in own.items() if name != "size"} | ({} if size is None else {"size": size})

    def loading(done: int, of: int) -> None:
        if on_progress is not None:
            on_progress(done, of, {})

    splits = load(data, data_dir, scale, 0, loading, **own)
    for name in splits.skipped:
        log.warning("left out: %s", name)
    table = costs_for(costs, splits.classes)
    plan = make_plan(splits, table, names, model, recipe, baseline_epochs, epochs=epochs, lr=lr)
    if pretrained is not None:  # workers may have another current folder
        plan = replace(plan, pretrained=pretrained if pretrained.startswith(HUB) else os.path.abspath(pretrained))
    samples = {part: len(getattr(splits, part)) for part in ("train", "validation", "test")}
    found = Comparison(
        splits.name, splits.fingerprint, scale, samples, splits.classes, table.values, plan, budget, environment()
    )
    where = None if out is None else Path(out) / FILE
    if where is not None:
        found = resumed(where, found, seeds) if where.exists() else found
        write_json(where, found)  # a folder that cannot be written is found before training
    if on_start is not None:
        on_start(found)
    order = list(plan.trainings)
    left = [(s, row) for s in range(seeds) for row in order if (s, row) not in {(r.seed, r.row) for r in found.runs}]
    total = seeds * plan.epochs
    earlier, began = total - sum(plan.trainings[row] for _, row in left), time.monotonic()

    def shown(done: int, total: int, rows: Rows) -> None:
        nonlocal on_estimate
        if on_progress is not None:
            on_progress(done, total, rows)
        if on_estimate is not None and done > earlier:
            on_estimate((time.monotonic() - began) / (done - earlier) * (total - done))
            on_estimate = None

    with tempfile.TemporaryDirectory() as beside:
        folder = Path(out or beside).resolve() / OWN
        kept = folder / run_id(splits, plan=plan, costs=table.values, budget=budget)
        named = data_dir is None and os.fspath(data).removeprefix(BUILTIN) in SOURCES
        # nodes have another working folder
        there = None if named else str(Path(data_dir or "").expanduser().absolute())
        text = json.dumps({"name_or_path": os.fspath(data), "data_dir": there, "scale": scale} | own)

        def ended(start: Start, row: str, runs: Sequence[SeedRun]) -> None:
            nonlocal found
            every = sorted((*found.runs, *runs), key=lambda r: (r.seed, order.index(r.row.partition(" + ")[0]), r.row))
            found = replace(found, runs=tuple(every))
            if where is not None:
                write_json(where, found)
            if row != BASELINE:
                (start.folder / row).unlink(missing_ok=True)

        def rounds() -> Iterator[list[Task]]:
            for first in (True, False):
                done = {run.seed for run in found.runs}  # without its baseline no method is begun
                tasks = []
                for seed, row in left:
                    if (row == BASELINE) == first and (first or seed in done):
                        start = Start(text, seed, plan.model, plan.baseline, plan.pretrained, kept / str(seed))
                        call = partial(trained, start, row, plan, table, budget)
                        file = kept / f"{seed} {row}.epoch"
                        tasks.append(
                            Task(f"{row}, seed {seed}", call, partial(ended, start, row), file, plan.trainings[row])
                        )
                yield tasks

        del splits  # a copy less
        try:
            for error in carry_out(rounds(), engine or Engine(), on_progress=shown, total=total, done=earlier).values():
                raise error
        finally:
            splits_of.cache_clear()
            start_of.cache_clear()
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):  # a lock is there
            folder.rmdir()
    found = replace(found, summary=summarise(table, found.runs))
    if where is not None:
        write_json(where, found)
    return found


def resumed(file: Path, new: Comparison, seeds: int) -> Comparison:
    """The new comparison with the runs of the file, which must be of the same settings."""
    way_out = "give another --out, or delete the file"
    try:
        old = read_json(file, Comparison)
    except InputError as error:
        raise InputError(f"{error}; {way_out}") from None
    was, now = ({**vars(each), **vars(each.plan)} for each in (old, new))
    for name in now:
        before, after = plain(was[name]), plain(now[name])
        if name not in ("plan", "environment", "runs", "summary") and before != after:
            short = isinstance(after, str | int | float)
            what = f"{name} was {before} and is {after}" if short else f"the {name} differ"
            raise InputError(f"{file} is of other settings: {what}; {way_out}")
    if (there := 1 + max((run.seed for run in old.runs), default=0)) > seeds:
        raise InputError(f"{file} holds {there} seeds, more than {seeds}; {way_out}")
    if not all_whole(old.runs, new):
        raise InputError(f"{file} is damaged: its runs are not all whole rows of counts; {way_out}")
    return replace(new, runs=old.runs, summary=old.summary)


def all_whole(runs: Sequence[SeedRun], told: Comparison) -> bool:
    """Whether each training has all its rows once, and each row its counts, or the epoch that diverged."""
    trained = {(run.seed, run.row.removesuffix(" + rule")) for run in runs if run.seed >= 0}
    known = [(seed, row) for seed, row in trained if row in told.plan.trainings]
    rows = [(seed, name) for seed, row in known for name in (row, RULED.get(row)) if name]
    k = len(told.classes)

    def counted(run: SeedRun, part: str) -> bool:
        counts = run.confusion.get(part, [])
        return [*map(len, counts)] == [k] * k and min(map(min, counts)) >= 0 and 0 < sum(map(sum, counts)) < MOST

    return sorted(rows) == sorted((run.seed, run.row) for run in runs) and all(
        (run.diverged and not run.row.startswith(BASELINE)) or all(counted(run, p) for p in HELD_OUT) for run in runs
    )


@dataclass(frozen=True)
class Start:
    """A baseline, from which all methods start for one seed; `fit` leaves it unchanged. data: arguments of `load`, as JSON."""

    data: str
    seed: int
    model: str
    recipe: Recipe
    pretrained: str | None
    folder: Path  # of checkpoints

    def train(self, told: Callable[[Epoch], object]) -> tuple[nn.Module, list[Epoch]]:
        splits = splits_of(self.data, self.seed)
        own = arguments_for(self.model, splits.shape)
        net = load_model(self.model, len(splits.classes), seed=self.seed, **own)
        if self.pretrained is not None:
            net = load_weights(net, self.pretrained, seed=self.seed)
        return train_stages(net.to(best_device()), splits, self.recipe, self.seed, told, self.folder)


@lru_cache(maxsize=1)
def splits_of(data: str, seed: int) -> Splits:
    return load(seed=seed, **json.loads(data))


@lru_cache(maxsize=1)
def start_of(start: Start) -> tuple[nn.Module, Scores]:
    """Read from its checkpoints; with its scores on validation."""
    model, _ = start.train(lambda _: None)
    return model, predict_logits(model, splits_of(start.data, start.seed), part="validation")


def trained(start: Start, row: str, plan: Plan, costs: CostMatrix, budget: float, tell: Tell) -> list[SeedRun]:
    """The rows of one training."""
    splits, seed = splits_of(start.data, start.seed), start.seed

    def told(line: Epoch, _: nn.Module | None = None) -> None:
        tell(line["epoch"], plan.trainings[row])

    with borrowed_threads(threads_for(splits.shape)):
        began = time.perf_counter()
        if row == BASELINE:
            model, history = start.train(told)
            seconds = time.perf_counter() - began
            before = predict_logits(model, splits, part="validation")
        else:
            (given, before), began = start_of(start), time.perf_counter()
            try:
                options: Any = {"seed": seed, "on_epoch": told, "checkpoint": start.folder / row, **plan.methods[row]}
                fitted = fit(given, splits, row, costs, **options)
            except Diverged as error:
                epoch = len(getattr(error.fitted, "history", ())) + 1
                return [SeedRun(seed, name, diverged=epoch) for name in (row, RULED.get(row)) if name]
            model, history, seconds = fitted.model, fitted.history, time.perf_counter() - began
        scores = {part: predict_logits(model, splits, part=part) for part in ("validation", "test")}
    runs = [SeedRun(seed, row, confusions(scores, costs), seconds, tuple(history))]
    if row in RULED:
        own = decision_for(scores["validation"], before, costs, budget)
        counts = confusions(scores, costs, own.rule(costs))
        runs.append(SeedRun(seed, RULED[row], counts, temperature=own.temperature, strength=own.strength))
    return runs


def confusions(scores: dict[str, Scores], costs: CostMatrix, decision: str | Rule = "argmax") -> dict[str, Any]:
    return {part: evaluate_scores(s, costs, decision).confusion.tolist() for part, s in scores.items()}


def summarise(costs: CostMatrix, runs: Sequence[SeedRun]) -> tuple[Summary, ...]:
    """One line per row of the table.

    sd is None for one seed; p is None below three seeds, and where the difference is the same for all. A row that
    diverged says in which epoch of which seed instead: a mean over the other seeds would flatter it.
    """
    rows: dict[str, list[SeedRun]] = {}
    for run in runs:
        rows.setdefault(run.row, []).append(run)

    def evaluations(row: str) -> list[Evaluation]:
        return [Evaluation(np.array(run.confusion["test"]), costs) for run in rows[row]]

    def line(row: str) -> Summary:
        for run in rows[row]:
            if run.diverged is not None:
                return Summary(row, diverged=f"diverged in epoch {run.diverged} of seed {run.seed}")
        mine = evaluations(row)
        paid = [e.mean_cost for e in mine]
        critical = [sum(e.pair_error(*pair).errors for pair in costs.critical_pairs()) for e in mine]
        p, p_rule = (None if rival == row else paired_p(paid, cost) for rival, cost in rivals.items())
        return Summary(row, mean_sd([e.accuracy for e in mine]), mean_sd(paid), mean_sd(critical), p, p_rule)

    rivals = {row: [e.mean_cost for e in evaluations(row)] for row in (BASELINE, RULED[BASELINE])}
    return tuple(map(line, rows))


def mean_sd(values: Sequence[float]) -> MeanSd:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Student's paired test, two-sided; None where it says nothing."""
    differences = np.subtract(a, b)
    if len(differences) < 3 or np.allclose(differences, differences[0], rtol=1e-9, atol=1e-12):
        return None
    return float(ttest_rel(a, b).pvalue)


def method_names(methods: str | Sequence[str]) -> list[str]:
    """Names from a list, or from a text with commas; "all" is every entry of METHODS."""
    names = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else list(methods)
    names = list(METHODS) if names == ["all"] else list(dict.fromkeys(name for name in names if name))
    if not names:
        raise InputError(f"no method to compare; known: {', '.join(METHODS)}")
    for name in names:
        if name not in METHODS:
            raise InputError(f"unknown method {name!r}{did_you_mean(name, METHODS)}")
    return names


def make_plan(
    splits: Splits,
    costs: CostMatrix,
    methods: Sequence[str],
    model: str | None = None,
    recipe: str | None = None,
    baseline_epochs: int | None = None,
    **given: float | str | None,
) -> Plan:
    """Every setting resolved, and refused here if it is bad, before any training. given: those of fine-tuning."""
    model, length, recipe, _ = suited(splits, model, recipe, baseline_epochs, gpu=torch.cuda.is_available())
    arguments_for(model, splits.shape)
    _, stages = stages_for(model, recipe, length, len(splits.train))
    given = {"precision": best_precision(best_device()), **given}
    options = {name: options_for(name, kind_of(model, splits.shape), **given) for name in methods}
    for name, own in options.items():
        settings, rest = split_options(own)
        Settings(**settings)
        make_method(name, costs, rest, costs_given=True)
    return Plan(model, splits.shape, stages, options)
