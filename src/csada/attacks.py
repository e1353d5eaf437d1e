"""Algorithm 1, for a whole batch at once: targeted projected gradient ascent with rejection.

For a sample x of class y and a target z, starting from delta = 0 and only if the model predicts y,

    delta <- Proj[ delta + eta_2 * grad_delta log p_z(x + delta) ]        at most K times, and after each step
        predicted neither y nor z:  go back one step and stop             (REJECTED)
        predicted z:                stop here                             (REACHED)
        predicted y:                go on                                 (EXHAUSTED after K steps)

The forward pass that judges a step is the one whose gradient makes the next, so K steps take K + 1 forward and K backward
passes. Everything happens in the model's own input space: epsilon and step_size are in normalised units if the inputs are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from csada.errors import InputError, check_known
from csada.models.modes import borrowed_eval, check_logits, logits_of

LONGEST = 10_000  # steps: more is a slip of the hand
Bounds = tuple[float | Tensor, float | Tensor]
Forward = Callable[[Tensor], Tensor]


class Outcome(IntEnum):
    """How an attack on one sample ended."""

    SKIPPED = 0  # the model was wrong before the attack: the sample is left as it is
    REJECTED = 1  # the next step would have landed in a third class: the step before it is kept
    REACHED = 2  # the model now predicts the target
    EXHAUSTED = 3  # all K steps made, the model still predicts the truth


@dataclass(frozen=True)
class Ascent:
    """How an attack moves: its ball, its steps and the bounds that it keeps; `attack` says what each means."""

    epsilon: float = 1.0
    step_size: float = 5e-4
    steps: int = 10
    norm: str = "linf"
    step: str = "gradient"
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "step_size"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise InputError(f"{name} must be a positive number, got {value}")
        if self.steps < 1:
            raise InputError(f"steps must be at least 1, got {self.steps}")
        if self.steps > LONGEST:
            raise InputError(f"steps must be at most {LONGEST:,}, got {self.steps:,}")
        check_known("norm", self.norm, PROJECTIONS)
        check_known("step", self.step, DIRECTIONS)

    @classmethod
    def of(cls, method: object) -> Ascent:
        """The settings that a method has among its own, under the same names."""
        return cls(**{f.name: getattr(method, f.name) for f in fields(cls)})

    def placed(self, x: Tensor, delta: Tensor) -> Tensor:
        """x + delta, within the bounds."""
        return x + delta if self.bounds is None else (x + delta).clamp_min(self.bounds[0]).clamp_max(self.bounds[1])

    def moved(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """One step up the gradient, and back into the ball."""
        return PROJECTIONS[self.norm](delta + self.step_size * DIRECTIONS[self.step](gradient), self.epsilon)


@dataclass(frozen=True)
class AttackResult:
    adversarial: Tensor
    delta: Tensor
    outcome: Tensor  # [N] of Outcome
    steps: Tensor  # [N] accepted steps, 0 when skipped
    trajectory: Tensor | None = None  # [K + 1, N, ...]: delta after 0 .. K steps, where it was asked for


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor | int,
    target: Tensor | int,
    epsilon: float = 1.0,
    step_size: float = 5e-4,
    steps: int = 10,
    norm: str = "linf",
    step: str = "gradient",
    bounds: Bounds | None = None,
    *,
    forward: Forward | None = None,
    trajectory: bool = False,
) -> AttackResult:
    """Push samples x of classes y towards `target` (one class, or one per sample).

    norm: "linf" or "l2", the ball of radius epsilon. step: "gradient" (raw, as in the paper), "sign" or "l2" (the gradient
    scaled to length one). bounds: (low, high), numbers or tensors that broadcast to x, between which x + delta stays.
    forward: gives the logits of points where model(points) does not, always for the whole batch; so a text can be attacked
    at its embeddings, `lambda points: model(inputs_embeds=points, attention_mask=mask).logits`.
    """
    how = Ascent(epsilon, step_size, steps, norm, step, bounds)
    if not x.is_floating_point():
        raise InputError(f"x must be floating point, as the model takes it; got {x.dtype}: normalise it first")
    if len(x) == 0:
        raise InputError("x is empty; give at least one sample")
    y, target = (torch.as_tensor(v, device=x.device).long().expand(len(x)) for v in (y, target))
    if (same := (y == target).nonzero()).numel():
        i = int(same[0])
        raise InputError(f"sample {i}: the target {int(y[i])} is the true class; attack towards another class")
    lowest, highest = int(torch.minimum(y, target).min()), int(torch.maximum(y, target).max())
    if lowest < 0:
        raise InputError(f"class {lowest} does not exist; classes are numbered from 0")
    if bounds is not None and bool(((x < bounds[0]) | (x > bounds[1])).any()):
        raise InputError(f"x leaves the bounds before any attack: it spans {x.min():g} to {x.max():g}")

    first = True

    def checked(points: Tensor) -> Tensor:
        nonlocal first
        logits = logits_of(model(points) if forward is None else forward(points))
        if first:  # a check waits for the device; one is enough to find a broken model
            check_logits(logits)
            if highest >= logits.shape[1]:
                raise InputError(f"class {highest} does not exist: the model scores {logits.shape[1]} classes")
            first = False
        return logits

    with borrowed_eval(model):
        shrink = forward is None and pays_to_shrink(x, steps)
        return ascend(checked, x, y, target, how, trajectory=trajectory, shrink=shrink)


def ascend(
    forward: Forward,
    x: Tensor,
    y: Tensor,
    target: Tensor,
    how: Ascent,
    *,
    judge: Forward | None = None,
    trajectory: bool = False,
    shrink: bool = False,
) -> AttackResult:
    """The loop itself, without input checks. With shrink=False its shapes are static and it never waits for the device.

    judge: gives the classes of points where the predictions are not those of `forward`, whose gradient is followed.
    shrink: once half of the samples at work have finished, the model is called on the other half alone.
    """
    x = x.detach()
    delta = before = torch.zeros_like(x)
    predicted, accepted = y, torch.zeros_like(y)
    outcome = torch.full_like(y, Outcome.EXHAUSTED)
    active = torch.ones_like(y, dtype=torch.bool)
    path = [delta]
    live: Tensor | None = None  # the samples the model is called on; None: all
    for k in range(how.steps + 1):
        point = how.placed(x, delta)
        point = (point if live is None else point[live]).requires_grad_(k < how.steps)
        with torch.set_grad_enabled(k < how.steps):
            logits = forward(point)
        now = logits.detach().argmax(1) if judge is None else judge(point.detach())
        predicted = now if live is None else predicted.index_copy(0, live, now)
        right, reached = predicted == y, predicted == target
        if k == 0:
            outcome = torch.where(right, outcome, Outcome.SKIPPED)
        else:
            rejected = active & ~right & ~reached
            delta = torch.where(_wide(rejected, x), before, delta)
            outcome = torch.where(active & reached, Outcome.REACHED, outcome)
            outcome = torch.where(rejected, Outcome.REJECTED, outcome)
            accepted = accepted + (active & ~rejected)
            path.append(delta)
        active = active & right
        remaining = int(active.sum()) if shrink else len(y)
        if k == how.steps or remaining == 0:
            break
        with torch.enable_grad():  # the sum over samples: a sample's gradient must not depend on its batch
            log_p = -F.cross_entropy(logits, target if live is None else target[live], reduction="sum")
        (gradient,) = torch.autograd.grad(log_p, point)
        gradient = gradient if live is None else torch.zeros_like(x).index_copy_(0, live, gradient)
        before, delta = delta, torch.where(_wide(active, x), how.moved(delta, gradient), delta)
        if how.bounds is not None:
            delta = how.placed(x, delta) - x
        if 2 * remaining <= (len(y) if live is None else len(live)):
            live = active.nonzero()[:, 0]
    path += path[-1:] * (how.steps + 1 - len(path))
    return AttackResult(how.placed(x, delta), delta, outcome, accepted, torch.stack(path) if trajectory else None)


def boundary_distance(
    model: nn.Module, x: Tensor, *, steps: int = 50, overshoot: float = 0.02
) -> tuple[Tensor, Tensor]:
    """DeepFool: about how far (Euclidean) each sample is from the nearest decision boundary, and the class behind it.

    The model is replaced by its tangent at the current point, for which the nearest boundary is known in closed form,
    and the point walks there, a little beyond (`overshoot`), until the prediction changes; exact for a linear model. A
    sample that does not cross within `steps` has an infinite distance and keeps its own class.
    """
    x = x.detach()
    moved, crossed = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    with borrowed_eval(model), torch.enable_grad():
        for k in range(steps + 1):
            point = (x + (1 + overshoot) * moved).requires_grad_()
            logits = logits_of(model(point))
            check_logits(logits)
            if k == 0:
                own = predicted = logits.argmax(1)
            predicted = torch.where(crossed, predicted, logits.argmax(1))
            crossed = predicted != own
            if k == steps or bool(crossed.all()):
                break
            gradients = [torch.autograd.grad(each.sum(), point, retain_graph=True)[0] for each in logits.unbind(1)]
            slopes = torch.stack(gradients, 1).flatten(2)  # [N, C, values]
            slopes = slopes - slopes[torch.arange(len(x)), own][:, None]
            gaps = (logits - logits.gather(1, own[:, None])).detach().abs()
            lengths = torch.linalg.vector_norm(slopes, dim=2).clamp_min(torch.finfo(x.dtype).tiny)
            nearest = (gaps / lengths).scatter(1, own[:, None], torch.inf).argmin(1, keepdim=True)
            slope = slopes.gather(1, nearest[:, :, None].expand(-1, -1, slopes.shape[2]))[:, 0]
            # at least a rounding error's worth, so that a point on the boundary gets off it
            walk = (gaps.gather(1, nearest).clamp_min(1e-6) / lengths.gather(1, nearest) ** 2) * slope
            moved = torch.where(_wide(crossed, x), moved, moved + walk.view_as(x))
    distance = torch.linalg.vector_norm(moved.flatten(1), dim=1)
    return torch.where(crossed, distance, torch.inf), predicted


def pays_to_shrink(x: Tensor, steps: int) -> bool:
    """Leaving finished samples out waits for the device once per step: free on a CPU, worth it elsewhere in long attacks."""
    return x.is_cpu or steps >= 20


def _wide(each: Tensor, x: Tensor) -> Tensor:
    """One number per sample, shaped to broadcast over the samples' values."""
    return each.view(-1, *(1,) * (x.ndim - 1))


def _lengths(v: Tensor) -> Tensor:
    """Each sample's Euclidean length, shaped to broadcast; never 0, so that it can be divided by."""
    lengths: Tensor = torch.linalg.vector_norm(v.flatten(1), dim=1)
    return _wide(lengths.clamp_min(torch.finfo(v.dtype).tiny), v)


PROJECTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "linf": lambda delta, epsilon: delta.clamp(-epsilon, epsilon),
    "l2": lambda delta, epsilon: delta * (epsilon / _lengths(delta)).clamp_max(1),
}
DIRECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gradient": lambda gradient: gradient,
    "sign": torch.sign,
    "l2": lambda gradient: gradient / _lengths(gradient),
}
