"""Do the runs of an experiment that are missing, and collect what is there into one record.

A run is a folder named by its hash: config.json, environment.json, history.jsonl, a checkpoint while it is under way,
logits.npz, and result.json, written last: with it the run is done. Whoever works on a run holds a lock on its folder, which
the kernel frees however the process ends; so any number of runners share one folder, and a worker is just another runner.
"""

from __future__ import annotations

import fcntl
import gc
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from csada.costs import CostMatrix
from csada.data import load
from csada.data.fetch import Progress
from csada.data.splits import Splits
from csada.decisions import MinimumExpectedCost
from csada.errors import RunError
from csada.evaluation import Scores, evaluate, predict_logits
from csada.experiments.baseline import best_device, train_stages
from csada.experiments.compare import TINY, confusions
from csada.experiments.records import environment, read_json, write_json
from csada.experiments.spec import (
    Config,
    Spec,
    baseline_configs,
    describe,
    epochs,
    identity,
    make_costs,
    run_configs,
    stages,
)
from csada.experiments.toy import Toy, panels
from csada.models import arguments_for, create, load_weights, save
from csada.models import load as load_model
from csada.models.modes import borrowed_threads
from csada.training import Epoch, fit

FORMAT = 1
BASELINES = "baselines"  # the folder of the baselines, which all experiments share
PARTS = ("validation", "test")
POLL = 0.5  # seconds between two looks at runs that others work on
GRID = 150  # points a side of the toy's decision regions
SHOWN_EPOCHS = 60  # of a longer history a record keeps this many, evenly

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return describe(self.config)

    @property
    def done(self) -> bool:
        return (self.folder / "result.json").exists()


@dataclass
class Report:
    """By name: what this runner did, what was there already, what failed and why, what the time limit left undone."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """The runs of an experiment and the baselines they start from; `known` are those of committed records, by hash."""

    baselines: list[Run]
    runs: list[Run]
    known: dict[str, Record]

    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.folder.name not in self.known and not run.done]

    def needed(self) -> list[Run]:
        """Baselines without which a missing run cannot start."""
        wanted = {run.config["baseline"] for run in self.missing()}
        return [run for run in self.baselines if run.folder.name in wanted and not run.done]


def make_plan(spec: Spec, runs_dir: Path, results_dir: Path | None = None, pairs: Any = None) -> Plan:
    """`pairs` ("all") replaces the experiment's. Where a baseline decides the pairs and is not trained, runs are lacking."""
    known = known_runs(spec, results_dir)
    baselines = [Run(c, runs_dir / BASELINES / identity(c)) for c in baseline_configs(spec)]
    counts = {}
    for run in baselines:  # the record's first: pairs that were chosen once stay
        if result := known.get(run.folder.name, {}).get("result") or (
            run.done and read_json(run.folder / "result.json")
        ):
            counts[run.folder.name] = result["validation"]
    configs = run_configs(spec, counts, pairs)
    return Plan(baselines, [Run(c, runs_dir / spec.folder / identity(c)) for c in configs], known)


