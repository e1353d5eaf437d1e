"""The two ways csada fails: the input was wrong, or the run went wrong. Both say what to do."""


class InputError(ValueError):
    """Something handed to csada cannot be used. The message names the value and the way out."""


class RunError(RuntimeError):
    """The work started and could not be finished. The message says what was kept."""


class Diverged(RunError):
    """The loss stopped being a number. `fitted` holds the last good weights and the history up to them."""

    def __init__(self, message: str, fitted: object = None) -> None:
        super().__init__(message)
        self.fitted = fitted
