"""Settings that suit the data and the model, where the user gives none: the same for fit, tune and compare.

They were not searched for alike: on small models CSADA has the demo's, chosen on validation splits of the digits, and CSDNN the
best of three rates there; the others have what all share. So a method that loses may only want other settings, above all on
digits against CSADA.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from csada.costs import CostMatrix
from csada.data.pmi import pmi_costs
from csada.errors import InputError
from csada.models import MODELS, Stage

Options = dict[str, Any]

# One cycle from a trained network's weights, batch norm learning: it ends in a network that errs elsewhere, and the two are
# worth averaging. What was seen is in `candidates`.
RESTARTS: dict[str, Stage] = {
    # with mixup; without, such a network stays where it is. Twice this peak was as good on three small sets, half was worse
    "plain": Stage(epochs=15, lr=0.05, batch_size=64, momentum=0.9, schedule="one_cycle"),
    # half of the peak of the recipe "fast", a quarter of its epochs
    "residual": Stage(
        epochs=15, lr=0.1, batch_size=512, momentum=0.9, weight_decay=5e-4, nesterov=True, schedule="one_cycle"
    ),
    # likewise of "pmi-fast"
    "photographs": Stage(
        epochs=8, lr=0.025, batch_size=128, momentum=0.9, weight_decay=5e-4, nesterov=True, schedule="one_cycle"
    ),
}


def restart(kind: str) -> Options:
    """Of `fit`: a restart of that kind of model."""
    options = asdict(RESTARTS[kind]) | {"freeze_norm": False}
    del options["train_only"]
    return options


# What a training is run with, by kind of model; a method's own entry says where it differs from fine_tuning. "longer"
# multiplies the epochs and takes the rate times 0.33 after each such part: the paper gives AP and SOSR 50 epochs for 10.
DEFAULTS: dict[str, dict[str, Options]] = {
    "every": {
        "fine_tuning": {"epochs": 10, "freeze_norm": True},
        "adjusted_penalty": {"longer": 5},
        "sosr": {"longer": 5},
        "csdnn": {"longer": 5, "optimizer": "adam", "lr": 1e-2},  # a network of its own, which starts from nothing
        "metacost": {"bags": 5},
    },
    "plain": {  # cnn, mlp
        "fine_tuning": {"lr": 1e-3, "batch_size": 64},
        "csada": {"tasks": 16, "step_size": 0.02, "steps": 5},  # the demo's
        "mixup": restart("plain"),
        # of 1e-3, 1e-2 and 3e-2 the cheapest on validation: one split of digits, two cost matrices
        "csdnn": {"lr": 3e-2},
    },
    "residual": {  # on images up to 64 pixels
        "fine_tuning": {"lr": 1e-4, "batch_size": 512},
        "mixup": restart("residual"),
    },
    "photographs": {  # residual networks on larger images
        "fine_tuning": {"lr": 1e-4, "batch_size": 128},
        # Raw gradients reach no target here, whatever the step size up to 0.1. Sign steps were a little cheaper than raw ones
        # on the validation part of 2,000 drawn pills; at 2e-5 accuracy held on two such sets, at 1e-4 on one of them. That
        # is all the search there was, and the rivals had none.
        "csada": {"tasks": 16, "step": "sign", "step_size": 0.01, "steps": 5, "lr": 2e-5},
        "mixup": restart("photographs"),
    },
}
TINY = 256  # values per sample up to which several threads would only wait for each other


def default_model(shape: Sequence[int]) -> str:
    if len(shape) != 3:
        return "mlp"
    return "cnn" if shape[1] == shape[2] <= 32 else "resnet9"


def kind_of(model: str, shape: Sequence[int]) -> str:
    model = model if model in MODELS else default_model(shape)
    if not model.startswith("resnet"):
        return "plain"
    return "photographs" if len(shape) == 3 and max(shape[1:]) > 64 else "residual"


def options_for(method: str, kind: str, **given: Any) -> Options:
    """Of `fit` and of the method: the defaults for that kind of model, and what is given and not None."""
    options: Options = {}
    for name in ("fine_tuning", method):
        for table in (DEFAULTS["every"], DEFAULTS[kind]):
            options |= table.get(name, {})
    options |= {name: value for name, value in given.items() if value is not None}
    if longer := options.pop("longer", None):
        options |= {"schedule": f"step:{options['epochs']}:0.33", "epochs": longer * options["epochs"]}
    return options


def threads_for(shape: Sequence[int]) -> int:
    return 1 if math.prod(shape) <= TINY else torch.get_num_threads()


def costs_for(costs: str | CostMatrix, classes: Sequence[str]) -> CostMatrix:
    """The costs in the order of the data's classes: a matrix, a CSV file, or one of uniform, pareto:SEED and pmi."""
    if isinstance(costs, CostMatrix):
        return costs.ordered(classes)
    if costs == "uniform":
        return CostMatrix.from_pairs(classes, {})
    if costs == "pmi":
        return pmi_costs().ordered(classes, "the PMI cost table")
    if costs.split(":")[0] == "pareto":
        seed = costs.removeprefix("pareto:")
        if not seed.isdecimal():
            raise InputError(f"costs {costs!r} lack a seed; write pareto:0")
        return CostMatrix(CostMatrix.pareto(len(classes), seed=int(seed)).values, classes)
    if not os.path.exists(costs):
        raise InputError(f"there is no cost table {costs}; give a CSV file, uniform, pareto:SEED or pmi")
    return CostMatrix.from_csv(costs, classes)
