"""Every method from the same start: one baseline per seed, fine-tuned by each, judged on the same test part.

A method has two rivals: the baseline as it is, and the baseline under the calibrated minimum-expected-cost rule, which
trains nothing. Settings are those of `settings.py`, which says how far each was searched for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import ttest_rel
from torch import nn

from csada.costs import CostMatrix, did_you_mean
from csada.data import load
from csada.data.fetch import Progress
from csada.data.splits import Splits
from csada.decisions import MinimumExpectedCost, Rule
from csada.errors import Diverged, InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.evidence import Environment
from csada.methods import METHODS
from csada.metrics import Evaluation
from csada.models import arguments_for, create
from csada.models.modes import borrowed_threads
from csada.training import Epoch, Settings, fit, make_method, split_options
from csada.workflow.runs import environment
from csada.workflow.settings import DEFAULTS, Options, costs_for, default_model, kind_of, options_for, threads_for

FORMAT = 2
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
    temperature: float | None = None
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
    arguments: Options  # with which the model is created
    baseline: Options
    methods: dict[str, Options]
    threads: int

    @property
    def epochs(self) -> int:
        """Of one seed, all trainings together."""
        return sum(options["epochs"] for options in (self.baseline, *self.methods.values()))


@dataclass(frozen=True)
class Comparison:
    """What was run, the confusion counts of every run, and their summary."""

    data: str
    scale: float
    samples: dict[str, int]
    classes: tuple[str, ...]
    costs: Any  # [K, K]
    plan: Plan
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
    baseline_epochs: int | None = None,
    scale: float = 1.0,
    data_dir: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
    on_seed: Callable[[Comparison], object] | None = None,
    **own: Any,
) -> Comparison:
    """Every method on every seed.

    costs: a matrix, or what `costs_for` reads. methods: names of METHODS, or "all". epochs and lr are those of the
    fine-tuning. on_progress(done, total) counts epochs; on_seed gets the comparison so far after every seed. Other
    options belong to the data: size, pixels of an image's side; label and ignore, columns of a table.
    """
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    names = method_names(methods)
    splits = load(data, data_dir, scale, 0, on_progress, **own)
    table = costs_for(costs, splits.classes)
    plan = make_plan(splits, table, names, model, epochs, lr, baseline_epochs)
    samples = {part: len(getattr(splits, part)) for part in ("train", "validation", "test")}
    found = Comparison(splits.name, scale, samples, splits.classes, table.values, plan, environment())
    for seed in range(seeds):
        splits = splits if seed == 0 else load(data, data_dir, scale, seed, on_progress, **own)
        count = Count(seed * plan.epochs, seeds * plan.epochs, on_progress)
        with borrowed_threads(plan.threads):
            runs = (*found.runs, *one_seed(plan, table, splits, seed, count))
        found = replace(found, runs=runs, summary=summarise(table, runs))
        if on_seed is not None:
            on_seed(found)
    return found


@dataclass
class Count:
    """Epochs done, told to a progress bar; a training that ended early counts whole."""

    done: int
    total: int
    tell: Progress | None

    def epoch(self, line: Epoch, _: nn.Module) -> None:
        self._show(self.done + line["epoch"])

    def training(self, epochs: int) -> None:
        self.done += epochs
        self._show(self.done)

    def _show(self, done: int) -> None:
        if self.tell is not None:
            self.tell(done, self.total)


def one_seed(plan: Plan, costs: CostMatrix, splits: Splits, seed: int, count: Count) -> Iterator[SeedRun]:
    """One run per row of the table. Every method starts from the same trained baseline, which `fit` leaves unchanged."""
    start = create(plan.model, len(costs), seed=seed, **plan.arguments)
    model = start.to("cuda" if torch.cuda.is_available() else "cpu")
    for row, options in {BASELINE: plan.baseline, **plan.methods}.items():
        method = "cross_entropy" if row == BASELINE else row
        started = time.perf_counter()
        try:
            fitted = fit(model, splits, method, costs, seed=seed, on_epoch=count.epoch, **options)
        except Diverged as error:
            if row == BASELINE:
                raise  # there is nothing to compare with
            epoch = len(getattr(error.fitted, "history", ())) + 1
            for name in filter(None, (row, RULED.get(row))):
                yield SeedRun(seed, name, diverged=epoch)
            continue
        finally:
            count.training(options["epochs"])
        seconds = time.perf_counter() - started
        model = fitted.model if row == BASELINE else model
        scores = {part: predict_logits(fitted.model, splits, part=part) for part in ("validation", "test")}
        counts = confusions(scores, costs)
        yield SeedRun(seed, row, counts, seconds, tuple(fitted.history))
        if row in RULED:
            rule = MinimumExpectedCost.calibrated(*scores["validation"], costs)
            yield SeedRun(seed, RULED[row], confusions(scores, costs, rule), temperature=rule.temperature)


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
    model: str | None,
    epochs: int | None,
    lr: float | None,
    baseline_epochs: int | None,
) -> Plan:
    """Every setting resolved, and refused here if it is bad, before any training."""
    model = model or default_model(splits.shape)
    kind = kind_of(model, splits.shape)
    baseline = DEFAULTS[kind]["baseline"] | ({} if baseline_epochs is None else {"epochs": baseline_epochs})
    options = {name: options_for(name, kind, epochs=epochs, lr=lr) for name in methods}
    for name, own in (("cross_entropy", baseline), *options.items()):
        settings, rest = split_options(own)
        Settings(**settings)
        make_method(name, costs, rest, costs_given=True)
    return Plan(model, arguments_for(model, splits.shape), baseline, options, threads_for(splits.shape))
