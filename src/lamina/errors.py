"""Errors meant for the person at the keyboard: one line, what was wrong, what was expected, how to fix it."""


class LaminaError(Exception):
    """Printed without a traceback; the command exits with 2. Anything else that escapes is our own defect."""


class ConfigError(LaminaError):
    """A flag, a recipe key or a combination of them makes no sense."""


class DataError(LaminaError):
    """A file of text, ids or symbols is missing, damaged, or does not fit its partner."""


class CheckpointError(LaminaError):
    """A checkpoint cannot be read, written, or does not fit the model."""


class DamageError(CheckpointError):
    """A checkpoint's bytes are not those that were written; an earlier one may be whole."""


class DivergenceError(LaminaError):
    """Training left the finite numbers; the last good checkpoint is on disk."""


class RankError(LaminaError):
    """A process of a run on several GPUs is missing; the last good checkpoint is on disk."""


class AlreadyToldError(LaminaError):
    """Another process has told what was wrong; only the exit status is left to say."""

    def __init__(self, code: int = 2) -> None:
        super().__init__("another process has told what was wrong")
        self.code = code


class MemoryShortageError(LaminaError):
    """The device's memory does not hold what was asked for; the last good checkpoint is on disk."""


class StopSignal(LaminaError):  # noqa: N818, no error of anybody's
    """A signal ended the run after its state was saved; the command exits with 128 + its number, as shells do."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number
