"""The command line: the only place that prints and draws progress bars. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

from csada.cli import costs, data, evaluate, fit, monitor, paper, project, ship, train  # noqa: F401 - each adds its commands
from csada.cli.common import Terminated, app, warn
from csada.errors import InputError, RunError


class Told(logging.Handler):
    """What is logged is printed on the error console."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage(), style=None)


def main() -> None:
    before = signal.signal(signal.SIGTERM, terminated)
    log, told = logging.getLogger("csada"), Told()
    log.addHandler(told)
    log.setLevel(logging.INFO)
    try:
        app()
    except (InputError, RunError) as error:
        warn(f"csada: {error}", style="red")
        sys.exit(2 if isinstance(error, InputError) else 1)
    finally:
        log.removeHandler(told)
        signal.signal(signal.SIGTERM, before)


def terminated(number: int, _: Any, own: int = os.getpid()) -> None:
    """As after Ctrl-C, files are left in order; a forked process, which has none, just ends."""
    if os.getpid() != own:
        os._exit(128 + number)
    raise Terminated
