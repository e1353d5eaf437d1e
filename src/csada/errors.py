"""The two ways csada fails: the input was wrong, or the run went wrong. Both say what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Something handed to csada cannot be used. The message names the value and the way out."""


class RunError(RuntimeError):
    """The work started and could not be finished. The message says what was kept."""


class Diverged(RunError):
    """The loss stopped being a number. `fitted` holds the last good weights and the history up to them."""

    def __init__(self, message: str, fitted: object = None) -> None:
        super().__init__(message)
        self.fitted = fitted


def check_known(what: str, name: object, known: Iterable[object]) -> None:
    """Refuses a name that is none of those known."""
    if name not in (known := list(known)):
        raise InputError(f"unknown {what} {name!r}; known: {', '.join(map(str, known))}")


@contextmanager
def explained(what: str, way_out: str = "", kind: type[Exception] = InputError) -> Iterator[None]:
    """An error of the operating system as one of ours: what failed, why, and the way out."""
    try:
        yield
    except OSError as error:
        raise kind("; ".join(filter(None, (f"{what}: {error.strerror or error}", way_out)))) from None
