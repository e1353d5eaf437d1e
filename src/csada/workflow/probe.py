"""What the attacks of a method do to a model, on the same few samples each time, and pictures for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from csada.attacks import Outcome, attack
from csada.costs import CostMatrix, Pair
from csada.data.augment import Normalization
from csada.data.splits import Part
from csada.evidence import Attacks
from csada.metrics import REFER
from csada.models.modes import device_of

PAIRS, SAMPLES = 10, 32  # at most: pairs that are probed, training samples of each
MISTAKES, EXAMPLES = 24, 12  # pictures kept
CHUNK = 64  # samples attacked at once
ATTACK = ("epsilon", "step_size", "steps", "norm", "step", "bounds")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Probe:
    """The costliest pairs with the same few training samples each time, attacked with a method's own settings."""

    part: Part
    pairs: list[Pair]
    number: Tensor  # [N] of the pair
    sample: Tensor  # [N] index into the part
    target: Tensor  # [N]
    settings: dict[str, Any]

    @classmethod
    def of(cls, method: Any, part: Part, seed: int = 0) -> Probe | None:
        """None where the method makes no attacks, or no mistake costs anything. Few samples per pair: probing must be quick."""
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

    def __call__(self, model: nn.Module) -> tuple[Attacks, ...]:
        """How the attacks on each pair end."""
        outcome = self.run(model)[2]
        ends = [{o.name.lower(): int((outcome[self.number == i] == o).sum()) for o in Outcome} for i in self._numbers]
        return tuple(Attacks(y, z, **end) for (y, z), end in zip(self.pairs, ends, strict=True))

    def examples(self, model: nn.Module) -> Arrays:
        """Adversarial examples as training uses them, costliest pairs first; those that reached their target before others."""
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


def is_pictures(part: Part) -> bool:
    return part.x.ndim == 4 and part.x.shape[1] in (1, 3)


def pictures(x: Tensor, normalization: Normalization) -> NDArray[np.uint8]:
    """[N, H, W, 3] of what a model was given."""
    values = normalization.undo(x) / normalization.scale * 255
    rgb = values.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1)
    return np.ascontiguousarray(rgb.permute(0, 2, 3, 1).numpy())


def mistakes(part: Part, predicted: NDArray[np.int64], costs: CostMatrix) -> Arrays:
    """The costliest mistakes, with their pictures."""
    truth = part.y.numpy()
    wrong = np.flatnonzero((predicted != truth) & (predicted != REFER))
    order = np.argsort(-costs.values[truth[wrong], predicted[wrong]], kind="stable")
    index = wrong[order][:MISTAKES]
    shown = pictures(part.batch(torch.from_numpy(index)).x, part.normalization)
    return {"mistake_images": shown, "mistakes": np.stack([index, truth[index], predicted[index]], 1)}
