"""Do the runs of an experiment that are missing, and collect what is there into one record.

Whoever works on a run (run.py) holds a lock on its folder, which the kernel frees however the process ends; so any number of
runners share one folder, and a worker (workflow/engine.py) is just another runner.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from csada.files import TEMPORARY, write_text
from csada.folders import LOCK, OWN
from csada.paper.record import BaselineResult, BaselineRun, Data, MethodRun, RecordFile, cost_matrix, written
from csada.paper.run import BASELINES, Entry, Run, baseline_folder, execute, read_run
from csada.paper.spec import Portion, Spec, baseline_configs, epochs, known_by, run_configs
from csada.reading import read_json
from csada.workflow.engine import Engine, Progress, Task, Tell, alone, carry_out, reason


@dataclass
class SweepReport:
    """By name: what this runner did, what was there already, what failed and why, what the time limit left undone."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Runs:
    """The runs of an experiment and the baselines they start from; `known` are those of committed records, by hash."""

    baselines: list[Run]
    runs: list[Run]
    known: dict[str, Entry]

    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.folder.name not in self.known and not run.done]

    def needed(self) -> list[Run]:
        """Baselines without which a missing run cannot start."""
        wanted = {baseline_folder(run).name for run in self.missing()}
        return [run for run in self.baselines if run.folder.name in wanted and not run.done]


def plan_runs(
    spec: Spec,
    runs_dir: Path,
    results_dir: Path | None = None,
    all_pairs: bool = False,
    carried: Path | None = None,
    only: Portion | None = None,
) -> Runs:
    """Where a baseline decides the pairs and is not trained, there are no runs yet. only: a part of the runs."""
    known = known_runs(spec, results_dir)
    baselines = [Run(c, runs_dir / BASELINES / known_by(c), carried) for c in baseline_configs(spec)]
    counts = {}
    for run in baselines:  # the record's first: pairs that were chosen once stay
        if (entry := known.get(run.folder.name)) is not None:
            counts[run.folder.name] = entry.result.validation
        elif run.done:
            counts[run.folder.name] = read_json(run.folder / "result.json", BaselineResult).validation
    configs = [config for config in run_configs(spec, counts, all_pairs) if only is None or config in only]
    return Runs(baselines, [Run(c, runs_dir / spec.folder / known_by(c)) for c in configs], known)


def run_experiment(
    spec: Spec,
    runs_dir: Path,
    *,
    results_dir: Path | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    all_pairs: bool = False,
    only: Portion | None = None,
    engine: Engine | None = None,
    limit_minutes: float | None = None,
    carried: Path | None = None,
    on_progress: Progress | None = None,
) -> SweepReport:
    """Do what neither `runs_dir` nor the record in `results_dir` has; a run that fails does not stop the others.

    only: the part of the experiment to do now; runs beside it are neither done nor counted.

    carried: a folder of baselines in half precision, in small files: taken from there, else trained and kept there, so
    that a sweep done in parts on several machines starts from the same.

    on_progress(done, total, rows) counts epochs of the whole sweep and of each run under way. After `limit_minutes` no further
    run is started.
    """
    deadline = math.inf if limit_minutes is None else time.time() + 60 * limit_minutes
    only, engine, runs_dir = only or Portion(), engine or Engine(), runs_dir.resolve()
    only.check(spec)
    data_dir = None if data_dir is None else Path(data_dir).expanduser().absolute()  # nodes have another working folder
    report = SweepReport()

    def made() -> Runs:
        return plan_runs(spec, runs_dir, results_dir, all_pairs, carried, only)

    def do(*rounds: list[Run]) -> None:
        """Do the runs, round after round, and enter them into the report."""
        by_us = dict[str, bool]()

        def task(run: Run) -> Task:
            call, then = partial(attempt, run, data_dir), partial(by_us.__setitem__, run.name)
            return Task(run.name, call, then, run.folder / OWN / "epoch", epochs(run.config))

        tasks = [[task(run) for run in runs] for runs in rounds]
        failed = carry_out(tasks, engine, deadline, on_progress, sum(each.epochs for runs in tasks for each in runs))
        for run in (run for runs in rounds for run in runs):
            if run.name in failed:
                report.failed[run.name] = reason(failed[run.name])
            elif run.name in by_us or run.done:
                (report.done if by_us.get(run.name) else report.skipped).append(run.name)
            else:
                report.left.append(run.name)

    plan = made()
    if not plan.runs:  # the baselines decide the pairs
        do([run for run in plan.baselines if not run.done])
        plan = made()
    missing, needed = plan.missing(), plan.needed()
    for run in (*plan.baselines, *plan.runs):
        if run.done:  # by somebody who may have been killed before tidying up
            clean(run.folder, finished=True)
    report.skipped += [run.name for run in plan.runs if run not in missing]
    do(needed, missing)
    return report


