"""Independent runs, done wherever there is room: in this process, in several, or on a Ray cluster.

A run is a function that can be pickled. It works under a lock of its own, resumes from its own checkpoint and writes its own
record, in a folder that every node sees; it answers whether it did the work. So a run may be started again at any time and
anywhere: after its worker or its node died, by a second driver, or by the first one when it comes back.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from csada.errors import InputError, RunError
from csada.reading import fields_from

POLL = 0.5  # seconds between two looks at what others work on
DEATHS = 3  # of its worker, after which a run is given up
ENDED = "its process ended before it was done; start again to continue"

Answer = Literal["done", "known", "busy", "late", "failed"]  # known: done by somebody else; busy: somebody works on it
Submit = Callable[["Task"], "Future[tuple[Answer, str]]"]


@dataclass(frozen=True)
class Resources:
    """What one run asks a cluster for."""

    cpus: float = 1.0
    gpus: float | None = None  # by default one where there are any
    memory_gb: float | None = None

    @classmethod
    def read(cls, text: str) -> Resources:
        """From cpus=2,gpus=0.5,memory_gb=4."""
        words = [word.partition("=")[::2] for word in text.split(",") if word.strip()]
        try:
            given = {name.strip(): float(value) for name, value in words}
        except ValueError:
            raise InputError(f"{text!r} is no list of resources; write cpus=2,gpus=0.5,memory_gb=4") from None
        if bad := next((name for name, value in given.items() if not 0 <= value < math.inf), None):
            raise InputError(f"{bad} must be zero or more, got {given[bad]}")
        return cls(**fields_from(cls, given, "resources"))


@dataclass(frozen=True)
class Engine:
    """name: local, ray (the running cluster, else one on this machine) or ray://HOST. workers: processes of local."""

    name: str = "local"
    workers: int = 1
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Task:
    """call(tell=...) does the run and answers "done", "known" or "busy"; tell, to be called now and then, may be None."""

    name: str
    call: Callable[..., Answer]


def carry_out(
    tasks: Sequence[Task], engine: Engine, deadline: float = math.inf, tell: Callable[[], None] | None = None
) -> tuple[list[str], dict[str, str]]:
    """(what was done here, what failed and why), by name. After the deadline (time.time()) no run is started."""
    done: list[str] = []
    failed: dict[str, str] = {}
    deaths: Counter[str] = Counter()
    waiting, running = deque(tasks), dict[Future[tuple[Answer, str]], Task]()
    with started(engine, len(tasks), deadline, tell) as (submit, slots):
        while running or (waiting and time.time() < deadline):
            while waiting and len(running) < slots and time.time() < deadline:
                task = waiting.popleft()
                running[submit(task)] = task
            ready, _ = wait(running, POLL, FIRST_COMPLETED)
            pause = bool(ready)
            for future in ready:
                task = running.pop(future)
                answer, why = _result(future)
                pause = pause and answer == "busy"
                if answer == "done":
                    done.append(task.name)
                elif answer == "failed" and (
                    why != ENDED or (deaths.update([task.name]) or deaths[task.name]) >= DEATHS
                ):
                    failed[task.name] = why
                elif answer in ("busy", "failed"):
                    waiting.append(task)
            if pause:
                time.sleep(POLL)  # others hold all that is left
            if tell:
                tell()
    return done, failed


def _result(future: Future[tuple[Answer, str]]) -> tuple[Answer, str]:
    try:
        return future.result()
    except Exception as error:  # not the run's own, which is an answer: its worker died, or could not read the task
        if (cause := getattr(error, "cause", None)) is None:
            return "failed", ENDED
        last = f"{type(cause).__name__}: {cause}".strip().splitlines()[-1]  # of a traceback that Ray may send along
        return "failed", f"a node cannot start it: {last}"


