"""The attack on a linear model, in closed form. With logits W x + b and p = softmax(W x + b),

    grad_x log p_z = w_z - sum_k p_k w_k                                                     (`linear_direction`)

For two classes that is (1 - p_z)(w_z - w_y): its direction never changes, so within the ball the maximiser of log p_z
is one step of length epsilon along w_z - w_y. For more classes the same point maximises the margin of z over the truth.
"""

from __future__ import annotations

from torch import Tensor, nn

from csada.attacks import DIRECTIONS, PROJECTIONS
from csada.errors import check_known

STEPS = {"linf": "sign", "l2": "l2"}  # the step that reaches farthest in each ball


def linear_direction(model: nn.Linear, x: Tensor, target: Tensor) -> Tensor:
    """[N, F]: the gradient of log p_target, without automatic differentiation."""
    weight = model.weight.detach()
    p: Tensor = model(x).detach().softmax(1)
    return weight[target] - p @ weight


def linear_maximiser(
    model: nn.Linear, x: Tensor, y: Tensor, target: Tensor, epsilon: float, norm: str = "linf"
) -> Tensor:
    """[N, F]: the point of the ball around each x where `target` beats y by most."""
    check_known("norm", norm, PROJECTIONS)
    weight = model.weight.detach()
    return x + epsilon * DIRECTIONS[STEPS[norm]](weight[target] - weight[y])