def attempt(run: Run, data_dir: Any, tell: Tell) -> bool:
    """Whether this did the run, rather than somebody else before."""
    with alone(run.folder):
        if run.done:
            return False
        clean(run.folder)
        try:
            execute(run, data_dir, tell)
        finally:
            clean(run.folder)  # before somebody else holds the lock
        clean(run.folder, finished=True)
        return True


def clean(folder: Path, *, finished: bool = False) -> None:
    """Remove what is half written, by a process that was killed or ran out of disk, and the checkpoints of a finished run."""
    for path in folder.rglob(".*.tmp"):
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for path in (folder / OWN).glob("*") if finished else ():  # our own folder: nothing else is in it
        if path != folder / LOCK:
            path.unlink(missing_ok=True)


# -- records ---------------------------------------------------------------------------------------


def known_runs(spec: Spec, results_dir: Path | None) -> dict[str, Entry]:
    """What the committed record holds, by hash; an experiment that shows another's runs takes those too."""
    known: dict[str, Entry] = {}
    for name in (spec.folder, spec.name):
        path = None if results_dir is None else results_dir / f"{replace(spec, name=name).record}.json"
        if path is not None and path.exists():
            record = read_json(path, RecordFile)
            entries: list[Entry] = [*record.baselines, *record.runs]
            known |= {known_by(entry.config): entry for entry in entries}
    return known


def collect(spec: Spec, runs_dir: Path, results_dir: Path | None = None) -> RecordFile:
    """Every run that is done, of the run folders and of the record that there is, in the order of their hashes.

    A run that was recorded stays as it was; one whose settings are no longer the experiment's is left out.
    """
    plan = plan_runs(spec, runs_dir, results_dir, all_pairs=True)
    made = {run.folder.name: plan.known.get(run.folder.name) or read_run(run) for run in (*plan.baselines, *plan.runs)}
    found = [entry for _, entry in sorted(made.items()) if entry is not None]
    baselines = tuple(entry for entry in found if isinstance(entry, BaselineRun))
    runs = one_with_panels([entry for entry in found if isinstance(entry, MethodRun)])
    data = baselines[0].result.data if baselines else Data("", (), {})
    return RecordFile(
        experiment=spec.name,
        scale=spec.scale,
        title=spec.title,
        data=data,
        classes=data.classes,
        planned=len(plan.runs)
        if len(runs) > spec.count
        else spec.count,  # all pairs, once there are more than the file's
        baselines=baselines,
        runs=runs,
    )


def one_with_panels(runs: list[MethodRun]) -> tuple[MethodRun, ...]:
    """The toy's figure shows one run, the first whose baseline makes the critical error; the others drop theirs."""

    def order(run: MethodRun) -> tuple[bool, int]:
        pair = cost_matrix(run.config.costs, [str(k) for k in range(len(run.result.test))]).top_pairs(1)[0]
        return bool(run.result.baseline.test[pair] == 0), run.config.seed

    shown = min((run for run in runs if run.result.panels), key=order, default=None)
    return tuple(run if run is shown else replace(run, result=replace(run.result, panels=None)) for run in runs)


def write_record(path: Path, record: RecordFile) -> Path:
    """JSON with one run per line."""

    def value(item: Any) -> str:
        if isinstance(item, list) and item and isinstance(item[0], dict):
            return "[\n" + ",\n".join(map(compact, item)) + "\n]"
        return compact(item)

    def compact(item: Any) -> str:
        return json.dumps(item, separators=(",", ":"), allow_nan=False)

    lines = ",\n".join(f"{json.dumps(key)}: {value(item)}" for key, item in written(record).items())
    return write_text(path, f"{{\n{lines}\n}}\n")
