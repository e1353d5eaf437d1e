"""How the baselines are trained, as plain values: a recipe is a few stages, one after the other on the same model.

A stage's fields are the keywords of `csada.fit`, except `train_only`: with "head", all but the last layer is frozen.
Schedules: "constant"; "step:50:0.33" multiplies the learning rate by 0.33 every 50 epochs; "one_cycle" rises to lr and
falls to zero within the stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Stage:
    epochs: int
    lr: float
    batch_size: int
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0  # of SGD
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: str = "constant"
    train_only: Literal["all", "head"] = "all"


Recipe = tuple[Stage, ...]

RECIPES: dict[str, Recipe] = {
    # section 5.1, CIFAR-10 and MNIST; the batch size is He et al.'s, the paper names none
    "paper": (Stage(epochs=300, lr=0.1, batch_size=128, momentum=0.9, weight_decay=1e-4, schedule="step:50:0.33"),),
    # the same end (training loss below 0.01) in a fifth of the epochs
    "fast": (
        Stage(epochs=60, lr=0.2, batch_size=512, momentum=0.9, weight_decay=5e-4, nesterov=True, schedule="one_cycle"),
    ),
    # networks without batch norm (cnn, mlp), which the rates above would throw off
    "small": (Stage(epochs=60, lr=0.05, batch_size=64, momentum=0.9, schedule="one_cycle"),),
    # pill images, from ImageNet weights with a new last layer
    "pmi-resnet34": (
        Stage(epochs=10, lr=1e-4, batch_size=32, optimizer="adam", train_only="head"),
        Stage(epochs=10, lr=1e-5, batch_size=32, optimizer="adam"),
        Stage(epochs=10, lr=1e-6, batch_size=32, optimizer="adam"),
    ),
    # pill images, from scratch
    "pmi-resnet9": (Stage(epochs=300, lr=0.1, batch_size=32, optimizer="adam", schedule="step:50:0.33"),),
    # pill images, from scratch in minutes; the peak is that of "fast", scaled with the batch size
    "pmi-fast": (
        Stage(epochs=30, lr=0.05, batch_size=128, momentum=0.9, weight_decay=5e-4, nesterov=True, schedule="one_cycle"),
    ),
}
