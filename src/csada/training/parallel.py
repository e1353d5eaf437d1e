"""Several processes, one model: every rank takes its share of each batch, and the gradients are added up.

All ranks draw the same batches and the same tasks from the same generator, so only gradients travel, and the loss with them.
Lightning Fabric's DDP strategy sets up the devices and the process group. The model is not wrapped: gradients are added once
per step, after the backward passes, so that attacks see the bare model, a rank may be left without samples, and each may cut
its share into as many pieces as its memory asks for.

There are two ways in. Under `torchrun` every process runs the script and becomes a rank in `fit` (`join`). Otherwise `fit`
spawns and watches the ranks (`start`): a rank that dies ends the run, while the caller's own process, where
on_epoch is called and the model is returned, continues with a `RunError`.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import ProcessException, start_processes

from csada.data.batches import Data
from csada.data.splits import Part
from csada.errors import InputError, RunError
from csada.methods import Method
from csada.models.modes import device_of
from csada.training.checkpoints import Epoch, Origin
from csada.training.settings import Settings

PATIENCE = timedelta(minutes=30)  # what a rank waits for the others: it must cover an on_epoch on rank 0
LOOK_EVERY = 0.05  # seconds between two looks at the ranks

T = TypeVar("T")
OnEpoch = Callable[[Epoch, nn.Module], Epoch | None]
Ended = tuple[list[Epoch], str | None]  # the history, and why the run ended early if it did


@dataclass(frozen=True)
class Work:
    """All that the loop needs, in this process or in others."""

    model: nn.Module
    data: Data
    method: Method
    settings: Settings
    freeze_norm: bool
    checkpoint: Path | None
    origin: Origin | None


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; the default is one that trains alone."""

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a constant
    rank: int = 0
    world: int = 1

    def own(self, generator: torch.Generator) -> torch.Generator:
        """For what only this rank draws (augmentation, dropout); alone it is the generator itself."""
        if self.world == 1:
            return generator
        number = np.random.SeedSequence([generator.initial_seed(), self.rank]).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(number) >> 1)  # dropout: the same mask on every rank would be the same noise
        return torch.Generator(self.device).manual_seed(int(number) >> 1)

    def same(self, value: T) -> T:
        """Rank 0's value."""
        if self.world == 1:
            return value
        values: list[T | None] = [value]
        with connected():
            distributed.broadcast_object_list(values, device=self.device)
        (value,) = values  # type: ignore[assignment]
        return value

    def agree(self, value: object) -> bool:
        """Whether all ranks have the same value; every rank learns it, so that all can stop."""
        values: list[object] = [value] * self.world
        if self.world > 1:
            with connected():
                distributed.all_gather_object(values, value)
        return all(v == value for v in values)

    def add(self, loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
        """Give every parameter the sum of all ranks' gradients, in one message per data type; the sum of the losses."""
        if self.world == 1:
            return loss
        total = loss
        for dtype in dict.fromkeys(p.dtype for p in parameters):
            group = [p for p in parameters if p.dtype == dtype]
            gradients = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in group]
            used = torch.tensor([p.grad is not None for p in group], device=loss.device, dtype=dtype)
            message = torch.cat([*gradients, used, loss.view(1).to(dtype)])
            with connected():
                distributed.all_reduce(message)
            *gradients, used, total = torch.split(message, [*map(torch.numel, group), len(group), 1])
            for p, gradient, anywhere in zip(group, gradients, used.tolist(), strict=True):
                if anywhere:  # else it stays None: an optimiser must not decay what no rank has used
                    p.grad = torch.empty_like(p).copy_(gradient.view_as(p))
        return total.view(())

    def start_alike(self, model: nn.Module, data: Part) -> None:
        """Rank 0's weights everywhere, and certainty that all ranks were given the same data."""
        if self.world == 1:
            return
        if not self.agree((tuple(data.x.shape), hashlib.sha256(data.y.cpu().numpy().tobytes()).hexdigest())):
            raise InputError("the processes were given different data; give each all of it, in the same order")
        with connected():
            for tensor in model.state_dict().values():
                distributed.broadcast(tensor, 0)

    def average_buffers(self, model: nn.Module) -> None:
        """Running statistics, which every rank took of its own shares."""
        if self.world > 1:
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    with connected():
                        distributed.all_reduce(buffer)
                    buffer /= self.world


