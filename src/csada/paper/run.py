"""One run of an experiment: a folder named by the hash of its config.

In it: config.json, environment.json, history.jsonl, a checkpoint while it is under way, logits.npz, and result.json, written
last: with it the run is done.
"""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data import load
from csada.data.splits import PARTS, Splits
from csada.decisions import MinimumExpectedCost, Rule
from csada.errors import InputError, RunError
from csada.evaluation import Scores, evaluate, predict_logits
from csada.evidence import HELD_OUT, Environment
from csada.files import whole, write_text
from csada.folders import OWN
from csada.models import arguments_for, create, load_weights
from csada.models.modes import best_device, borrowed_threads
from csada.models.weights import fill
from csada.models.weights import read as read_weights
from csada.paper import record
from csada.paper.record import (
    BaselineConfig,
    BaselineResult,
    BaselineRun,
    BothWays,
    Data,
    MethodConfig,
    MethodResult,
    MethodRun,
    Ruled,
    Toml,
    cost_matrix,
    written,
)
from csada.paper.spec import Config, describe, epochs, stages
from csada.paper.toy import Toy, panels
from csada.paper.toy_figure import ToyPanel
from csada.reading import build, parse_json, read_json, read_text, write_json
from csada.training import Epoch, fit
from csada.workflow.compare import confusions
from csada.workflow.engine import Tell
from csada.workflow.runs import environment
from csada.workflow.settings import TINY
from csada.workflow.train import train_stages

BASELINES = "baselines"  # the folder of the baselines, which all experiments share
GRID = 150  # points a side of the toy's decision regions
PART = 14 << 20  # bytes of a file of a baseline that is carried along
SHOWN_EPOCHS = 60  # of a longer history a record keeps this many, evenly

Entry = BaselineRun | MethodRun


@dataclass(frozen=True)
class Run:
    config: Config
    folder: Path
    carried: Path | None = None  # a folder of baselines that go from machine to machine

    @property
    def name(self) -> str:
        return describe(self.config)

    @property
    def done(self) -> bool:
        return (self.folder / "result.json").exists()


@lru_cache(maxsize=2)
def data_of(text: str, data_dir: str | None) -> Splits:
    given = json.loads(text)
    return load(given["data"], data_dir, given["data_scale"], given["data_seed"], **given["data_options"])


@lru_cache(maxsize=2)
def start_of(
    folder: Path, text: str, data_dir: str | None, device: torch.device
) -> tuple[nn.Module, dict[str, Scores]]:
    """A baseline as its runs take it up."""
    model = Classifier.load(folder / "model", device=device).network
    return model, all_scores(model, data_of(text, data_dir))


def baseline_folder(run: Run) -> Path:
    assert isinstance(run.config, MethodConfig)
    return run.folder.parents[1] / BASELINES / run.config.baseline


def data_key(config: Config) -> str:
    return json.dumps({k: v for k, v in vars(config).items() if k.startswith("data")}, sort_keys=True)


def all_scores(model: nn.Module, splits: Splits) -> dict[str, Scores]:
    return {part: predict_logits(model, splits, part=part) for part in HELD_OUT}


