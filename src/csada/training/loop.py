"""fit(): one loop for every method.

Everything random in epoch e is drawn from (seed, e), and the learning rate is a function of the step, so a run that was
killed needs only the weights, the optimiser's state and the number of the epoch to end with the same numbers.

A batch may be worked on in shares: by several processes (`devices`), and in each by pieces that fit into memory
(`max_batch`). What is drawn for a batch is drawn for the whole, and a share's loss counts as it does there, so the update is
that of the whole batch. Two exceptions: the statistics of batch norm in training mode, and the partners of mixup, are those of
the piece.
"""

from __future__ import annotations

import copy
import logging
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from csada.costs import CostMatrix
from csada.data.batches import Batches, Data, LoaderBatches, Share, as_part, batches, shares
from csada.data.splits import Batch, Part
from csada.errors import Diverged, InputError
from csada.files import StrPath
from csada.methods import Method
from csada.methods.cross_entropy import CrossEntropy
from csada.methods.csada import CSADA, Tasks
from csada.models.modes import (
    borrowed_eval,
    check_labels,
    check_logits,
    device_of,
    dtype_of,
    logits_of,
    mixes_batch,
    training_mode,
)
from csada.models.weights import fill, is_plain, misfits
from csada.training import parallel
from csada.training.checkpoints import Checkpoint, Epoch, Origin, damaged, read_checkpoint, write_checkpoint
from csada.training.parallel import Ended, OnEpoch, Ranks, Work
from csada.training.settings import Settings, make_method, split_options
from csada.training.step import Graphs

log = logging.getLogger("csada")

CHECK_EVERY = 50  # steps between two looks at the loss on a GPU, where a look waits for the device
CHECKPOINT_EVERY = 20  # times what the last one took: checkpoints may take a twentieth of the time


@dataclass(frozen=True)
class Fitted:
    model: nn.Module
    history: list[Epoch]
    method: Method


def fit(
    model: nn.Module,
    data: Data,
    method: str | Method = "csada",
    costs: CostMatrix | None = None,
    *,
    on_epoch: OnEpoch | None = None,
    checkpoint: StrPath | None = None,
    **options: Any,
) -> Fitted:
    """Train a copy of `model` on the model's device; the original is unchanged.

    data: Splits (its train part), (x, y), a Dataset or a DataLoader. Options are those of `Settings` (epochs, lr,
    batch_size, seed, optimizer, ...); all others go to the method. on_epoch(line, model) is called after every epoch; what
    it returns joins the history.

    checkpoint: a file, written after every epoch, but never more than 5 % of the run time. If it exists, the run resumes
    from it. It belongs to its start weights, data, method and settings: any other run is refused. A damaged one is reported
    to the logger "csada", and the run starts anew.

    devices=N trains on N processes, on the first N GPUs if the model is on one, else on the CPU: each works on its share
    of every batch, for the same update. `fit` starts them itself, and the model comes back to the caller; they read the
    script anew, so its work must stand under `if __name__ == "__main__":`. Or start it with `torchrun
    --nproc_per_node=N script.py`, the only way on several nodes: every process gets the model, and on_epoch is called on
    rank 0. A process that dies ends the run with a RunError; started again, it resumes from its checkpoint.

    max_batch=B works on B samples at a time (and what is attacked of them) and adds the gradients up, for the same update
    in less memory; "auto" tries the whole batch, and halves it as long as the GPU's memory does not suffice.
    """
    given, rest = split_options(options)
    settings, device = Settings(**given), device_of(model)
    if device.type not in ("cpu", "cuda"):  # sums are in double precision, which Apple's GPUs lack
        raise InputError(f"the model is on {device}; fit trains on a CPU or a CUDA GPU: give model.to('cpu')")
    place = parallel.place(settings.devices, settings.num_nodes, device)
    ranks = parallel.join(device) if place == "join" else Ranks(device)
    with borrowed_randomness(device) as reseed:
        data, net = as_part(data), copy.deepcopy(model)
        generator = reseed(settings.seed, -1, data)
        first = next(iter(batches(data, settings.batch_size, device, dtype=dtype_of(net)).epoch()))
        classes = probe(net, data, first, costs)
        chosen = make_method(method, costs or CostMatrix.uniform(classes), rest, costs is not None)
        if len(chosen.costs) != classes:
            raise InputError(f"the model scores {classes} classes but the method's costs name {len(chosen.costs)}")

        def train(member: nn.Module, part: Data) -> nn.Module:
            return fit(member, part, "cross_entropy", chosen.costs, **given | {"devices": 1, "num_nodes": 1}).model

        origin = None if checkpoint is None else Origin.of(settings, chosen, net, data, first)
        net, data = chosen.prepare(net, data, train=train, generator=generator)
    frozen = settings.freeze_norm if settings.freeze_norm is not None else not isinstance(chosen, CrossEntropy)
    path = None if checkpoint is None else Path(checkpoint)
    work = Work(net.to(device), as_part(data), chosen, settings, frozen, path, origin)
    if place != "alone" and not isinstance(work.data, Part):
        kind = type(work.data).__name__
        raise InputError(f"several processes share tensors: give (x, y), a Part or Splits, not a {kind}")
    if place == "start":
        history, diverged = parallel.start(descend, work, on_epoch)
    else:
        history, diverged = descend(work, ranks, on_epoch)
    work.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # as a saved model comes back
    fitted = Fitted(work.model.eval(), history, chosen)
    if diverged:
        raise Diverged(diverged, fitted)
    return fitted


