"""Other processes: work that is shared among some of this machine, which end with this one; signals that reach all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from csada.errors import RunError
from csada.files import uninterrupted

AHEAD = 4  # pieces of work per process that may be done before they are asked for
LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Result = TypeVar("Result")


def in_order(call: Callable[..., Result], work: Iterable[tuple[Any, ...]], workers: int) -> Iterator[Result]:
    """call(*each) for each piece of work, in processes with one thread each, or here; the results in the order of the work.

    Ctrl-C in a terminal reaches all processes, and SIGTERM may: the others leave both to this one, which ends them.
    """
    if workers < 2:
        yield from (call(*each) for each in work)
        return
    waiting = deque[Future[Result]]()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin)
    try:
        with ending_with_us():
            for each in work:
                with uninterrupted(), _nameless():  # what starts now inherits what is blocked
                    waiting.append(pool.submit(call, *each))
                if len(waiting) >= AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool:
        raise RunError("a process ended before its work was done; there may be too little memory") from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def ending_with_us() -> Iterator[None]:
    """Whatever ends us, Ctrl-C as well, ends the processes that started within: they would work on."""
    others = set(multiprocessing.active_children())  # of whoever called us
    try:
        yield
    except BaseException:
        with uninterrupted():
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        raise


@contextmanager
def _nameless() -> Iterator[None]:
    """A new process imports the main module again, which may be a user's script that does all of its work there."""
    main, kept = vars(sys.modules["__main__"]), dict[str, Any]()
    for name in ("__spec__", "__file__"):
        if name in main:
            kept[name], main[name] = main[name], None
    try:
        yield
    finally:
        main.update(kept)


def _begin() -> None:
    os.environ |= dict.fromkeys(LIBRARIES, "1")  # none of them is imported yet
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Whoever started us may be killed."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Within, a library puts a handler of SIGTERM in place of ours, which ends the process with a code of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, ours)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, ours)