def run_experiment(
    spec: Spec,
    runs_dir: Path,
    *,
    results_dir: Path | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    all_pairs: bool = False,
    workers: int = 1,
    limit_minutes: float | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Do what neither `runs_dir` nor the record in `results_dir` has; a run that fails does not stop the others.

    on_progress(done, total) counts epochs of the whole sweep. After `limit_minutes` no further run is started.
    """
    deadline = math.inf if limit_minutes is None else time.time() + 60 * limit_minutes
    chosen = "all" if all_pairs and spec.costs == "pairs" and not isinstance(spec.pairs, list) else None
    plan = make_plan(spec, runs_dir, results_dir, chosen)
    report = Report()
    if not plan.runs:  # the baselines decide the pairs
        untrained = [run for run in plan.baselines if not run.done]
        do_runs(untrained, data_dir, deadline, workers, on_progress and Epochs(untrained, on_progress), report)
        plan = make_plan(spec, runs_dir, results_dir, chosen)
    missing, needed = plan.missing(), plan.needed()
    for run in (*plan.baselines, *plan.runs):
        if run.done:  # by somebody who may have been killed before tidying up
            clean(run.folder, "checkpoint*")
    report.skipped += [run.name for run in plan.runs if run not in missing]
    tell = on_progress and Epochs(needed + missing, on_progress)
    do_runs(needed, data_dir, deadline, workers, tell, report)
    do_runs(missing, data_dir, deadline, workers, tell, report)
    return report


def do_runs(
    runs: list[Run], data_dir: Any, deadline: float, workers: int, tell: Callable[[], None] | None, report: Report
) -> None:
    """Do the runs here or in `workers` processes, and enter them into the report."""
    if workers == 1 or len(runs) < 2:
        done, failed = work(runs, data_dir, deadline, 0, tell)
    else:
        done, failed = [], {}
        spawn = multiprocessing.get_context("spawn")
        channels: list[Any] = []
        for number in range(min(workers, len(runs))):
            receiver, sender = spawn.Pipe(duplex=False)
            spawn.Process(target=worker, args=(sender, runs, data_dir, deadline, number)).start()
            sender.close()
            channels.append(receiver)
        while channels:
            ready: list[Any] = wait(channels, POLL)
            for channel in ready:
                channels.remove(channel)
                with suppress(EOFError):  # its process was killed: what it worked on is not done, see below
                    theirs, reasons = channel.recv()
                    done, failed = done + theirs, failed | reasons
            if tell:
                tell()
    for run in runs:
        if run.done:
            (report.done if run.name in done else report.skipped).append(run.name)
        elif run.name in failed:
            report.failed[run.name] = failed[run.name]
        elif time.time() > deadline:
            report.left.append(run.name)
        else:
            report.failed[run.name] = "its process ended before it was done; start again to continue"


def worker(channel: Connection, *arguments: Any) -> None:
    channel.send(work(*arguments))


def work(
    runs: Sequence[Run], data_dir: Any, deadline: float, number: int, tell: Callable[[], None] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Go round the runs, doing those that nobody works on, until all are done or failed here; what we did, what failed."""
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    done: list[str] = []
    failed: dict[str, str] = {}
    pending = list(runs)
    while pending := [run for run in pending if not run.done and run.name not in failed]:
        busy = True
        for run in pending:
            if time.time() > deadline:
                return done, failed
            try:
                with locked(run.folder) as mine:
                    if mine and not run.done:
                        busy = False
                        clean(run.folder)
                        try:
                            execute(run, data_dir, tell)
                        finally:
                            clean(run.folder)  # before somebody else holds the lock
                        clean(run.folder, "checkpoint*")
                        done.append(run.name)
            except Exception as error:
                failed[run.name] = f"{type(error).__name__}: {error}".replace("\n", " ")
        if busy:
            time.sleep(POLL)  # others hold all that is left
    return done, failed


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether the folder is ours now. The file stays: removing it would let two hold different locks."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def clean(folder: Path, pattern: str = ".*.tmp") -> None:
    """Remove what is half written, by a process that was killed or ran out of disk, or no longer needed."""
    for path in folder.rglob(pattern):
        path.unlink(missing_ok=True)


@dataclass
class Epochs:
    """Progress as epochs, read off the run folders, so that the work of others counts too."""

    runs: list[Run]
    show: Progress
    shown: float = 0.0

    def __call__(self) -> None:
        if time.monotonic() - self.shown < POLL:
            return
        self.show(sum(map(self.of, self.runs)), sum(epochs(run.config) for run in self.runs))
        self.shown = time.monotonic()

    def of(self, run: Run) -> int:
        total, history = epochs(run.config), run.folder / "history.jsonl"
        return total if run.done else min(total, history.read_bytes().count(b"\n") if history.exists() else 0)


# -- one run ---------------------------------------------------------------------------------------


class Start(NamedTuple):
    """A baseline as its runs take it up."""

    model: nn.Module
    scores: dict[str, Scores]


@lru_cache(maxsize=2)
def data_of(text: str, data_dir: str | None) -> Splits:
    config = json.loads(text)
    return load(config["data"], data_dir, config["data_scale"], config["data_seed"], **config["data_options"])


@lru_cache(maxsize=2)
def start_of(folder: Path, text: str, data_dir: str | None, device: torch.device) -> Start:
    model = load_model(folder / "model").to(device)
    return Start(model, all_scores(model, data_of(text, data_dir)))


def baseline_folder(run: Run) -> Path:
    folder: Path = run.folder.parents[1] / BASELINES / run.config["baseline"]
    return folder


def data_key(config: Config) -> str:
    return json.dumps({k: v for k, v in config.items() if k.startswith("data")}, sort_keys=True)


def sample_shape(splits: Splits) -> tuple[int, ...]:
    return tuple(splits.train.batch(torch.arange(1)).x.shape[1:])


def all_scores(model: nn.Module, splits: Splits) -> dict[str, Scores]:
    return {part: predict_logits(model, splits, part=part) for part in PARTS}


def execute(run: Run, data_dir: Any, tell: Callable[[], None] | None) -> None:
    """One run from its start, or from where it was left, to its result."""
    config, folder = run.config, run.folder
    if config["kind"] != "baseline" and not Run({}, baseline_folder(run)).done:
        raise RunError("its baseline is not trained")
    write_json(folder / "config.json", config)
    write_json(folder / "environment.json", environment())
    with (folder / "starts.log").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}\n")
    where = None if data_dir is None else str(data_dir)
    splits = data_of(data_key(config), where)
    tiny = math.prod(sample_shape(splits)) <= TINY
    device = torch.device("cpu") if tiny else best_device()
    with borrowed_threads(1 if tiny else torch.get_num_threads()), (folder / "history.jsonl").open("a") as log:

        def on_epoch(line: Epoch) -> None:
            log.write(json.dumps(line) + "\n")
            log.flush()
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                os._exit(1)  # whoever started us is gone; the next runner goes on from the checkpoint
            if tell:
                tell()

        if config["kind"] == "baseline":
            result, scores, history = train_baseline(run, splits, device, on_epoch)
        else:
            result, scores, history = train_method(run, splits, device, on_epoch, where)
    samples = {part: len(getattr(splits, part)) for part in ("train", *PARTS)}
    result |= {"seconds": sum(line["seconds"] for line in history)}
    result |= {"data": {"name": splits.name, "classes": list(splits.classes), "samples": samples}}
    save_logits(folder / "logits.npz", scores)
    write_text(folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
    write_json(folder / "result.json", result)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


Outcome = tuple[Record, dict[str, Scores], list[Epoch]]


def train_baseline(run: Run, splits: Splits, device: torch.device, on_epoch: Callable[[Epoch], None]) -> Outcome:
    """Its recipe; every stage has its checkpoint, and one that was finished is only read."""
    config = run.config
    arguments = arguments_for(config["model"], sample_shape(splits))
    net = create(config["model"], len(splits.classes), seed=config["seed"], **arguments)
    if "pretrained" in config:
        load_weights(net, config["pretrained"], seed=config["seed"])
    net = net.to(device)
    with deterministic(device):
        net, history = train_stages(net, splits, stages(config), config["seed"], on_epoch, run.folder)
    scores = all_scores(net, splits)
    logits, labels = predict_logits(net, splits, part="train")
    result = confusions(scores, CostMatrix.uniform(len(splits.classes)))
    result["training_loss"] = float(F.cross_entropy(logits, labels))  # without augmentation: does it fit its data?
    about = {"architecture": config["model"], "arguments": arguments, "classes": splits.classes}
    save(net, run.folder / "model", config=about | {"normalization": asdict(splits.train.normalization)})
    return result, scores, history


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """GPU kernels that always sum in one order, where there are any: a sweep that goes on elsewhere starts alike there."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def train_method(
    run: Run, splits: Splits, device: torch.device, on_epoch: Callable[[Epoch], None], data_dir: str | None
) -> Outcome:
    config = run.config
    start = start_of(baseline_folder(run), data_key(config), data_dir, device)
    costs = make_costs(config["costs"], splits.classes)

    def told(line: Epoch, model: nn.Module) -> Epoch:
        more = {}
        if config.get("track") == "test_wer":
            more["test_wer"] = evaluate(model, splits, costs).weighted_error_rate
        on_epoch(line | more)
        return more

    options = on_device(config["options"], device) | {"seed": config["seed"]}
    kept = run.folder / "checkpoint"
    fitted = fit(start.model, splits, config["method"], costs, on_epoch=told, checkpoint=kept, **options)
    scores = all_scores(fitted.model, splits)
    result = judged(scores, costs) | {"baseline": judged(start.scores, costs), "training_loss": None}
    if config["kind"] == "toy":
        both = (start.model, fitted.model)
        toy = Toy(splits, *both, *(evaluate(model, splits, costs) for model in both))
        result |= {"before": toy.before.confusion.tolist(), "after": toy.after.confusion.tolist()}
        result["panels"] = [plain(asdict(panel)) for panel in panels(toy, resolution=GRID)]
    return result, scores, fitted.history


def on_device(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Half precision is for GPUs alone."""
    return options | ({"precision": "32"} if device.type == "cpu" else {})


def judged(scores: dict[str, Scores], costs: CostMatrix) -> Record:
    """Confusion counts by the largest score, and by the calibrated rule, which comes from validation.

    Where one pair alone costs, the plain rule would never predict that pair's class again; there its strength is the
    one that loses at most half a point of accuracy on validation.
    """
    single = np.count_nonzero(costs.values) == 1
    made = MinimumExpectedCost.within_budget if single else MinimumExpectedCost.calibrated
    rule = made(*scores["validation"], costs)
    fitted = {"temperature": rule.temperature, "strength": rule.strength}
    return confusions(scores, costs) | {"rule": fitted | confusions(scores, costs, rule)}


def plain(value: Any) -> Any:
    """Arrays as lists with four digits after the point."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return (value.round(4) if value.dtype.kind == "f" else value).tolist()
    return value


def save_logits(path: Path, scores: dict[str, Scores]) -> None:
    arrays = {part: s.logits.half().numpy() for part, s in scores.items()}
    arrays |= {f"{part}_labels": s.labels.numpy() for part, s in scores.items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    os.replace(partial, path)


# -- records ---------------------------------------------------------------------------------------


def known_runs(spec: Spec, results_dir: Path | None) -> dict[str, Record]:
    """What the committed record holds, by hash; an experiment that shows another's runs takes those too."""
    known: dict[str, Record] = {}
    for name in (spec.folder, spec.name):
        path = None if results_dir is None else results_dir / f"{replace(spec, name=name).record}.json"
        if path is not None and path.exists():
            record = read_json(path)
            known |= {identity(run["config"]): run for run in (*record["baselines"], *record["runs"])}
    return known


def collect(spec: Spec, runs_dir: Path, results_dir: Path | None = None) -> Record:
    """Every run that is done, of the run folders and of the record that there is, in the order of their hashes.

    A run that was recorded stays as it was; one whose settings are no longer the experiment's is left out.
    """
    every = "all" if spec.costs == "pairs" and not isinstance(spec.pairs, list) else None
    plan = make_plan(spec, runs_dir, results_dir, every)

    def entries(runs: list[Run]) -> list[Record]:
        found = {run.folder.name: plan.known.get(run.folder.name) or read_run(run) for run in runs}
        return [entry for _, entry in sorted(found.items()) if entry]

    baselines, runs = entries(plan.baselines), entries(plan.runs)
    data = baselines[0]["result"]["data"] if baselines else {"classes": []}
    return {
        "format": FORMAT,
        "experiment": spec.name,
        "scale": spec.scale,
        "title": spec.title,
        "data": data,
        "classes": data["classes"],
        "planned": max(spec.count, len(runs)),
        "baselines": baselines,
        "runs": one_with_panels([run | {"result": without(run["result"], "data")} for run in runs]),
    }


def read_run(run: Run) -> Record | None:
    if not run.done:
        return None
    history = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
    kept = sorted(set(np.linspace(0, len(history) - 1, min(len(history), SHOWN_EPOCHS)).round().astype(int).tolist()))
    result, about = (read_json(run.folder / name) for name in ("result.json", "environment.json"))
    return {"config": run.config, "result": result, "history": [history[i] for i in kept], "environment": about}


def one_with_panels(runs: list[Record]) -> list[Record]:
    """The toy's figure shows one run, the first whose baseline makes the critical error; the others drop theirs."""

    def order(run: Record) -> tuple[bool, int]:
        costs = run["config"]["costs"]
        return run["result"]["baseline"]["test"][costs["truth"]][costs["predicted"]] == 0, run["config"]["seed"]

    shown = min((run for run in runs if "panels" in run["result"]), key=order, default=None)
    return [run if run is shown else run | {"result": without(run["result"], "panels")} for run in runs]


def without(table: Record, key: str) -> Record:
    return {k: v for k, v in table.items() if k != key}


def write_record(path: Path, record: Record) -> Path:
    """JSON with a run a line."""

    def value(item: Any) -> str:
        if isinstance(item, list) and item and isinstance(item[0], dict):
            return "[\n" + ",\n".join(map(compact, item)) + "\n]"
        return compact(item)

    def compact(item: Any) -> str:
        return json.dumps(item, separators=(",", ":"), allow_nan=False)

    lines = ",\n".join(f"{json.dumps(key)}: {value(item)}" for key, item in record.items())
    return write_text(path, f"{{\n{lines}\n}}\n")


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path
