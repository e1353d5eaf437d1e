"""How `fit` descends: every option of the loop, checked where it comes in; all other options are the method's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from csada.costs import CostMatrix, did_you_mean
from csada.errors import InputError
from csada.methods import METHODS, Method
from csada.reading import fields_from

LONGEST = 1_000_000  # epochs: more is a slip of the hand


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How `fit` descends, whatever it descends on."""

    epochs: int = 10
    lr: float = 1e-4
    batch_size: int = 512
    seed: int = 0
    optimizer: str = "sgd"  # or "adam"
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: str = "constant"  # or "step:N:F" (times F every N epochs) or "one_cycle"
    freeze_norm: bool | None = None  # None: batch norm learns under cross_entropy and is frozen when fine-tuning
    precision: str = "32"  # or "bf16": autocast; weights, and what the attack adds to the samples, stay as they are
    graph: bool = True  # on a GPU: capture the step as a CUDA graph where that can be done
    # the rest says who does the work, not what comes of it; so it is no part of what a checkpoint must agree with
    devices: int | None = field(default=None, repr=False)  # processes a node; None: one, or all that torchrun started
    num_nodes: int = field(default=1, repr=False)
    max_batch: int | str | None = field(default=None, repr=False)  # samples at once; "auto": halved until they fit

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "devices", "num_nodes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if self.epochs > LONGEST:
            raise InputError(f"epochs must be at most {LONGEST:,}, got {self.epochs:,}")
        if self.max_batch not in (None, "auto") and not (isinstance(self.max_batch, int) and self.max_batch > 0):
            raise InputError(f"max_batch must be a number of samples or 'auto', got {self.max_batch!r}")
        for name in ("lr", "weight_decay", "momentum", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} must be zero or more, got {getattr(self, name)}")
        if self.optimizer not in ("sgd", "adam"):
            raise InputError(f"unknown optimizer {self.optimizer!r}; known: sgd, adam")
        if self.precision not in ("32", "bf16"):
            raise InputError(f"unknown precision {self.precision!r}; known: 32, bf16")
        self.lr_at(0, 1)  # refuses an unknown schedule

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step, counted over the whole run."""
        kind, *numbers = self.schedule.split(":")
        if kind == "constant" and not numbers:
            return self.lr
        if kind == "step" and len(numbers) == 2:
            every, factor = int(numbers[0]), float(numbers[1])
            return self.lr * factor ** (step // steps_per_epoch // every)
        if kind == "one_cycle" and not numbers:
            total = self.epochs * steps_per_epoch
            warm = 0.3 * total
            if step < warm:  # up from lr/25 ...
                return self.lr * (1 / 25 + (1 - 1 / 25) * step / warm)
            done = (step - warm) / max(total - warm, 1)
            return self.lr * 0.5 * (1 + math.cos(math.pi * done))  # ... and down to nothing
        raise InputError(f"unknown schedule {self.schedule!r}; known: constant, step:EPOCHS:FACTOR, one_cycle")

    def optimiser(self, parameters: Any) -> torch.optim.Optimizer:
        """On a GPU the rate is a tensor there, which a captured step reads anew each time."""
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            raise InputError("every parameter of the model is frozen; unfreeze what is to be trained")
        cuda = trained[0].is_cuda
        lr = torch.tensor(float(self.lr), device=trained[0].device) if cuda else self.lr
        if self.optimizer == "adam":
            return torch.optim.Adam(trained, lr=lr, weight_decay=self.weight_decay, fused=cuda, capturable=cuda)
        return torch.optim.SGD(
            trained, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov, fused=cuda
        )


SETTINGS = tuple(f.name for f in dataclasses.fields(Settings))


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what `Settings` takes, each of its type; what is left for the method)."""
    given = {k: v for k, v in options.items() if k in SETTINGS}
    if given.get("precision") == 32:  # a number where it was read from a command line
        given["precision"] = "32"
    return fields_from(Settings, given, "fit"), {k: v for k, v in options.items() if k not in SETTINGS}


def make_method(method: str | Method, costs: CostMatrix, options: dict[str, Any], costs_given: bool) -> Method:
    """A method by name with its options, or one that was made already."""
    if not isinstance(method, str):
        if options:
            name, kind = next(iter(options)), type(method).__name__
            raise InputError(f"unknown option {name!r}; options of {kind} go into its own call")
        return method
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}{did_you_mean(method, METHODS)}")
    if not costs_given and method != "cross_entropy":
        raise InputError(f"method {method!r} needs costs=; CostMatrix.from_pairs makes them from named pairs")
    known = [f.name for f in dataclasses.fields(METHODS[method])]
    for name in options:
        if name not in known or name == "costs":
            raise InputError(f"unknown option {name!r} for {method}{did_you_mean(name, [*known[1:], *SETTINGS])}")
    made: Method = METHODS[method](costs, **fields_from(METHODS[method], options, method))
    return made
