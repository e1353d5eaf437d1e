"""The command line: the only place that prints and draws progress bars. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from csada.cli import costs, data, evaluate, fit, paper, project, ship, train  # noqa: F401 - each adds its commands
from csada.cli.common import Terminated, app, warn
from csada.errors import InputError, RunError


def main() -> None:
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        app()
    except (InputError, RunError) as error:
        warn(f"csada: {error}", style="red")
        sys.exit(2 if isinstance(error, InputError) else 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def terminated(number: int, _: Any, own: int = os.getpid()) -> None:
    """As after Ctrl-C, files are left in order; a forked process, which has none, just ends."""
    if os.getpid() != own:
        os._exit(128 + number)
    raise Terminated