@contextmanager
def connected() -> Iterator[None]:
    """Whatever fails while ranks talk to each other fails because one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise RunError(
            f"another process of this run is gone, or silent for {PATIENCE} ({reason}); "
            "started again with its checkpoint, the run resumes from the last epoch"
        ) from error


def place(devices: int | None, num_nodes: int, device: torch.device) -> str:
    """Where a run takes place: "alone" in this process, in ranks to "start", or in those that torchrun started, to "join"."""
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if num_nodes > 1 and started == 1:
        raise InputError(
            f"num_nodes={num_nodes}: start your script on every node with "
            f"torchrun --nnodes={num_nodes} --nproc_per_node={devices or 1} --rdzv_endpoint=HOST:PORT"
        )
    wanted = started if devices is None else devices * num_nodes
    if wanted == 1:
        return "alone"
    if started > 1 and wanted != started:
        raise InputError(
            f"devices={devices} times num_nodes={num_nodes} are not the {started} processes that torchrun has started; "
            "leave both out to use them all"
        )
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if started > 1 else wanted
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and here > torch.cuda.device_count()):
        count = torch.cuda.device_count() if device.type == "cuda" else 1
        raise InputError(f"the model is on {device} and {here} processes were asked for; this machine has {count}")
    return "join" if started > 1 else "start"


def join(device: torch.device) -> Ranks:
    """This process as one of the ranks that torchrun, or `start`, has begun; the process group lasts as long as it does."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    with quiet("lightning_fabric", "lightning_utilities"):
        fabric = Fabric(
            accelerator=device.type,
            devices=local,
            num_nodes=world // local,
            strategy=DDPStrategy(timeout=PATIENCE),
            plugins=[TorchElasticEnvironment()],
        )
        fabric.launch()
    atexit.register(leave)
    return Ranks(fabric.device, fabric.global_rank, fabric.world_size)


def leave() -> None:
    """Close the process group in good order: its threads must be gone before the interpreter is."""
    if distributed.is_initialized():
        gc.collect()
        distributed.destroy_process_group()


def start(descend: Callable[[Work, Ranks, OnEpoch | None], Ended], work: Work, on_epoch: OnEpoch | None) -> Ended:
    """Spawn the ranks, let each do descend(work, ranks, on_epoch), and leave the trained weights in work.model."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(
            'devices above 1 starts processes that read your script anew: put its work under if __name__ == "__main__":'
        )
    from lightning_fabric.plugins.environments.lightning import find_free_network_port

    count, device = work.settings.devices or 1, device_of(work.model)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0"} | address
    with tempfile.TemporaryDirectory(prefix="csada-") as name:
        folder = Path(name)
        try:  # a file that all ranks map, not pipes: large data is in memory once
            torch.save((descend, work, device, max(1, torch.get_num_threads() // count)), folder / "work.pt")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"the run cannot be handed to other processes ({error}); define its classes in a module, or use torchrun"
            ) from None
        here, there = multiprocessing.get_context("spawn").Pipe()
        arguments = (folder, shared, there if on_epoch else None)
        ranks = start_processes(become_rank, arguments, count, join=False, start_method="spawn")  # type: ignore[no-untyped-call]
        there.close()
        try:
            while not ranks.join(LOOK_EVERY):
                if on_epoch is not None and here.poll():
                    answer(here, folder / "epoch.pt", work.model, on_epoch)
        except ProcessException as error:
            raise failure(error, ranks.processes, work.checkpoint) from error
        finally:
            for process in ranks.processes:
                process.terminate()
                process.join()
            here.close()
        weights, ended = torch.load(folder / "result.pt", map_location=device, weights_only=False)
    work.model.load_state_dict(weights)
    return ended  # type: ignore[no-any-return]


def answer(pipe: Any, path: Path, model: nn.Module, on_epoch: OnEpoch) -> None:
    """Call on_epoch for rank 0, with the weights that it left in a file."""
    try:
        line = pipe.recv()
    except EOFError:  # rank 0 has ended
        return
    model.load_state_dict(torch.load(path, map_location=device_of(model), weights_only=True))
    pipe.send(on_epoch(line, model.eval()))


def become_rank(index: int, folder: Path, shared: dict[str, str], pipe: Any) -> None:
    """The life of a spawned rank."""
    os.environ.update({"RANK": str(index), "LOCAL_RANK": str(index)} | shared)

    def told(line: Epoch, model: nn.Module) -> Epoch | None:
        torch.save(model.state_dict(), folder / "epoch.pt")
        pipe.send(line)
        extra: Epoch | None = pipe.recv()
        return extra

    # written by the process that started this one
    descend, work, device, threads = torch.load(folder / "work.pt", "cpu", mmap=True, weights_only=False)
    torch.set_num_threads(threads)
    ended = descend(work, join(device), told if pipe is not None else None)
    if index == 0:
        torch.save((work.model.state_dict(), ended), folder / "result.pt")
    del work
    with connected():
        distributed.barrier()
    leave()


def failure(error: Exception, processes: list[Any], checkpoint: Path | None) -> Exception:
    """What to tell the caller when a rank has ended before its time."""
    last = str(error).strip().splitlines()[-1]
    kind, _, text = last.partition(": ")
    if kind.endswith("InputError"):
        return InputError(text)
    what = f"a process of the run failed ({last})"
    for rank, process in enumerate(processes):  # a rank that was killed, not one that failed because it was gone
        if process.exitcode not in (0, 1, None, -signal.SIGTERM):
            code = process.exitcode
            by = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            what = f"rank {rank} of the run ended with {by}"
    way_on = "give checkpoint= to be able to resume after such an end"
    if checkpoint is not None:
        way_on = f"start it again to resume from {checkpoint}, written after every epoch"
    return RunError(f"{what}; {way_on}")


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Loggers that announce every start hold their tongue."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