def descend(work: Work, ranks: Ranks, on_epoch: OnEpoch | None = None) -> Ended:
    """The epochs; work.model is trained. The history, and why it ended early if it did."""
    settings = work.settings
    source = batches(work.data, settings.batch_size, ranks.device, shuffle=True, dtype=dtype_of(work.model))
    with borrowed_randomness(ranks.device) as reseed:
        ranks.start_alike(work.model.to(ranks.device), work.data)
        loop = Loop(work.model, work.method, settings, ranks.device, ranks=ranks)
        history = resume(work, loop)
        good = snapshot(loop.model)
        saved, price = -math.inf, 0.0  # when the last checkpoint was written, and how long that took
        for epoch in range(len(history), settings.epochs):
            generator = reseed(settings.seed, epoch, work.data)
            training_mode(loop.model, freeze_norm=work.freeze_norm)
            started = time.perf_counter()
            loss = loop.epoch(epoch, source, generator)
            if not math.isfinite(loss) or not finite(loop.model):
                loop.model.load_state_dict(good)
                return history, (
                    f"the loss became {loss} in epoch {epoch + 1}; lower lr (now {settings.lr:g}) or the method's weight. "
                    f"The weights after epoch {epoch} are kept in the error's `fitted`"
                )
            line: Epoch = {"epoch": epoch + 1, "loss": loss, "lr": loop.lr, "seconds": time.perf_counter() - started}
            loop.model.eval()
            if on_epoch is not None and ranks.rank == 0:
                line |= on_epoch(line, loop.model) or {}
            history.append(ranks.same(line))
            good = snapshot(loop.model)
            begin = time.perf_counter()
            due = epoch + 1 == settings.epochs or begin - saved >= CHECKPOINT_EVERY * price
            if work.checkpoint is not None and work.origin is not None and ranks.rank == 0 and due:
                state = Checkpoint(work.origin, loop.model.state_dict(), loop.optimizer.state_dict(), history)
                write_checkpoint(work.checkpoint, state)
                saved = time.perf_counter()
                price = saved - begin
    return history, None


