"""csada in a process of its own, forked from one that has imported everything: a start takes milliseconds, not seconds."""

import os
import signal
import sys
import tempfile
from functools import cache
from multiprocessing import get_context
from pkgutil import walk_packages
from subprocess import CompletedProcess, TimeoutExpired
from weakref import finalize

import csada

LIBRARIES = ("lightning_fabric", "matplotlib.figure", "optuna", "scipy.stats", "sklearn.datasets", "torchmetrics")
NOT = ("__main__", "csada.lightning", "triton_kernels")


@cache
def server():
    """One for all that this process starts; it imports what it can."""
    found = get_context("forkserver")
    own = (name for _, name, _ in walk_packages(csada.__path__, "csada.") if not name.endswith(NOT))
    found.set_forkserver_preload([*LIBRARIES, *own])
    return found


def work(words, folder, environment, outputs, before):
    for number, name in enumerate(("/dev/null", *outputs)):
        os.dup2(os.open(name, os.O_RDWR), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if before is not None:
        before()
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        setattr(sys, name, open(number, "w", encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    import torch

    from csada.cli import main

    torch.set_num_threads(1)
    sys.argv = ["csada", *words]
    main()


class Program:
    """As subprocess.Popen of `python -m csada` with pipes. before: what it does first, which can be pickled."""

    def __init__(self, *words, cwd=".", env=os.environ, before=None):
        self.words, self.outputs = [*map(str, words)], [os.memfd_create(name) for name in ("stdout", "stderr")]
        for number in self.outputs:
            finalize(self, os.close, number)
        places = [f"/proc/{os.getpid()}/fd/{number}" for number in self.outputs]
        given = self.words, os.path.abspath(cwd), dict(env), places, before
        self.process = server().Process(target=work, args=given)
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    poll = returncode.fget

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired(self.words, timeout)
        return self.returncode

    def communicate(self, timeout=None):
        self.wait(timeout)
        return tuple(os.pread(n, os.fstat(n).st_size, 0).decode(errors="replace") for n in self.outputs)


def program(*words, timeout=600, **more):
    """As subprocess.run."""
    process = Program(*words, **more)
    try:
        return CompletedProcess(process.words, process.wait(timeout), *process.communicate())
    finally:
        process.kill()
