"""csada in a process of its own, forked from one that has imported everything: a start takes milliseconds, not seconds."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

OUTPUTS = ("stdout", "stderr")
RAY = "r"  # the folder beside that of a case, for what Ray keeps: the names of sockets have 107 letters at most


def warm_up() -> None:
    """What every process would import again; what is shared stays shared."""
    import torch

    import csada

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    adopt()
    torch.set_num_threads(1)
    libraries = ("onnx", "onnxruntime", "optuna", "lightning_fabric", "torchmetrics", "pyarrow.parquet", "pandas")
    for module in (*libraries, "sklearn.datasets", "matplotlib.figure", "scipy.stats", "PIL.PngImagePlugin"):
        import_module(module)
    for found in pkgutil.walk_packages(csada.__path__, "csada."):
        if not found.name.endswith(("__main__", "triton_kernels", "csada.lightning")):
            import_module(found.name)
    gc.collect()
    gc.freeze()


def adopt() -> None:
    """Processes whose parents have ended become children of this one, which can end them."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def end_children() -> None:
    """All that commands have left running: workers, and the processes of Ray, which begin sessions of their own."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # its own children are ours now


def state_of_code(*more: Path) -> str:
    """A hash of all of csada, and of what else a record is about: it holds for that code alone."""
    root, said = Path(__file__).resolve().parents[1], hashlib.sha256()
    for file in sorted({*(root / "src" / "csada").rglob("*"), Path(__file__).resolve(), *more}):
        if file.is_file() and "__pycache__" not in file.parts:
            said.update(file.read_bytes())
    return said.hexdigest()


def start(
    words: list[str], folder: Path, before: Callable[[], None] = lambda: None, outputs: Path | None = None
) -> int:
    """The process of csada with these words in that folder. before: what it does first. outputs: where it prints to."""
    if (process := os.fork()) == 0:
        code = 99
        try:
            code = _child(words, folder, before, outputs or folder)
        finally:
            os._exit(code)
    return process


def _child(words: list[str], folder: Path, before: Callable[[], None], outputs: Path) -> int:
    os.setsid()
    os.chdir(folder)
    (ray := folder.with_name(RAY)).mkdir(exist_ok=True)
    os.environ |= {
        "XDG_CACHE_HOME": str(folder / "home"),
        "CSADA_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "out"),
        "RAY_TMPDIR": str(ray),
    }
    tempfile.tempdir = None
    for number, name in ((0, "/dev/null"), (1, outputs / OUTPUTS[0]), (2, outputs / OUTPUTS[1])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.stdout, sys.stderr = (
        os.fdopen(n, "w", encoding="utf-8", errors=e, closefd=False)
        for n, e in ((1, "strict"), (2, "backslashreplace"))
    )
    from csada.cli import common, main

    common.console.file, common.errors.file = sys.stdout, sys.stderr
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["csada", *words]
    try:
        before()
        main()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


def ended(process: int, seconds: float, then: int = signal.SIGKILL) -> int | None:
    """The exit code, negative for a signal; None where it had not ended by then and got the signal `then`."""
    watched = os.pidfd_open(process)
    try:
        late = not select.select([watched], [], [], seconds)[0]
    finally:
        os.close(watched)
    if late:
        os.kill(process, then)
        return None
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def printed(folder: Path) -> tuple[str, str]:
    """What went to the standard output and to the error output."""
    out, err = (folder / name for name in OUTPUTS)
    return (
        out.read_text(errors="replace") if out.exists() else "",
        err.read_text(errors="replace") if err.exists() else "",
    )