@dataclass
class Loop:
    """The state that an epoch changes."""

    model: nn.Module
    method: Method
    settings: Settings
    device: torch.device
    lr: float = 0.0
    optimizer: torch.optim.Optimizer = field(init=False)
    graphs: Graphs | None = None
    ranks: Ranks = Ranks()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # convolutions are faster so
        self.optimizer = self.settings.optimiser(self.model.parameters())
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        limit, alone = self.settings.max_batch, self.ranks.world == 1
        self.piece = limit if isinstance(limit, int) else sys.maxsize  # samples at once
        self.in_shares = limit is not None or not alone
        if self.settings.graph and self.device.type == "cuda" and alone and limit in (None, "auto"):
            self.graphs = Graphs(self.method, self.model, self.optimizer)

    def epoch(self, epoch: int, source: Batches, generator: torch.Generator) -> float:
        """One pass over the data; the mean loss."""
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        own = self.ranks.own(generator)
        for i, share in enumerate(shares(source, generator, own, self.ranks.rank, self.ranks.world)):
            batch = share.batch
            if isinstance(source, LoaderBatches):
                check_labels(batch.y, len(self.method.costs))
            self.set_lr(self.settings.lr_at(epoch * len(source) + i, len(source)))
            loss = None if self.graphs is None else self.graphs(self.step, batch, generator)
            if loss is None:
                loss = self.step_in_shares(share, generator, own) if self.in_shares else self.step(batch, generator)
            total += loss * len(share.labels)
            count += len(share.labels)
            if (self.device.type == "cpu" or i % CHECK_EVERY == 0) and not math.isfinite(float(loss)):
                return float(loss)
        if mixes_batch(self.model):
            self.ranks.average_buffers(self.model)
        return float(total) / count

    def step(self, batch: Batch, generator: torch.Generator, **sizes: int) -> Tensor:
        """One descent."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.method(self.model, batch.x, batch.y, costs=batch.costs, generator=generator, **sizes)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def step_in_shares(self, share: Share, generator: torch.Generator, own: torch.Generator) -> Tensor:
        """The same descent, from this rank's share of the batch and in pieces that fit into memory."""
        tasks = self.method.draw(share.labels, generator) if isinstance(self.method, CSADA) else None
        loss = self.accumulate(share, tasks, own)
        while loss is None:
            self.piece = -(-min(self.piece, len(share.batch.y)) // 2)
            log.warning("out of memory: going on with at most %d samples at once", self.piece)
            torch.cuda.empty_cache()
            loss = self.accumulate(share, tasks, own)
        loss = self.ranks.add(loss, self.trained)
        self.optimizer.step()
        return loss

    def accumulate(self, share: Share, tasks: Tasks | None, own: torch.Generator) -> Tensor | None:
        """The gradient of a share's loss; None, with all as it was, if it does not fit and a smaller piece may."""
        (x, y, costs), whole = share.batch, len(share.labels)
        drawn = own.get_state() if self.settings.max_batch == "auto" else None
        buffers = [b.clone() for b in self.model.buffers()] if drawn is not None and mixes_batch(self.model) else []
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        try:
            for a in range(0, len(y), self.piece):
                b = min(a + self.piece, len(y))
                with self.autocast():
                    if isinstance(self.method, CSADA) and costs is None:
                        here = None if tasks is None else tasks.within(share.first + a, share.first + b)
                        loss = self.method.loss(self.model, x[a:b], y[a:b], here, (b - a) / whole)
                    else:  # every other loss is a mean over the samples
                        rows = None if costs is None else costs[a:b]
                        mean = self.method(self.model, x[a:b], y[a:b], costs=rows, generator=own)
                        loss = mean * ((b - a) / whole)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total
        except torch.OutOfMemoryError:
            if drawn is None or min(self.piece, len(y)) <= 1:
                raise
        self.optimizer.zero_grad(set_to_none=True)
        own.set_state(drawn)
        for buffer, before in zip(self.model.buffers(), buffers, strict=bool(buffers)):
            buffer.copy_(before)
        return None

    def set_lr(self, lr: float) -> None:
        self.lr = lr
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def autocast(self) -> Any:
        if self.settings.precision == "32":
            return nullcontext()
        # inside a graph a cached cast would outlive the weights it was made of
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=not capturing)