def execute(run: Run, data_dir: Any, tell: Tell) -> None:
    """One run from its start, or from where it was left, to its result."""
    config, folder = run.config, run.folder
    if isinstance(config, MethodConfig) and not (baseline_folder(run) / "result.json").exists():
        raise RunError("its baseline is not trained")
    write_json(folder / "config.json", written(config))
    write_json(folder / "environment.json", environment())
    with (folder / "starts.log").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}\n")
    where = None if data_dir is None else str(data_dir)
    splits = data_of(data_key(config), where)
    tiny = math.prod(splits.shape) <= TINY
    device = torch.device("cpu") if tiny else best_device()
    with borrowed_threads(1 if tiny else torch.get_num_threads()), (folder / "history.jsonl").open("a") as log:

        def on_epoch(line: Epoch) -> None:
            log.write(json.dumps(line) + "\n")
            log.flush()
            tell(line["epoch"], epochs(config))

        if isinstance(config, BaselineConfig):
            result, scores, history = run_baseline(run, config, splits, device, on_epoch)
        else:
            result, scores, history = run_method(run, config, splits, device, on_epoch, where)
    save_logits(folder / "logits.npz", scores)
    write_text(folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
    write_json(folder / "result.json", written(result))
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


Trained = tuple[BaselineResult | MethodResult, dict[str, Scores], list[Epoch]]


def about(splits: Splits, history: list[Epoch]) -> Toml:
    samples = {part: len(getattr(splits, part)) for part in PARTS}
    seconds = sum(line["seconds"] for line in history)
    return {"seconds": seconds, "data": Data(splits.name, tuple(splits.classes), samples)}


def run_baseline(
    run: Run, config: BaselineConfig, splits: Splits, device: torch.device, on_epoch: Callable[[Epoch], None]
) -> Trained:
    """Its recipe; every stage has its checkpoint, and one that was finished is only read.

    Trained twice, on two machines, a recipe may give two models. One that is carried along is trained once, rounded to
    half precision before anything starts from it, and read on every other machine.
    """
    arguments = arguments_for(config.model, splits.shape)
    net = create(config.model, len(splits.classes), seed=config.seed, **arguments)
    if config.pretrained is not None:
        load_weights(net, config.pretrained, seed=config.seed)
    net = net.to(device)
    kept = None if run.carried is None else run.carried / run.folder.name
    if kept is None or not (kept / "history.jsonl").exists():
        with deterministic(device):
            net, history = train_stages(net, splits, stages(config), config.seed, on_epoch, run.folder / OWN)
        if kept is not None:
            carry(net, kept, history)
    if kept is not None:
        history = [written(line) for line in read_history(kept)]
        fill(net, {k: v for path in kept.glob("*.safetensors") for k, v in read_weights(path).items()}, kept)
    scores = all_scores(net, splits)
    logits, labels = predict_logits(net, splits, part="train")
    loss = float(F.cross_entropy(logits, labels))
    result = BaselineResult(**confused(scores), training_loss=loss, **about(splits, history))
    Classifier.of(net, splits, architecture=config.model, arguments=arguments).save(run.folder / "model")
    return result, scores, history


def carry(net: nn.Module, folder: Path, history: list[Epoch]) -> None:
    """The weights in half precision, in parts of at most PART bytes; the history comes last: with it they are complete."""
    parts: list[dict[str, Tensor]] = [{}]
    for name, value in net.state_dict().items():
        half = (value.bfloat16() if value.is_floating_point() else value).cpu().contiguous()
        if sum(tensor.nbytes for tensor in parts[-1].values()) + half.nbytes > PART:
            parts.append({})
        parts[-1][name] = half
    for i, part in enumerate(parts):
        with whole(folder / f"weights-{i}.safetensors") as partial:
            save_file(part, partial)
    write_text(folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """GPU kernels that always sum in one order, where there are any: a sweep resumed elsewhere starts alike."""
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


def run_method(
    run: Run,
    config: MethodConfig,
    splits: Splits,
    device: torch.device,
    on_epoch: Callable[[Epoch], None],
    data_dir: str | None,
) -> Trained:
    start, start_scores = start_of(baseline_folder(run), data_key(config), data_dir, device)
    costs = cost_matrix(config.costs, splits.classes)

    def told(line: Epoch, model: nn.Module) -> Epoch:
        more = {}
        if config.track == "test_wer":
            more["test_wer"] = evaluate(model, splits, costs).mean_cost
        on_epoch(line | more)
        return more

    options = config.options | {"seed": config.seed}
    if device.type == "cpu":
        options["precision"] = "32"  # half precision is for GPUs
    kept = run.folder / OWN / "checkpoint"
    fitted = fit(start, splits, config.method, costs, on_epoch=told, checkpoint=kept, **options)
    scores = all_scores(fitted.model, splits)
    shown = None
    if config.kind == "toy":
        before, after = panels(Toy(splits, start, fitted.model), resolution=GRID)
        shown = rounded(before), rounded(after)
    result = MethodResult(
        **vars(by_both_decisions(scores, costs)),
        baseline=by_both_decisions(start_scores, costs),
        training_loss=None,
        panels=shown,
        **about(splits, fitted.history),
    )
    return result, scores, fitted.history


def confused(scores: dict[str, Scores], costs: CostMatrix | None = None, decision: str | Rule = "argmax") -> Any:
    """Confusion counts by part."""
    costs = costs or CostMatrix.uniform(scores["test"].logits.shape[1])
    return {part: np.array(counts) for part, counts in confusions(scores, costs, decision).items()}


def by_both_decisions(scores: dict[str, Scores], costs: CostMatrix) -> BothWays:
    """Confusion counts by the largest score, and by the calibrated rule, which comes from validation.

    Where one pair alone costs, the plain rule would never predict that pair's class again; there its strength is the
    one that loses at most half a point of accuracy on validation.
    """
    single = np.count_nonzero(costs.values) == 1
    made = MinimumExpectedCost.within_budget if single else MinimumExpectedCost.calibrated
    rule = made(*scores["validation"], costs)
    return BothWays(
        **confused(scores, costs), rule=Ruled(rule.temperature, rule.strength, **confused(scores, costs, rule))
    )


def rounded(panel: ToyPanel) -> ToyPanel:
    """Four digits after the point are enough to draw it."""
    arrays: dict[str, Any] = {
        k: v.round(4) for k, v in vars(panel).items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"
    }
    return replace(panel, **arrays)


def save_logits(path: Path, scores: dict[str, Scores]) -> None:
    arrays = {part: s.logits.half().numpy() for part, s in scores.items()}
    arrays |= {f"{part}_labels": s.labels.numpy() for part, s in scores.items()}
    with whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_run(run: Run) -> Entry | None:
    if not run.done:
        return None
    history = read_history(run.folder)
    kept = sorted(set(np.linspace(0, len(history) - 1, min(len(history), SHOWN_EPOCHS)).round().astype(int).tolist()))
    shown, environment = tuple(history[i] for i in kept), read_json(run.folder / "environment.json", Environment)
    if isinstance(run.config, BaselineConfig):
        return BaselineRun(run.config, read_json(run.folder / "result.json", BaselineResult), shown, environment)
    result = read_json(run.folder / "result.json", MethodResult)
    return MethodRun(run.config, replace(result, data=None), shown, environment)


def read_history(folder: Path) -> list[record.Epoch]:
    path = folder / "history.jsonl"
    lines = [(f"{path}, line {i}", line) for i, line in enumerate(read_text(path).splitlines(), 1)]
    if not lines:
        raise InputError(f"{path} is empty; remove {folder}, and the same command does this run again")
    return [build(record.Epoch, parse_json(line, where), where) for where, line in lines]
