"""Independent runs, done wherever there is room: in this process, in several, or on a Ray cluster.

A run is a function that can be pickled. It resumes from its own checkpoint, in a folder that every node sees, or whose
files nodes exchange through a store (store.py). So it may be started again at any time and anywhere: after its worker or its
node died, by a second driver, or by the first one when it comes back. Runs that need the results of others come in a later
round.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import LifoQueue
from typing import Any

import torch

from csada import files
from csada.errors import Diverged, InputError, RunError
from csada.folders import locked
from csada.processes import end_with_parent, ending_with_us
from csada.workflow.cluster import PATIENCE, Resources, ray_cluster
from csada.workflow.store import Store

POLL = 0.5  # seconds between two looks at what others work on
DEATHS = 3  # of its worker, after which a run is given up
SPARE = 2  # runs that wait on a cluster, so that no node does and the cluster may grow
PUSH, LOOK = 30, 10  # seconds between two uploads of a run under way, and between two looks of the driver at a store
ENDED = "its process ended before it was done%s; start again to continue"

Tell = Callable[[int, int], None]
Rows = dict[str, tuple[int, int]]  # of each run under way: (epochs done, all)
Progress = Callable[[int, int, Rows], object]  # epochs done of all runs, and how many there are


class Later(Exception):
    """A run that was not begun: somebody else works on it, or there is no time left."""


class Lost(RunError):
    """A run whose worker died; another one may do it."""


class Unfit(RunError):
    """(why, Ray's name of a node): it lacks what a run needs, its folder or its data; another one may do it."""


@dataclass(frozen=True)
class Engine:
    """name: local, ray (the running cluster, else one on this machine) or ray://HOST.

    workers: runs at once, at most; by default one, and on a cluster as many as have room. store: through which nodes of a
    cluster exchange the files of runs; by default they share a folder.
    """

    name: str = "local"
    workers: int | None = None
    resources: Resources = field(default_factory=Resources)
    store: Store | None = None

    def __post_init__(self) -> None:
        if self.name not in ("local", "ray") and not self.name.startswith("ray://"):
            raise InputError(f"unknown engine {self.name!r}; known: local, ray, ray://HOST")
        if self.store is not None and self.name == "local":
            raise InputError("--store is for the nodes of a Ray cluster: add --engine ray, or leave it out")


@dataclass(frozen=True)
class Task:
    """call(tell) does the run, and calls tell(epoch, of) after each; then(what it returned) is called here.

    file: where both numbers are kept while the run is under way; every node must see it. epochs: what it counts in all.
    """

    name: str
    call: Callable[[Tell], Any]
    then: Callable[[Any], object]
    file: Path
    epochs: int

    @property
    def epoch(self) -> tuple[int, int]:
        """Done, and all."""
        try:
            done, every = map(int, files.read_bytes(self.file, 100).split())
        except (OSError, ValueError):  # not begun, or being written
            return 0, self.epochs
        return min(done, every), max(every, 1)


def carry_out(
    rounds: Iterable[Sequence[Task]],
    engine: Engine,
    deadline: float = math.inf,
    on_progress: Progress | None = None,
    total: int = 0,
    done: int = 0,
) -> dict[str, Exception]:
    """Why runs failed, by name. A round begins when the one before has ended; after the deadline (time.time()) no run does.

    total, done: of the epochs that on_progress counts, all, where later rounds have some, and those of earlier.
    """
    store, seldom = engine.store, Seldom(LOOK)
    failed, deaths, shown, fitted = dict[str, Exception](), Counter[str](), -math.inf, time.monotonic()
    waiting, running, unfit = deque[Task](), dict[Future[Any], Task](), dict[str, str]()

    def look() -> None:
        nonlocal shown
        if on_progress is not None and time.monotonic() - shown > POLL:
            if store is not None and running:
                seldom(partial(store.pull, *(task.file for task in running.values()), only=True))
            rows = {task: epoch for task in (*running.values(), *waiting) if (epoch := task.epoch)[0]}
            counted = done + int(sum(task.epochs * epoch / every for task, (epoch, every) in rows.items()))
            on_progress(counted, total, {task.name: epoch for task, epoch in rows.items()})
            shown = time.monotonic()

    with started(engine, deadline, look, unfit) as (submit, slots):
        for tasks in rounds:
            waiting.extend(tasks)
            total = max(total, done + sum(task.epochs for task in waiting))
            while running or (waiting and time.time() < deadline):
                if room := slots():
                    fitted = time.monotonic()
                elif time.monotonic() - fitted > PATIENCE:  # all nodes were left out, or are gone
                    failed |= {
                        task.name: RunError(next(iter(unfit.values()))) for task in (*running.values(), *waiting)
                    }
                    return failed
                while waiting and len(running) < room and time.time() < deadline:
                    future = submit(waiting[0])
                    running[future] = waiting.popleft()
                ended = wait(running, POLL, FIRST_COMPLETED).done
                if store is not None and ended:
                    store.pull(*(running[future].file for future in ended))
                for future in ended:
                    task, error = running.pop(future), error_of(future)
                    deaths[task.name] += isinstance(error, Lost)
                    if isinstance(error, Unfit) and task.file.exists():  # else another driver has removed it meanwhile
                        why, node = error.args
                        unfit[node] = why
                    if isinstance(error, Later | Unfit) or (isinstance(error, Lost) and deaths[task.name] < DEATHS):
                        waiting.append(task)
                        continue
                    if error is None:
                        task.then(future.result())
                    else:
                        failed[task.name] = error
                    done += task.epochs
                    task.file.unlink(missing_ok=True)
                if store is not None and ended:
                    store.push()
                look()
    return failed


def at_once(engine: Engine) -> int:
    """How many runs it does at a time."""
    if engine.workers is None and engine.name != "local":
        with ray_cluster(engine.name, engine.resources, do, {}) as (_, fitting):
            return fitting()
    return engine.workers or 1


def error_of(future: Future[Any]) -> Exception | None:
    """Why a run did not end well: its own error, or what befell its worker."""
    error = future.exception()
    cause = getattr(error, "cause", None)  # of what Ray wraps
    if isinstance(error, BrokenProcessPool):
        return Lost(ENDED % "")
    if cause is None and type(error).__module__.startswith("ray."):
        return Lost(ENDED % f" ({str(error).strip().splitlines()[0].rstrip('.')})")
    if cause is None or isinstance(cause, InputError | RunError | Later):
        return cause or error  # type: ignore[return-value]
    last = reason(cause).strip().splitlines()[-1]  # of a traceback that Ray may send along
    return RunError(f"a node cannot start it: {last}")


def reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError | RunError) else f"{type(error).__name__}: {error}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """For one run at a time; Later where another has it."""
    with locked(folder) as mine:
        if not mine:
            time.sleep(POLL)
            raise Later
        yield


def do(
    pickled: bytes, file: Path, deadline: float, threads: int, on_ray: bool = False, store: Store | None = None
) -> Any:
    """The run in a process of its own; an error goes back as one that can be pickled, and without what it holds."""
    if time.time() > deadline:
        raise Later
    node = f"node {socket.gethostname()}"
    where = f" (on {node})" if on_ray else ""
    torch.set_num_threads(threads)
    try:
        if store is not None:
            if not store.pull(file):  # the driver has written something
                raise RunError(f"{node} finds nothing at {store}; give a URL that leads all nodes to the same files")
        # NFS keeps a no, but lists anew
        elif on_ray and not (file.parent.is_dir() and file.name in os.listdir(file.parent)):
            raise RunError(f"{node} does not see {file.parent}; give a folder that all nodes share, or --store")
        call = pickle.loads(pickled)  # noqa: S301 - we wrote it
    except (InputError, RunError) as error:
        if not on_ray:
            raise
        import ray

        raise Unfit(f"{error}{where}", ray.get_runtime_context().get_node_id()) from None
    try:
        return call(partial(told, file)) if store is None else stored(call, file, store)
    except Later:
        raise
    except Exception as error:  # a run may be anybody's code
        kind = next((kind for kind in (Diverged, InputError) if isinstance(error, kind)), RunError)
        raise kind(f"{reason(error)}{where}".replace("\n", " ")) from None


def stored(call: Callable[[Tell], Any], file: Path, store: Store) -> Any:
    """What it leaves is at the store, now and then while it is under way and at its end, also where it fails."""
    seldom = Seldom(PUSH)

    def tell(epoch: int, every: int) -> None:
        told(file, epoch, every)
        seldom(partial(store.push, file))

    try:
        return call(tell)
    finally:
        store.push(file)


class Seldom:
    """Does things not more often than every so many seconds, nor for more than a twentieth of the time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.due = seconds, 0.0

    def __call__(self, work: Callable[[], object]) -> None:
        if (began := time.monotonic()) >= self.due:
            with suppress(RunError):  # the next time
                work()
            self.due = time.monotonic() + max(self.seconds, 20 * (time.monotonic() - began))


