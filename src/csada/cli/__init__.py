"""The command line: the only place that prints and draws progress bars. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys

from csada.cli import costs, data, paper, project, report, ship, tune, work  # noqa: F401 - each adds its commands
from csada.cli.common import app, errors
from csada.errors import InputError, RunError


def main() -> None:
    try:
        app()
    except InputError as error:
        errors.print(f"csada: {error}", style="red", markup=False, soft_wrap=True, highlight=False)
        sys.exit(2)
    except RunError as error:
        errors.print(f"csada: {error}", style="red", markup=False, soft_wrap=True, highlight=False)
        sys.exit(1)
