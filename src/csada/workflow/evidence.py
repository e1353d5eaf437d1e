"""What a model shows on data: counts and scores, the attacks that training made on it, pictures of its worst mistakes.

`csada fit` leaves all of it beside the model, so that a report needs neither the data nor the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from csada.attacks import Outcome, attack
from csada.costs import CostMatrix, Pair, name_changes
from csada.data.augment import Normalization
from csada.data.splits import Part, Splits
from csada.decisions import Abstention, MinimumExpectedCost, Rule, argmax, from_plain, threshold_for_budget
from csada.errors import InputError
from csada.evaluation import Scores, evaluate_scores, predict_logits
from csada.metrics import REFER, Evaluation, PairError, confusion_counts
from csada.models import load, read_config
from csada.models.modes import device_of

PARTS = ("validation", "test")
PAIRS, SAMPLES = 10, 32  # at most: pairs that are probed, training samples of each
MISTAKES, EXAMPLES = 24, 12  # pictures kept
CHUNK = 64  # samples attacked at once
ATTACK = ("epsilon", "step_size", "steps", "norm", "step", "bounds")

Arrays = dict[str, NDArray[Any]]


# -- the data as a saved model takes them ------------------------------------------------------------


def input_of(splits: Splits) -> dict[str, Any]:
    """A sample as it is stored, in the shape that a model sees: the bundle's `input`."""
    dtype = "uint8" if splits.train.x.dtype == torch.uint8 else "float32"
    return {"shape": list(splits.shape), "dtype": dtype} | ({"columns": list(splits.columns)} if splits.columns else {})


def fitting(splits: Splits, config: Mapping[str, Any], name: str, *, every_class: bool = True) -> Splits:
    """The data as the saved model knows them: its classes and columns in its order, normalised as in its training.

    Other classes, columns and shapes are refused; without `every_class` the data may lack some.
    """
    classes = tuple(config["classes"])
    if set(splits.classes) - set(classes) or (every_class and set(classes) - set(splits.classes)):
        raise InputError(f"{splits.name} has other classes than {name}: {name_changes(splits.classes, classes)}")
    if config["input"] and tuple(config["input"]["shape"]) != splits.shape:
        needed, given = (" x ".join(map(str, s)) for s in (config["input"]["shape"], splits.shape))
        raise InputError(f"{name} takes samples of {needed}; those of {splits.name} are {given}: see --size")
    places, columns = None, tuple((config["input"] or {}).get("columns") or splits.columns)
    if splits.columns and columns != splits.columns:
        if changes := name_changes(splits.columns, columns):
            raise InputError(f"{splits.name} has other columns than {name}: {changes}")
        places = torch.tensor([splits.columns.index(column) for column in columns])
    number, own = torch.tensor([classes.index(c) for c in splits.classes]), splits.train.normalization
    if (saved := config["normalization"]) is not None:
        own = Normalization(tuple(saved["mean"]), tuple(saved["std"]), saved["scale"])

    def known(part: Part) -> Part:
        x = part.x if places is None else part.x[:, places]
        return replace(part, x=x, y=number[part.y], normalization=own)

    train, validation, test = map(known, (splits.train, splits.validation, splits.test))
    return replace(splits, train=train, validation=validation, test=test, classes=classes, columns=columns)


# -- counts ------------------------------------------------------------------------------------------


def counts(scores: Scores, rule: Rule = argmax) -> list[list[int]]:
    """[K, K]: how often each class was called each; where the rule refers cases, they are one more column."""
    classes = scores.logits.shape[1]
    columns = classes + isinstance(rule, Abstention)
    predicted = np.asarray(rule(scores.logits))
    table = confusion_counts(scores.labels, np.where(predicted == REFER, classes, predicted), columns)
    rows: list[list[int]] = table[:classes].tolist()
    return rows


