"""The command line: the only place that prints and draws progress bars. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys

from csada.cli import costs, data, evaluate, fit, paper, project, ship, train  # noqa: F401 - each adds its commands
from csada.cli.common import app, warn
from csada.errors import InputError, RunError


def main() -> None:
    try:
        app()
    except (InputError, RunError) as error:
        warn(f"csada: {error}", style="red")
        sys.exit(2 if isinstance(error, InputError) else 1)
