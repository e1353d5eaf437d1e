"""The data sets of the study, and what is trained on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from csada.data import load
from csada.data.splits import Splits, proportional


@dataclass(frozen=True)
class Source:
    """One data set of the study. group: the classes on one side of the block problems; targets: what networks are aimed at."""

    title: str
    model: str
    baselines: int = 2
    splits: bool = False  # every baseline has a split of its own
    folds: bool = False  # members are scored out of fold too
    group: tuple[int, ...] | None = None
    sides: str = ""
    targets: tuple[str, ...] = ("pareto:0", "block:10:both")
    aimed: tuple[int, ...] = (0, 1)  # baselines of which networks are aimed at these
    data: str | None = None  # if not the name
    samples: int | None = None  # training samples, where not all are used
    epochs: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # method, or "METHOD pairs" for single pairs -> experiment and scale that say how it is trained; else as `csada fit` does
    rivals: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)

    def load(self, name: str, seed: int) -> Splits:
        seed = seed if self.splits else 0
        if name in ("breast_cancer", "wine"):
            from csada.paper.tabular import load as load_table

            return load_table(name, seed)[0]
        splits = load(self.data or name, seed=seed, **self.options)
        if self.samples is None:
            return splits
        return replace(splits, train=splits.train.take(proportional(splits.train.y.numpy(), self.samples, seed)))


LOW, SIDES = tuple(range(5)), "digits below 5 and the others"
HEART = (0, 9, 10, 15, 16, 17)  # furosemide, metoprolol, amiodarone and amlodipine
TARGETS = (  # three of each kind and five pairs
    *("pareto:0", "pareto:1", "pareto:2", "pmi:0", "pmi:1", "pmi:2", "block:10:both", "block:10:out", "block:10:in"),
    *("pairs:0", "pairs:1", "pairs:2", "pairs:3", "pairs:4"),
)
TWO_CLASSES = (*TARGETS[:3], "pmi:0", "pmi:3", *TARGETS[-5:-3])  # all that are different
THREE_CLASSES = (*TARGETS[:3], "pmi:0", "pmi:1", "pmi:3", *TARGETS[-5:])
SOURCES = {
    "cifar10": Source(
        "CIFAR-10",
        "resnet34",
        3,
        group=(0, 1, 8, 9),
        sides="vehicles and animals",
        targets=TARGETS,
        aimed=(2,),
        rivals={
            "csada": ("table-cifar10", "fast"),
            "csada pairs": ("failure-cifar10", "fast"),
            "adjusted_penalty": ("table-cifar10", "fast"),
            "sosr": ("table-cifar10", "fast"),
        },
    ),
    "mnist": Source("MNIST", "cnn", group=LOW, sides=SIDES, data="mnist", epochs=15, targets=TARGETS, aimed=(0,)),
    "mnist_few": Source(
        "MNIST, 2,000 images", "cnn", group=LOW, sides=SIDES, data="mnist", samples=2000, epochs=15, targets=()
    ),
    "digits": Source("digits", "cnn", 10, True, group=LOW, sides=SIDES, targets=TARGETS, aimed=(3,)),
    "breast_cancer": Source("breast cancer", "mlp", 20, True, True, targets=TWO_CLASSES, aimed=tuple(range(10, 20))),
    "wine": Source("wine", "mlp", 30, True, True, targets=THREE_CLASSES, aimed=tuple(range(10, 20))),
    "pills": Source(
        "drawn pill bottles",
        "resnet9",
        group=HEART,
        sides="heart drugs and the others",
        targets=TARGETS,
        aimed=(0,),
        options={"size": 112},
        rivals=dict.fromkeys(("adjusted_penalty", "sosr"), ("table-pmi-resnet9", "chosen")),
    ),
}
