"""Every method from the same start: one baseline per seed, fine-tuned by each, judged on the same test part.

A method has two rivals: the baseline as it is, and the baseline under the decision rule of `fit`, calibrated and within the
accuracy budget, which trains nothing. Settings are those of `settings.py`, which says how far each was searched for.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import ttest_rel
from torch import nn

from csada.costs import CostMatrix, did_you_mean
from csada.data import load
from csada.data.fetch import Progress
from csada.data.splits import Splits
from csada.decisions import Rule
from csada.errors import Diverged, InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import Environment
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
from csada.workflow.engine import Engine, Task, Tell, carry_out
from csada.workflow.engine import Progress as RunsProgress
from csada.workflow.fit import decision_for
from csada.workflow.project import suited, suited_size
from csada.workflow.runs import environment, run_id
from csada.workflow.settings import Options, costs_for, kind_of, options_for, threads_for
from csada.workflow.train import stages_for, train_stages

FORMAT = 3
FILE = "compare.json"
MeanSd = tuple[float, float | None]

BASELINE = "baseline"
RULED = {BASELINE: "baseline + rule", "csada": "csada + rule"}  # the rows that are also shown under the rule
SHOWN = "csada,adjusted_penalty,sosr,cost_weighted,expected_cost,penalty,oversampling,metacost,pgd_training"


@dataclass(frozen=True)
class SeedRun:
    """A row of the table for one seed. confusion: counts by part; empty where training diverged, and in which epoch."""

    seed: int
    row: str
    confusion: dict[str, Any] = field(default_factory=dict)
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
    threads: int
    pretrained: str | None = None  # of every baseline

    @property
    def epochs(self) -> int:
        """Of one seed, all trainings together."""
        own: list[int] = [options["epochs"] for options in self.methods.values()]
        return sum(own) + sum(stage.epochs for stage in self.baseline)


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
    on_runs: RunsProgress | None = None,
    **own: Any,
) -> Comparison:
    """Every method on every seed.

    costs: a matrix, or what `costs_for` reads. methods: names of METHODS, or "all". epochs and lr are those of the
    fine-tuning; recipe, baseline_epochs and pretrained (weights to start from) those of the baseline. Model, size and recipe
    are those of `csada train` where they are not given. budget: points of accuracy that the rule may lose. out: a folder for
    compare.json, from which the same comparison resumes; more seeds are added to it. on_progress(done, total) counts epochs.
    on_start gets the plan before training, on_estimate after the first epoch the seconds that all take at its pace. engine:
    where seeds are done side by side, if there is `out`, told by on_runs; None: one after the other, here. Other options belong
    to the data: size, pixels of an image's side; label and ignore, columns of a table.
    """
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    check_trust(model or "", trust, "model")
    names = method_names(methods)
    if own.get("size") is None:
        size = suited_size(data, None if data_dir is None else Path(data_dir), gpu=torch.cuda.is_available())
        own = {name: value for name, value in own.items() if name != "size"} | ({} if size is None else {"size": size})
    splits = load(data, data_dir, scale, 0, on_progress, **own)
    table = costs_for(costs, splits.classes)
    plan = make_plan(splits, table, names, model, recipe, baseline_epochs, epochs=epochs, lr=lr)
    if pretrained is not None:  # workers may have another current folder
        plan = replace(plan, pretrained=pretrained if pretrained.startswith(HUB) else os.path.abspath(pretrained))
    samples = {part: len(getattr(splits, part)) for part in ("train", "validation", "test")}
    found = Comparison(
        splits.name, splits.fingerprint, scale, samples, splits.classes, table.values, plan, budget, environment()
    )
    folder = None if out is None else Path(out)
    if folder is not None:
        found = resumed(folder / FILE, found, seeds) if (folder / FILE).exists() else found
        write_json(folder / FILE, found)  # a folder that cannot be written is found before training
    if on_start is not None:
        on_start(found)

    def add(runs: Sequence[SeedRun], *, last: bool = False) -> None:
        nonlocal found
        found = replace(found, runs=tuple(sorted((*found.runs, *runs), key=lambda run: run.seed)))
        if last:  # of a seed
            found = replace(found, summary=summarise(table, found.runs))
        if folder is not None:
            write_json(folder / FILE, found)

    def ended(done: tuple[list[SeedRun], Path | None]) -> None:
        runs, kept = done
        add(runs, last=True)
        if kept is not None:
            shutil.rmtree(kept)
            with suppress(OSError):  # another run has its own there
                kept.parent.rmdir()

    total = seeds * plan.epochs
    if folder is not None and engine is not None:
        new = [seed for seed in range(seeds) if not any(run.seed == seed for run in found.runs)]
        one = partial(all_rows, folder.resolve(), plan, table, budget, partial(load, data, data_dir, scale, **own))
        tasks = [
            Task(f"seed {i}", partial(one, i), ended, folder.resolve() / OWN / f"seed-{i}.epoch", plan.epochs)
            for i in new
        ]
        for error in carry_out([tasks], engine, math.inf, on_runs, total, total - len(new) * plan.epochs).values():
            raise error
    count = Count(0, total, on_progress, on_estimate)
    for seed in range(seeds):
        done = [run.row for run in found.runs if run.seed == seed]
        if set(plan.methods) <= set(done):
            continue
        splits = splits if seed == 0 else load(data, data_dir, scale, seed, on_progress, **own)
        count.done = seed * plan.epochs
        kept = None if folder is None else place(folder, plan, splits, seed)
        with borrowed_threads(plan.threads):
            for runs in one_seed(plan, table, splits, seed, budget, count, done, kept):
                add(runs)
        ended(([], kept))
    return found


def place(folder: Path, plan: Plan, splits: Splits, seed: int) -> Path:
    """Of what a seed keeps while it is under way."""
    return (
        folder / OWN / run_id(splits, model=plan.model, baseline=plan.baseline, seed=seed, pretrained=plan.pretrained)
    )


def all_rows(
    folder: Path, plan: Plan, costs: CostMatrix, budget: float, load: Callable[..., Splits], seed: int, tell: Tell
) -> tuple[list[SeedRun], Path]:
    """Of a seed; and what it kept while it was under way."""
    splits = load(seed=seed)
    kept = place(folder, plan, splits, seed)
    count = Count(0, plan.epochs, tell, None)
    with borrowed_threads(plan.threads):
        return [run for runs in one_seed(plan, costs, splits, seed, budget, count, (), kept) for run in runs], kept


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
    return replace(new, runs=old.runs, summary=old.summary)


@dataclass
class Count:
    """Epochs done, told to a progress bar; a training that ended early counts whole."""

    done: int
    total: int
    tell: Progress | None
    estimate: Callable[[float], object] | None  # told once

    def epoch(self, line: Epoch, _: nn.Module | None = None) -> None:
        if self.estimate is not None:
            self.estimate(line["seconds"] * (self.total - self.done))
            self.estimate = None
        self._show(self.done + line["epoch"])

    def training(self, epochs: int) -> None:
        self.done += epochs
        self._show(self.done)

    def _show(self, done: int) -> None:
        if self.tell is not None:
            self.tell(done, self.total)


def one_seed(
    plan: Plan,
    costs: CostMatrix,
    splits: Splits,
    seed: int,
    budget: float,
    count: Count,
    done: Sequence[str],
    checkpoints: Path | None,
) -> Iterator[list[SeedRun]]:
    """The rows of the table that are not done: a model's by argmax and, for some, with the rule.

    Every method starts from the same trained baseline, which `fit` leaves unchanged.
    """

    def rows(row: str, model: nn.Module, history: Sequence[Epoch], seconds: float) -> list[SeedRun]:
        scores = {part: predict_logits(model, splits, part=part) for part in ("validation", "test")}
        runs = [SeedRun(seed, row, confusions(scores, costs), seconds, tuple(history))]
        if row in RULED:
            own = decision_for(scores["validation"], before, costs, budget)
            counts = confusions(scores, costs, own.rule(costs))
            runs.append(SeedRun(seed, RULED[row], counts, temperature=own.temperature, strength=own.strength))
        return runs

    own = arguments_for(plan.model, splits.shape)
    start = load_model(plan.model, len(costs), seed=seed, **own)
    start = (load_weights(start, plan.pretrained, seed=seed) if plan.pretrained else start).to(best_device())
    started = time.perf_counter()
    baseline, history = train_stages(start, splits, plan.baseline, seed, count.epoch, checkpoints)
    seconds = time.perf_counter() - started
    before = predict_logits(baseline, splits, part="validation")
    count.training(len(history))
    if BASELINE not in done:
        yield rows(BASELINE, baseline, history, seconds)
    for row, options in plan.methods.items():
        if row not in done:
            started = time.perf_counter()
            try:
                fitted = fit(baseline, splits, row, costs, seed=seed, on_epoch=count.epoch, **options)
                yield rows(row, fitted.model, fitted.history, time.perf_counter() - started)
            except Diverged as error:
                epoch = len(getattr(error.fitted, "history", ())) + 1
                yield [SeedRun(seed, name, diverged=epoch) for name in (row, RULED.get(row)) if name]
        count.training(options["epochs"])


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
    return Plan(model, splits.shape, stages, options, threads_for(splits.shape))
