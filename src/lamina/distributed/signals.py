"""SIGTERM and Ctrl-C as a wish that the training loop grants: after the update in progress, and with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any


class StopWish:
    """As a context manager it hears SIGTERM and SIGINT and remembers the first; a second one ends the process at once."""

    def __init__(self, note: Callable[[str], None] = lambda _: None) -> None:
        self.note = note
        self.signal: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopWish:
        # Python lets only the main thread hear signals; elsewhere whoever started us decides about them.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._former[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._give_back()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._give_back()
        # Python refuses to begin a line in the middle of another: to stop well matters more than to say so.
        with suppress(RuntimeError):
            self.note(f"{self.signal.name}: finishing this update and saving; once more stops at once")

    def _give_back(self) -> None:
        while self._former:
            number, handler = self._former.popitem()
            # None: set by code that is not Python's.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