def _do(task: Task, deadline: float, where: str = "", tell: Callable[[], None] | None = None) -> tuple[Answer, str]:
    if time.time() > deadline:
        return "late", ""
    try:
        return task.call(tell=tell), ""
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}{where}".replace("\n", " ")


@contextmanager
def started(
    engine: Engine, count: int, deadline: float, tell: Callable[[], None] | None
) -> Iterator[tuple[Submit, float]]:
    """(how a task is submitted, how many at once)."""
    if engine.name == "ray" or engine.name.startswith("ray://"):
        with ray_cluster(engine) as remote:
            yield lambda task: remote(task, deadline), math.inf
    elif engine.name != "local":
        raise InputError(f"unknown engine {engine.name!r}; known: local, ray, ray://HOST")
    elif (workers := min(engine.workers, count)) > 1:
        with processes(workers) as submit:
            yield lambda task: submit(task, deadline), workers
    else:

        def here(task: Task) -> Future[tuple[Answer, str]]:
            future: Future[tuple[Answer, str]] = Future()
            future.set_result(_do(task, deadline, tell=tell))
            return future

        yield here, 1


@contextmanager
def processes(workers: int) -> Iterator[Callable[..., Any]]:
    """Processes of this machine; with several GPUs they share these. One that dies is replaced, the others go on."""
    spawn = multiprocessing.get_context("spawn")
    new = partial(ProcessPoolExecutor, 1, spawn, _take_device, (spawn.Value("i", 0),))
    pools, last = [new() for _ in range(workers)], [Future[Any]() for _ in range(workers)]
    for future in last:
        future.set_result(None)

    def submit(*given: Any) -> Future[tuple[Answer, str]]:
        free = next(i for i, future in enumerate(last) if future.done())
        if isinstance(last[free].exception(), BrokenProcessPool):
            pools[free] = new()
        last[free] = future = pools[free].submit(_do, *given)
        return future

    try:
        yield submit
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()  # what they work on resumes from its checkpoint
        raise
    finally:
        for pool in pools:
            pool.shutdown()


def _take_device(number: Any) -> None:
    with number.get_lock():
        number.value += 1
        if torch.cuda.is_available():
            torch.cuda.set_device(number.value % torch.cuda.device_count())


@contextmanager
def ray_cluster(engine: Engine) -> Iterator[Callable[..., Any]]:
    """A cluster that is running, or one on this machine that ends with us. Ray starts a run again whose node died."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InputError(f"--engine {engine.name} needs Ray: pip install 'csada[ray]', or leave it out") from None
    address = None
    if engine.name != "ray":
        address = _reachable(engine.name)
    try:
        ray.init(
            address, include_dashboard=None if address else False, log_to_driver=False, logging_level=logging.ERROR
        )
    except Exception as error:
        raise RunError(f"no Ray cluster at {address or 'this machine'}: {' '.join(str(error).split())[:200]}") from None
    asked = engine.resources
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = asked.gpus if asked.gpus is not None else float(there.get("GPU", 0) >= 1)
    try:
        for name, number in (("CPU", asked.cpus), ("GPU", gpus)):
            if number > there.get(name, 0):
                raise InputError(f"a run asks for {number:g} {name} and the cluster has {there.get(name, 0):g}")
        memory = None if asked.memory_gb is None else int(asked.memory_gb * 1e9)
        remote = ray.remote(_do_there).options(num_cpus=asked.cpus, num_gpus=gpus, memory=memory, max_retries=DEATHS)
        yield lambda *given: remote.remote(*given).future()
    finally:
        ray.shutdown()


def _do_there(task: Task, deadline: float) -> tuple[Answer, str]:
    return _do(task, deadline, where=f" (on node {socket.gethostname()})")


def _reachable(address: str) -> str:
    """The address with its port; refused within seconds where nobody answers, while Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").partition(":")
    try:
        socket.create_connection((host, int(port or 10001)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"no Ray cluster answers at {address}: {why}; start one with ray start --head") from None
    return f"ray://{host}:{port or 10001}"