def rule_for(scores: Scores, costs: CostMatrix, budget: float, refer: float) -> MinimumExpectedCost | Abstention:
    """The rule for a model, from its scores on validation: the cheapest that loses at most `budget` of the accuracy.

    `refer` is the share of cases that may be left to a person: those whose decision is expected to cost most.
    """
    rule = MinimumExpectedCost.within_budget(*scores, costs, budget)
    return Abstention(rule, threshold_for_budget(scores.logits, rule, refer)) if refer > 0 else rule


def score_arrays(scores: Mapping[tuple[str, str], Scores]) -> Arrays:
    """Logits by (model, part) and the labels of the parts, small enough to be kept."""
    largest = torch.finfo(torch.float16).max
    arrays = {f"{name}_{part}": s.logits.clamp(-largest, largest).half().numpy() for (name, part), s in scores.items()}
    return arrays | {f"{part}_labels": s.labels.numpy() for (_, part), s in scores.items()}


# -- attacks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """The dearest pairs with the same few training samples each time, attacked with a method's own settings."""

    part: Part
    pairs: list[Pair]
    number: Tensor  # [N] of the pair
    sample: Tensor  # [N] index into the part
    target: Tensor  # [N]
    settings: dict[str, Any]

    @classmethod
    def of(cls, method: Any, part: Part, seed: int = 0) -> Probe | None:
        """None where the method makes no attacks, or no mistake costs anything.

        So few samples a pair that looking at all of them takes little of an epoch.
        """
        if not all(hasattr(method, name) for name in ATTACK[:3]):
            return None
        rng, y = np.random.default_rng(seed), part.y.numpy()
        most = min(max(len(part) // 200, 4), SAMPLES)
        chosen = {k: rng.permutation(np.flatnonzero(y == k))[:most] for k in range(len(method.costs))}
        pairs = [(y, z) for y, z in method.costs.top_pairs(PAIRS) if method.costs[y, z] > 0 and len(chosen[y])]
        if not pairs:
            return None
        sample = [chosen[truth] for truth, _ in pairs]
        lengths = torch.tensor([len(rows) for rows in sample])
        targets = torch.tensor([z for _, z in pairs])
        settings = {name: getattr(method, name) for name in ATTACK if hasattr(method, name)}
        number = torch.arange(len(pairs)).repeat_interleave(lengths)
        return cls(part, pairs, number, torch.from_numpy(np.concatenate(sample)), targets[number], settings)

    def run(self, model: nn.Module, only: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(samples, perturbations, outcomes, accepted steps) on the CPU, of all or of the attacks `only`."""
        device, found = device_of(model), []
        only = torch.arange(len(self.sample)) if only is None else only
        for at in torch.split(only, CHUNK):
            x, y, _ = self.part.batch(self.sample[at], device)
            r = attack(model, x, y, self.target[at].to(device), **self.settings)
            found.append([t.cpu() for t in (x, r.delta, r.outcome, r.steps)])
        x, delta, outcome, steps = map(torch.cat, zip(*found, strict=True))
        return x, delta, outcome, steps

    def __call__(self, model: nn.Module) -> list[dict[str, int]]:
        """How the attacks on each pair end."""
        outcome = self.run(model)[2]
        ends = [{o.name.lower(): int((outcome[self.number == i] == o).sum()) for o in Outcome} for i in self._numbers]
        return [{"truth": y, "predicted": z} | end for (y, z), end in zip(self.pairs, ends, strict=True)]

    def examples(self, model: nn.Module) -> Arrays:
        """Adversarial examples as training uses them, dearest pairs first; those that reached their target before others."""
        most = max(EXAMPLES // len(self.pairs), 2)
        tried = torch.cat([(self.number == i).nonzero()[: 2 * most, 0] for i in self._numbers[: EXAMPLES // 2 + 1]])
        x, delta, outcome, steps = self.run(model, tried)
        kept: list[int] = []
        for i in self._numbers:
            used = ((steps > 0) & (self.number[tried] == i)).nonzero()[:, 0].tolist()
            kept += sorted(used, key=lambda j: int(outcome[j] != Outcome.REACHED))[:most]
        if not kept:
            return {}
        at = torch.tensor(kept[:EXAMPLES])
        own, moved = self.part.normalization, delta[at]
        pixel = (own.undo(moved) - own.undo(torch.zeros_like(moved))).abs().flatten(1).amax(1) / own.scale * 255
        return {
            "original_images": pictures(x[at], own),
            "adversarial_images": pictures(x[at] + moved, own),
            "examples": torch.stack([self.part.y[self.sample[tried[at]]], self.target[tried[at]]], 1).numpy(),
            "perturbations": torch.stack([pixel, moved.flatten(1).norm(dim=1)], 1).numpy(),
        }

    @property
    def _numbers(self) -> range:
        return range(len(self.pairs))


# -- pictures ----------------------------------------------------------------------------------------


def is_pictures(part: Part) -> bool:
    return part.x.ndim == 4 and part.x.shape[1] in (1, 3)


def pictures(x: Tensor, normalization: Normalization) -> NDArray[np.uint8]:
    """[N, H, W, 3] of what a model was given."""
    values = normalization.undo(x) / normalization.scale * 255
    rgb = values.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1)
    return np.ascontiguousarray(rgb.permute(0, 2, 3, 1).numpy())


def mistakes(part: Part, predicted: NDArray[np.int64], costs: CostMatrix) -> Arrays:
    """The dearest mistakes, with their pictures."""
    truth = part.y.numpy()
    wrong = np.flatnonzero((predicted != truth) & (predicted != REFER))
    order = np.argsort(-costs.values[truth[wrong], predicted[wrong]], kind="stable")
    index = wrong[order][:MISTAKES]
    shown = pictures(part.batch(torch.from_numpy(index)).x, part.normalization)
    return {"mistake_images": shown, "mistakes": np.stack([index, truth[index], predicted[index]], 1)}


# -- a saved model on any data -----------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A saved model's decisions on data; `decision` says how they were made."""

    evaluation: Evaluation
    decision: str

    @property
    def confused(self) -> list[PairError]:
        """The pairs that were mixed up most often."""
        table = self.evaluation.confusion * ~np.eye(len(self.evaluation.costs), dtype=bool)
        order = np.argsort(-table, axis=None, kind="stable")[:5]
        pairs = [divmod(int(i), len(table)) for i in order if table.ravel()[i] > 0]
        return [self.evaluation.pair_error(y, z) for y, z in pairs]


DECISIONS = ("bundle", "argmax", "rule")


def judge(
    folder: Path,
    splits: Splits,
    costs: CostMatrix,
    *,
    part: str = "test",
    decision: str = "bundle",
    device: torch.device | None = None,
) -> Judged:
    """The model of `folder` on one part of the data, or on all; classes are matched by name, and some may be missing.

    decision: the bundle's own rule, argmax, or the rule of least expected cost under `costs`, calibrated on the data's
    validation part.
    """
    parts = ("train", *PARTS)
    if part not in (*parts, "all"):
        raise InputError(f"unknown part {part!r}; known: {', '.join(parts)}, all")
    if decision not in DECISIONS:
        raise InputError(f"unknown decision {decision!r}; known: {', '.join(DECISIONS)}")
    config = read_config(folder)
    splits = fitting(splits, config, str(folder), every_class=False)
    model = load(folder).to(device or "cpu")

    def scored(*names: str) -> Scores:
        found = [predict_logits(model, splits, part=name) for name in names]
        return Scores(*map(torch.cat, zip(*found, strict=True)))

    rule: Rule = argmax
    if decision == "rule":
        rule, told = MinimumExpectedCost.calibrated(*scored("validation"), costs), "least expected cost"
    elif decision == "bundle" and config["decision"] is not None:
        rule, told = from_plain(config["decision"], splits.classes), "the bundle's rule"
    else:
        told = "the most probable class"
    return Judged(evaluate_scores(scored(*(parts if part == "all" else (part,))), costs, rule), told)


def costs_in(folder: Path) -> CostMatrix | None:
    """The costs that the model of `folder` was fitted with; None where it was trained without."""
    config = read_config(folder)
    return None if config["decision"] is None else CostMatrix(config["decision"]["costs"], config["classes"])
