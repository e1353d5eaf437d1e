"""The same step as a CUDA graph: draw, attack, descend and update in a single launch.

Small batches are bound by the host that launches thousands of kernels, not by arithmetic; a graph launches them all at once.
Capturing needs a rehearsal, which changes weights, momenta and batch-norm statistics: all are put back. A graph draws from
generators of its own, which take over the caller's state before each launch and hand it back after. So a captured run and an
eager one draw the same numbers and differ by rounding alone, and a capture that fails leaves the caller's generators usable.

A graph repeats what the device did, and nothing that Python did: a counter or a random number of Python's would be frozen. So
only what is known to do without is captured: csada's methods and models, PyTorch's layers, and whatever says `static = True`.

cuDNN's search for its fastest kernels (torch.backends.cudnn.benchmark) is left as the caller has it: it makes a step 5 % faster
and takes as long as dozens of epochs save.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from csada.data.splits import Batch
from csada.methods import Method
from csada.methods.csada import CSADA
from csada.models.modes import changed

log = logging.getLogger("csada")

Step = Callable[..., Tensor]  # (batch, generator), and capacity= for CSADA


class Graphs:
    """A step's CUDA graphs: for batches of one shape, one graph for each number of tasks that they need."""

    def __init__(self, method: Method, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.method, self.model, self.optimizer = method, model, optimizer
        networks = (model, *(value for value in vars(method).values() if isinstance(value, nn.Module)))
        self.usable = says_static(method) and all(map(is_static, networks))
        self.shape: torch.Size | None = None
        self.captured: dict[int | None, CapturedStep] = {}
        self.memory: Any = None  # one pool for all: they never run at the same time

    def __call__(self, step: Step, batch: Batch, generator: torch.Generator) -> Tensor | None:
        """The step on this batch; None where it is for the eager step to do.

        The step is not kept: its owner, which keeps the graphs, would free their memory only when Python looks for cycles.
        """
        self.shape = self.shape or batch.x.shape
        if not self.usable or batch.x.shape != self.shape:
            return None
        capacity = None
        if isinstance(self.method, CSADA) and (capacity := self.method.capacity(self.model, batch.y)) is None:
            return None
        with torch.cuda.device(batch.x.device):
            if capacity not in self.captured and not self.capture(step, batch, generator, capacity):
                return None
            return self.captured[capacity](batch, generator)

    def capture(self, step: Step, batch: Batch, generator: torch.Generator, capacity: int | None) -> bool:
        """Whether it worked; where it did not, the reason is logged and the run continues without graphs."""
        before = State(self.model, self.optimizer)
        sizes = {} if capacity is None else {"capacity": capacity}
        self.memory = self.memory or torch.cuda.graph_pool_handle()
        try:
            captured = CapturedStep(lambda *of: step(*of, **sizes), batch, generator, self.memory)
            self.captured[capacity] = captured
        except RuntimeError as error:
            log.warning("the step runs eagerly: it cannot be captured as a CUDA graph (%s)", str(error).splitlines()[0])
            torch.cuda.synchronize()
            self.usable = False
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            before.restore()
        return self.usable


class CapturedStep:
    def __init__(self, step: Step, batch: Batch, generator: torch.Generator, memory: Any) -> None:
        self.batch = Batch(batch.x.clone(), batch.y.clone(), None if batch.costs is None else batch.costs.clone())
        self.graph = torch.cuda.CUDAGraph()
        own = generator.clone_state()
        self.graph.register_generator_state(own)
        with own_default_generator(batch.x.device) as own_default:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step(self.batch, own)  # a rehearsal: libraries load their kernels, the optimiser makes its moments
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self.graph, pool=memory):
                self.loss = step(self.batch, own)
        self.own, self.own_default = own, own_default

    def __call__(self, batch: Batch, generator: torch.Generator) -> Tensor:
        for static, new in zip(self.batch, batch, strict=True):
            if static is not None and new is not None:
                static.copy_(new)
        pairs = (self.own, generator), (self.own_default, default_generator(batch.x.device))
        for own, theirs in pairs:
            own.set_state(theirs.get_state())
        self.graph.replay()
        for own, theirs in pairs:
            theirs.set_state(own.get_state())
        return self.loss


class State:
    """Everything that a rehearsal changes, as it was before."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.values = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
        self.moments = {id(t): t.clone() for t in self._moments()}

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, before in self.values:
            tensor.copy_(before)
        for tensor in self._moments():
            moment = self.moments.get(id(tensor))
            tensor.zero_() if moment is None else tensor.copy_(moment)  # an optimiser's first step starts from zeros

    def _moments(self) -> list[Tensor]:
        states: list[dict[str, Any]] = list(self.optimizer.state.values())
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def default_generator(device: torch.device) -> torch.Generator:
    """From which dropout draws. The device must be the current one if it has no number."""
    number = torch.cuda.current_device() if device.index is None else device.index
    default: torch.Generator = torch.cuda.default_generators[number]
    return default


@contextmanager
def own_default_generator(device: torch.device) -> Iterator[torch.Generator]:
    """The default generator works on a copy of its state, which is yielded: a failed capture would leave it unusable."""
    default = default_generator(device)
    lent = default.graphsafe_get_state()
    own = default.clone_state()
    default.graphsafe_set_state(own)
    try:
        yield own
    finally:
        default.graphsafe_set_state(lent)


def says_static(thing: object) -> bool:
    """`static = True` on the object or on its very class: what a subclass changes, its parent cannot vouch for."""
    return bool({**vars(type(thing)), **vars(thing)}.get("static", False))


def is_static(model: nn.Module) -> bool:
    """Whether a forward pass is nothing but work for the device: every layer says so of itself or is PyTorch's own.

    A model that has the attribute `static` itself, not only its class, speaks for all of its layers.
    """
    if "static" in vars(model):
        return bool(model.static)
    return all(
        not changed(module) and (says_static(module) or type(module).__module__.startswith("torch.nn."))
        for module in model.modules()
    )
