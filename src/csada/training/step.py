"""The same step as one CUDA graph: draw, attack, descend and update in a single launch.

Small batches are bound by the host that launches thousands of kernels, not by arithmetic; a graph launches them all at once.
Capturing needs a rehearsal, which changes weights, momenta, batch-norm statistics and random state: all are put back, so a
captured run and an eager one draw the same numbers and differ by rounding alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from csada.data.splits import Batch

REHEARSALS = 3
log = logging.getLogger("csada")

EagerStep = Callable[[Batch, torch.Generator], Tensor]


def capture(
    step: EagerStep, batch: Batch, generator: torch.Generator, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> CapturedStep | None:
    """The step as a graph for batches of this shape; None, with the reason logged, where it cannot be captured."""
    state = State(model, optimizer, generator)
    try:
        return CapturedStep(step, batch, generator)
    except RuntimeError as error:
        log.warning("the step runs eagerly: it cannot be captured as a CUDA graph (%s)", str(error).splitlines()[0])
        torch.cuda.synchronize()
        return None
    finally:
        optimizer.zero_grad(set_to_none=True)
        state.restore()


class CapturedStep:
    def __init__(self, step: EagerStep, batch: Batch, generator: torch.Generator) -> None:
        self.batch = Batch(batch.x.clone(), batch.y.clone(), None if batch.costs is None else batch.costs.clone())
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        # every shape is seen here once and for all, so cuDNN may search for its fastest kernels
        search = not torch.are_deterministic_algorithms_enabled()  # which ones win differs from machine to machine
        with torch.backends.cudnn.flags(enabled=True, benchmark=search, allow_tf32=torch.backends.cudnn.allow_tf32):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(REHEARSALS):
                    step(self.batch, generator)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self.graph):
                self.loss = step(self.batch, generator)

    def fits(self, batch: Batch) -> bool:
        return batch.x.shape == self.batch.x.shape

    def __call__(self, batch: Batch) -> Tensor:
        for static, new in zip(self.batch, batch, strict=True):
            if static is not None and new is not None:
                static.copy_(new)
        self.graph.replay()
        return self.loss


class State:
    """Everything that a rehearsal changes, as it was before."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        self.model, self.optimizer, self.generator = model, optimizer, generator
        self.weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.moments = {id(t): t.clone() for t in self._moments()}
        self.drawn, self.drawn_globally = generator.get_state(), torch.cuda.get_rng_state()

    def restore(self) -> None:
        self.model.load_state_dict(self.weights)
        for tensor in self._moments():
            before = self.moments.get(id(tensor))
            tensor.zero_() if before is None else tensor.copy_(before)  # an optimiser's first step starts from zeros
        self.generator.set_state(self.drawn)
        torch.cuda.set_rng_state(self.drawn_globally)

    def _moments(self) -> list[Tensor]:
        states: list[dict[str, Any]] = list(self.optimizer.state.values())
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]