def do_here(*given: Any) -> bytes:
    """Pickled by us: PyTorch would send tensors as shared memory, of which there may be little."""
    return pickle.dumps(do(*given))


def told(file: Path, epoch: int, every: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{epoch} {every}")


@contextmanager
def started(
    engine: Engine, deadline: float, look: Callable[[], None], unfit: Mapping[str, str]
) -> Iterator[tuple[Callable[[Task], Future[Any]], Callable[[], float]]]:
    """(how a task is submitted, how many may be at the moment)."""
    if engine.name != "local":

        def there(task: Task) -> Future[Any]:
            if not task.file.exists():  # by it a node knows the folder
                told(task.file, 0, task.epochs)
            if engine.store is not None:
                engine.store.push()
            given = pickle.dumps(task.call), task.file, deadline, threads, True, engine.store
            future: Future[Any] = remote(*given).future()
            return future

        def room() -> float:
            nodes = fitting()
            return 0 if unfit and not nodes else min(engine.workers or math.inf, nodes + SPARE)

        threads = max(1, int(engine.resources.cpus))
        with ray_cluster(engine.name, engine.resources, do, unfit) as (remote, fitting):
            yield there, room
    elif (workers := engine.workers or 1) > 1:
        threads = max(1, torch.get_num_threads() // workers)
        with processes(workers) as submit:
            yield lambda task: submit(pickle.dumps(task.call), task.file, deadline, threads), lambda: workers
    else:

        def here(task: Task) -> Future[Any]:
            def tell(epoch: int, every: int) -> None:
                told(task.file, epoch, every)
                look()

            future: Future[Any] = Future()
            try:
                future.set_result(task.call(tell))
            except Exception as error:  # whatever it is, whoever asks for the result gets it
                future.set_exception(error)
            return future

        yield here, lambda: 1


@contextmanager
def processes(workers: int) -> Iterator[Callable[..., Future[Any]]]:
    """Processes of this machine; with several GPUs they share these. One that dies is replaced, the others go on."""
    spawn = multiprocessing.get_context("spawn")
    new = partial(ProcessPoolExecutor, 1, spawn, take_device, (spawn.Value("i", 0),))
    free = LifoQueue[ProcessPoolExecutor]()  # each a pool of one process, which starts when it is needed
    for _ in range(workers):
        free.put(new())

    def inside(*given: Any) -> Any:
        pool = free.get()
        try:
            return pickle.loads(pool.submit(do_here, *given).result())  # noqa: S301 - we wrote it
        except BrokenProcessPool:
            pool = new()
            raise
        finally:
            free.put(pool)

    def submit(*given: Any) -> Future[Any]:
        with files.uninterrupted():  # Ctrl-C reaches all processes: those that start now leave it to this one
            return threads.submit(inside, *given)

    with ThreadPoolExecutor(workers) as threads:
        try:
            with ending_with_us():  # what they work on resumes from its checkpoint
                yield submit
        finally:
            for _ in range(workers):
                free.get().shutdown()


def take_device(number: Any) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    with number.get_lock():
        number.value += 1
        if torch.cuda.is_available():
            torch.cuda.set_device(number.value % torch.cuda.device_count())
