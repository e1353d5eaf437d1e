"""The command line: the only place that prints and draws progress bars. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from typing import Any, NoReturn

import typer

# each adds its commands
from csada.cli import check, costs, data, decide, diff, evaluate, fit, monitor, paper, project, review, ship, train  # noqa: F401
from csada.cli.common import Terminated, app, note, warn
from csada.errors import InputError, RunError

LONGEST = 5000  # letters of a message
# of words that no command knows; its own name depends on the version of Typer
USAGE: Any = typer.BadParameter.__mro__[1]


class Told(logging.Handler):
    """What is logged is printed on the error console."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def main() -> None:
    own, stopped = os.getpid(), False

    def terminated(number: int, _: Any) -> None:
        """As after Ctrl-C, files are left in order; a forked process, which has none, just ends."""
        nonlocal stopped
        if os.getpid() != own:
            os._exit(128 + number)
        stopped = True
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    log, told = logging.getLogger("csada"), Told()
    log.addHandler(told)
    log.setLevel(logging.INFO)
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's lines; our bound of pixels says it
    try:
        code = app(standalone_mode=False)
        if code == 130 and stopped:  # while it read its arguments: Typer knows Ctrl-C alone
            ended("interrupted", 143)
        sys.exit(code)
    except USAGE as error:  # nothing, where the help was shown instead
        if why := error.format_message():
            ended(f"{why} ({error.ctx.command_path if error.ctx else 'csada'} --help shows what there is)", 2)
        sys.exit(2)
    except (InputError, RunError) as error:
        ended(str(error), 2 if isinstance(error, InputError) else 1)
    except OSError as error:  # a full disk, a folder that may not be written to, a name that is too long
        where = f"{os.fsdecode(error.filename)[:200]}: " if isinstance(error.filename, str | bytes) else ""
        ended(f"{where}{error.strerror or error}; free the space, or name another place", 1)
    except (KeyboardInterrupt, typer.Abort):  # before a command had begun
        ended("interrupted", 143 if stopped else 130)
    except MemoryError:
        ended("the memory does not suffice; give it less at once", 1)
    finally:
        log.removeHandler(told)
        signal.signal(signal.SIGTERM, before)


def ended(why: str, code: int) -> NoReturn:
    """Whatever a library had to say about it, one line."""
    warn(f"csada: {' '.join(why.split())[:LONGEST]}", style="red")
    sys.exit(code)
