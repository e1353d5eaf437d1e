"""A LightningModule that was written for cross-entropy, trained by any method that is a loss, without a change to it.

    trainer = Trainer(callbacks=[CostSensitive(costs, "csada", step_size=0.02)])
    trainer.fit(module, ...)

During `fit` training_step is called as usual, for what it logs, but the loss it returns is replaced by the method's, logged as
csada_loss. Terms of your own in that loss are replaced too; to keep them, leave the callback out and call the method where
you compute the loss:  method(self, x, y).  Every validation logs csada_mean_cost and
csada_accuracy, of all processes together: ModelCheckpoint(monitor="csada_mean_cost") keeps the cheapest model.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from csada.costs import CostMatrix, did_you_mean
from csada.errors import InputError
from csada.methods import METHODS, Method
from csada.models.modes import borrowed_eval, check_labels, check_logits
from csada.torchmetrics import MeanCost


def _callback() -> Any:
    """Lightning goes by two names whose classes do not mix: the one in use, else the one that is installed."""
    installed = [name for name in ("lightning", "pytorch_lightning") if importlib.util.find_spec(name) is not None]
    if not installed:
        raise ImportError("csada.lightning needs Lightning: pip install 'csada[lightning]'")
    name = next((name for name in installed if name in sys.modules), installed[0])
    return importlib.import_module("lightning.pytorch" if name == "lightning" else name).Callback


def first_two(batch: Any) -> tuple[Tensor, Tensor]:
    """The default `unpack`: a batch begins with the samples and their labels."""
    if isinstance(batch, tuple | list) and len(batch) >= 2 and all(isinstance(v, Tensor) for v in batch[:2]):
        return batch[0], batch[1]
    raise InputError(
        f"a batch is a {type(batch).__name__}, not (x, y); give unpack=, a function from a batch to (x, y)"
    )


class CostSensitive(_callback()):  # type: ignore[misc]
    """costs, the method's name and its options, as in METHODS[method](costs, **options).

    model: the name of the submodule that maps x to logits; by default the LightningModule itself does. unpack: a function
    from a batch to (x, y). freeze_norm: batch norms keep their running statistics, as `csada.fit` has it in fine-tuning.
    """

    def __init__(
        self,
        costs: CostMatrix,
        method: str = "csada",
        *,
        model: str = "",
        unpack: Callable[[Any], tuple[Tensor, Tensor]] = first_two,
        freeze_norm: bool = False,
        **options: Any,
    ) -> None:
        if method not in METHODS:
            raise InputError(f"unknown method {method!r}{did_you_mean(method, METHODS)}")
        _, *known = (f.name for f in dataclasses.fields(METHODS[method]))
        for name in options:
            if name not in known:
                raise InputError(f"unknown option {name!r} for {method}{did_you_mean(name, known)}")
        self.method: Method = METHODS[method](costs, **options)
        self.model, self.unpack, self.freeze_norm = model, unpack, freeze_norm
        self.validation = MeanCost(costs)
        self.borrowed = ExitStack()
        self.checked = False

    def net(self, module: Any) -> nn.Module:
        try:
            found: nn.Module = module.get_submodule(self.model)
        except AttributeError as error:
            raise InputError(f"model={self.model!r}: {error}") from None
        return found

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        net, step = self.net(module), module.training_step
        if not module.automatic_optimization:
            raise InputError(f"{type(module).__name__} optimises by hand; call METHODS[...](costs)(self, x, y) there")
        if "training_step" in vars(module):
            raise InputError(f"training_step of this {type(module).__name__} is replaced already; use one callback")
        if not _is_a_loss(self.method, net):
            raise InputError(
                f"{type(self.method).__name__} changes the model or the data before training; use csada.fit"
            )

        @functools.wraps(step)  # Lightning looks at the arguments that it takes
        def replaced(batch: Any, *rest: Any) -> dict[str, Any] | None:
            output = step(batch, *rest)
            if output is None:  # this batch is to be skipped
                return None
            kept = {k: v for k, v in output.items() if k != "loss"} if isinstance(output, Mapping) else {}
            del output  # and with it the memory of its backward pass
            x, y = self.unpack(batch)
            loss = self.method(net, x, y)
            module.log("csada_loss", loss.detach(), batch_size=len(y))
            return kept | {"loss": loss}

        module.training_step = replaced
        self.borrowed.callback(delattr, module, "training_step")
        for norm in self.norms(net):
            self.borrowed.callback(norm.train, norm.training)
        self.checked = False

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        self.borrowed.close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.borrowed.close()

    def norms(self, net: nn.Module) -> list[nn.Module]:
        """The batch norms to be frozen."""
        return [m for m in net.modules() if isinstance(m, _BatchNorm)] if self.freeze_norm else []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        for norm in self.norms(self.net(module)):
            norm.eval()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Look at the first batch before any work."""
        if self.checked:
            return
        (x, y), net, classes = self.unpack(batch), self.net(module), len(self.method.costs)
        if hasattr(self.method, "epsilon") and not (x.is_floating_point() and x.dtype.itemsize >= 4):
            raise InputError(f"x is {x.dtype}; an attack takes small steps in float32: precision='bf16-mixed' keeps it")
        check_labels(y, classes)
        with borrowed_eval(net), torch.no_grad(), trainer.precision_plugin.forward_context():
            check_logits(net(x[:2]), classes)
        self.checked = True

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        self.validation.to(module.device).reset()

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        x, y = self.unpack(batch)
        with trainer.precision_plugin.forward_context():
            logits = self.net(module)(x)
        self.validation.update(logits, y)

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        cost = self.validation.compute()
        with self.validation.sync_context():
            counts = self.validation.confusion  # of all processes
        module.log_dict({"csada_mean_cost": cost, "csada_accuracy": counts.trace() / counts.sum()}, sync_dist=True)


def _is_a_loss(method: Method, net: nn.Module) -> bool:
    """Whether there is nothing to prepare; a method that resamples or relabels refuses to do so without data."""
    try:
        return method.prepare(net, None)[0] is net
    except InputError:
        return False
