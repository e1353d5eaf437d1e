"""The same targeted attack in other libraries: projected sign steps in the L-infinity ball, from the sample itself.

Each entry of `PEERS` builds an attack on pixels in [0, 1] in the library's fastest configuration that we found; the attack
takes (x, y, target) and returns the adversarial samples. An absent library raises ImportError.
"""

import warnings
from collections.abc import Callable

from torch import Tensor, nn

Attack = Callable[[Tensor, Tensor, Tensor], Tensor]


def torchattacks(model: nn.Module, epsilon: float, step_size: float, steps: int, shape, classes: int) -> Attack:
    import torchattacks

    pgd = torchattacks.PGD(model, eps=epsilon, alpha=step_size, steps=steps, random_start=False)
    pgd.set_mode_targeted_by_label(quiet=True)
    return lambda x, y, target: pgd(x, target)


def foolbox(model: nn.Module, epsilon: float, step_size: float, steps: int, shape, classes: int) -> Attack:
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=next(model.parameters()).device)
    pgd = foolbox.attacks.LinfPGD(abs_stepsize=step_size, steps=steps, random_start=False)
    # `run` makes the samples; calling the attack would clone them and judge them by one more forward pass
    return lambda x, y, target: pgd.run(wrapped, x, foolbox.criteria.TargetedMisclassification(target), epsilon=epsilon)


def art(model: nn.Module, epsilon: float, step_size: float, steps: int, shape, classes: int) -> Attack:
    import torch
    from art.attacks.evasion.projected_gradient_descent.projected_gradient_descent_pytorch import (
        ProjectedGradientDescentPyTorch,
    )
    from art.estimators.classification import PyTorchClassifier

    device = next(model.parameters()).device
    classifier = PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(reduction="sum"),
        input_shape=shape,
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if device.type == "cuda" else "cpu",
    )

    def attack(x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        pgd = ProjectedGradientDescentPyTorch(
            classifier,
            eps=epsilon,
            eps_step=step_size,
            max_iter=steps,
            targeted=True,
            batch_size=len(x),  # the whole batch at once
            verbose=False,
        )
        return torch.from_numpy(pgd.generate(x.cpu().numpy(), target.cpu().numpy())).to(device)

    return attack


PEERS = {"torchattacks": torchattacks, "foolbox": foolbox, "art": art}


def build(name: str, *arguments) -> Attack:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing an older library warns about what it uses
        return PEERS[name](*arguments)