def probe(model: nn.Module, data: Data, first: Batch, costs: CostMatrix | None) -> int:
    """Look at the data and the model once before any work; the number of classes."""
    with borrowed_eval(model), torch.no_grad():
        logits = logits_of(model(first.x[:2]))
    check_logits(logits, None if costs is None else len(costs))
    check_labels(data.y if isinstance(data, Part) else first.y, logits.shape[1])
    return int(logits.shape[1])


@contextmanager
def borrowed_randomness(device: torch.device) -> Iterator[Callable[[int, int, Data], torch.Generator]]:
    """Seed everything that an epoch may draw from, and give the caller's random state back afterwards.

    Dropout, loaders and users' own transforms draw from global state; `reseed(seed, epoch, data)` seeds it, and the data
    loader's own generators, and returns the explicit generator that the methods and our batches use.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' transforms may use it
    lent: dict[int, tuple[torch.Generator, Tensor]] = {}
    generator = torch.Generator(device)  # one object for all epochs: a captured step draws from it

    def reseed(seed: int, epoch: int, data: Data) -> torch.Generator:
        number = int(np.random.SeedSequence([seed, epoch + 1]).generate_state(1, np.uint64)[0]) >> 1
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        torch.manual_seed(number)
        for owner in (data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)):
            own = getattr(owner, "generator", None)
            if isinstance(own, torch.Generator):
                lent.setdefault(id(own), (own, own.get_state()))
                own.manual_seed(number)
        return generator.manual_seed(number)

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield reseed
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            for own, state in lent.values():
                own.set_state(state)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def resume(work: Work, loop: Loop) -> list[Epoch]:
    """The history of the checkpoint, whose state goes into the loop; an empty one where there is none."""
    path, origin = work.checkpoint, loop.ranks.same(work.origin)
    found = read_checkpoint(path, loop.device) if path is not None and path.exists() else None
    if path is not None and found is not None:
        if found.origin != origin:
            own, theirs = vars(origin), vars(found.origin)
            others = ", ".join(name.replace("_", " ") for name in own if own[name] != theirs[name])
            raise InputError(
                f"{path} is a checkpoint of another run, with other {others}; remove it, or give another file"
            )
        if why := unfit(loop, found):
            damaged(path, why)
            found = None
    if path is not None and found is not None:
        fill(loop.model, found.model, path)
        # the settings agree; how the optimiser works is a matter of the device, which may be another one now
        groups = loop.optimizer.state_dict()["param_groups"]
        loop.optimizer.load_state_dict(found.optimizer | {"param_groups": groups})
    history = [] if found is None else found.history
    if 0 < len(history) < loop.settings.epochs and loop.ranks.rank == 0:
        log.info("resuming after epoch %d of %d", len(history), loop.settings.epochs)
    if not loop.ranks.agree(len(history)):
        raise InputError(f"{path} is not the same for all processes; put it where all of them can read it")
    return history


def unfit(loop: Loop, found: Checkpoint) -> str:
    """Why this cannot be a checkpoint of the run; empty where it can."""
    if not all(map(is_plain, found.model.values())):
        return "weights that are no plain tensors"
    if why := misfits(
        loop.model, found.model
    ):  # shapes first: what a view repeats without end must not be computed with
        return why
    if not all(bool(found.model[name].isfinite().all()) for name, _ in loop.model.named_parameters()):
        return "weights that are no finite numbers"
    if not 0 < len(found.history) <= loop.settings.epochs:
        return f"{len(found.history)} epochs of {loop.settings.epochs}"
    (group,) = loop.optimizer.param_groups
    kept = (
        {"step", "exp_avg", "exp_avg_sq"} if "betas" in group else {"momentum_buffer"} if group["momentum"] else set()
    )
    state, shapes = found.optimizer.get("state"), {i: p.shape for i, p in enumerate(group["params"])}
    fits = (
        isinstance(state, dict)
        and bool(state) == bool(kept)
        and state.keys() <= shapes.keys()
        and all(isinstance(each, dict) and each.keys() == kept for each in state.values())
        and all(
            is_plain(value) and value.shape == (() if name == "step" else shapes[i])
            for i, each in state.items()
            for name, value in each.items()
        )
    )
    return "" if fits else "another optimiser's state"
