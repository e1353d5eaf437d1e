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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from csada.classifier import Classifier
from csada.costs import CostMatrix
from csada.data import load
from csada.data.splits import PARTS, Splits
from csada.decisions import MinimumExpectedCost
from csada.errors import RunError
from csada.evaluation import Scores, evaluate, predict_logits
from csada.evidence import HELD_OUT
from csada.files import whole, write_text
from csada.folders import OWN
from csada.models import arguments_for, create, load_weights
from csada.models.modes import best_device, borrowed_threads
from csada.paper.record import cost_matrix
from csada.paper.spec import Config, describe, epochs, stages
from csada.paper.toy import Toy, panels
from csada.paper.toy_figure import ToyPanel
from csada.reading import plain, read_json, write_json
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

Entry = dict[str, Any]


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
    config = json.loads(text)
    return load(config["data"], data_dir, config["data_scale"], config["data_seed"], **config["data_options"])


@lru_cache(maxsize=2)
def start_of(
    folder: Path, text: str, data_dir: str | None, device: torch.device
) -> tuple[nn.Module, dict[str, Scores]]:
    """A baseline as its runs take it up."""
    model = Classifier.load(folder / "model", device=device).network
    return model, all_scores(model, data_of(text, data_dir))


def baseline_folder(run: Run) -> Path:
    folder: Path = run.folder.parents[1] / BASELINES / run.config["baseline"]
    return folder


def data_key(config: Config) -> str:
    return json.dumps({k: v for k, v in config.items() if k.startswith("data")}, sort_keys=True)


def all_scores(model: nn.Module, splits: Splits) -> dict[str, Scores]:
    return {part: predict_logits(model, splits, part=part) for part in HELD_OUT}


def execute(run: Run, data_dir: Any, tell: Tell) -> None:
    """One run from its start, or from where it was left, to its result."""
    config, folder = run.config, run.folder
    if config["kind"] != "baseline" and not (baseline_folder(run) / "result.json").exists():
        raise RunError("its baseline is not trained")
    write_json(folder / "config.json", config)
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

        if config["kind"] == "baseline":
            result, scores, history = run_baseline(run, splits, device, on_epoch)
        else:
            result, scores, history = run_method(run, splits, device, on_epoch, where)
    samples = {part: len(getattr(splits, part)) for part in PARTS}
    result |= {"seconds": sum(line["seconds"] for line in history)}
    result |= {"data": {"name": splits.name, "classes": list(splits.classes), "samples": samples}}
    save_logits(folder / "logits.npz", scores)
    write_text(folder / "history.jsonl", "".join(json.dumps(line) + "\n" for line in history))
    write_json(folder / "result.json", result)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


Trained = tuple[Entry, dict[str, Scores], list[Epoch]]


def run_baseline(run: Run, splits: Splits, device: torch.device, on_epoch: Callable[[Epoch], None]) -> Trained:
    """Its recipe; every stage has its checkpoint, and one that was finished is only read.

    Trained twice, on two machines, a recipe may give two models. One that is carried along is trained once, rounded to
    half precision before anything starts from it, and read on every other machine.
    """
    config = run.config
    arguments = arguments_for(config["model"], splits.shape)
    net = create(config["model"], len(splits.classes), seed=config["seed"], **arguments)
    if "pretrained" in config:
        load_weights(net, config["pretrained"], seed=config["seed"])
    net = net.to(device)
    kept = None if run.carried is None else run.carried / run.folder.name
    if kept is None or not (kept / "history.jsonl").exists():
        with deterministic(device):
            net, history = train_stages(net, splits, stages(config), config["seed"], on_epoch, run.folder / OWN)
        if kept is not None:
            carry(net, kept, history)
    if kept is not None:
        history = [json.loads(line) for line in (kept / "history.jsonl").read_text().splitlines()]
        net.load_state_dict({k: v for path in kept.glob("*.safetensors") for k, v in load_file(path).items()})
    scores = all_scores(net, splits)
    logits, labels = predict_logits(net, splits, part="train")
    result = confusions(scores, CostMatrix.uniform(len(splits.classes)))
    result["training_loss"] = float(F.cross_entropy(logits, labels))  # without augmentation: does it fit its data?
    Classifier.of(net, splits, architecture=config["model"], arguments=arguments).save(run.folder / "model")
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
    run: Run, splits: Splits, device: torch.device, on_epoch: Callable[[Epoch], None], data_dir: str | None
) -> Trained:
    config = run.config
    start, start_scores = start_of(baseline_folder(run), data_key(config), data_dir, device)
    costs = cost_matrix(config["costs"], splits.classes)

    def told(line: Epoch, model: nn.Module) -> Epoch:
        more = {}
        if config.get("track") == "test_wer":
            more["test_wer"] = evaluate(model, splits, costs).mean_cost
        on_epoch(line | more)
        return more

    options = config["options"] | {"seed": config["seed"]}
    if device.type == "cpu":
        options["precision"] = "32"  # half precision is for GPUs
    kept = run.folder / OWN / "checkpoint"
    fitted = fit(start, splits, config["method"], costs, on_epoch=told, checkpoint=kept, **options)
    scores = all_scores(fitted.model, splits)
    result = by_both_decisions(scores, costs) | {
        "baseline": by_both_decisions(start_scores, costs),
        "training_loss": None,
    }
    if config["kind"] == "toy":
        result["panels"] = [rounded(p) for p in panels(Toy(splits, start, fitted.model), resolution=GRID)]
    return result, scores, fitted.history


def by_both_decisions(scores: dict[str, Scores], costs: CostMatrix) -> Entry:
    """Confusion counts by the largest score, and by the calibrated rule, which comes from validation.

    Where one pair alone costs, the plain rule would never predict that pair's class again; there its strength is the
    one that loses at most half a point of accuracy on validation.
    """
    single = np.count_nonzero(costs.values) == 1
    made = MinimumExpectedCost.within_budget if single else MinimumExpectedCost.calibrated
    rule = made(*scores["validation"], costs)
    fitted = {"temperature": rule.temperature, "strength": rule.strength}
    return confusions(scores, costs) | {"rule": fitted | confusions(scores, costs, rule)}


def rounded(panel: ToyPanel) -> Entry:
    """Four digits after the point are enough to draw it."""
    values = {k: v.round(4) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for k, v in vars(panel).items()}
    found: Entry = plain(values)
    return found


def save_logits(path: Path, scores: dict[str, Scores]) -> None:
    arrays = {part: s.logits.half().numpy() for part, s in scores.items()}
    arrays |= {f"{part}_labels": s.labels.numpy() for part, s in scores.items()}
    with whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_run(run: Run) -> Entry | None:
    if not run.done:
        return None
    history = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
    kept = sorted(set(np.linspace(0, len(history) - 1, min(len(history), SHOWN_EPOCHS)).round().astype(int).tolist()))
    result, about = (read_json(run.folder / name, dict) for name in ("result.json", "environment.json"))
    return {"config": run.config, "result": result, "history": [history[i] for i in kept], "environment": about}
