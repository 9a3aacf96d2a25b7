"""Figures for TensorBoard, as long as they can be written: training does not depend on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lamina.errors import ConfigError


class Scalars:
    """Without a folder it writes nothing; a folder that fails is told once and left alone from then on."""

    def __init__(self, folder: str | None, note: Callable[[str], None]) -> None:
        self.folder = folder
        self.note = note
        self._writer = _open(folder) if folder else None
        if self._writer is not None:
            threading.excepthook = _leave_out_tensorboard

    def write(self, where: str, figures: dict[str, Any], updates: int) -> None:
        if self._writer is None:
            return
        try:
            for name, value in figures.items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(f"{where}/{name}", value, updates)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._give_up(error)
        self._writer = None
        threading.excepthook = threading.__excepthook__

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        self.note(f"warning: {self.folder} cannot be written any more: {error.strerror or error}. Training goes on without "
                  "--tensorboard-logdir")


def _leave_out_tensorboard(told: threading.ExceptHookArgs) -> None:
    """Its writing thread raises what `write` is told as well; a traceback beside that would say nothing more."""
    if not (isinstance(told.exc_value, OSError) and type(told.thread).__module__.startswith("tensorboard")):
        threading.__excepthook__(told)


def _open(folder: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("--tensorboard-logdir needs the package tensorboard: pip install 'lamina[tensorboard]'.") from None
    try:
        return SummaryWriter(folder)
    except OSError as error:
        raise ConfigError(f"--tensorboard-logdir {folder} cannot be written: {error.strerror or error}. Choose another folder, "
                          "or leave it out.") from None
