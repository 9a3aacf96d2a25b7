"""Signals as wishes that the training loop grants after the update in progress: to stop with a checkpoint, or only to save one.

A process may hear one wish several times: a terminal signals the whole process group, Slurm every process of a job, and a
launcher hands on what it hears to its ranks. What follows within seconds is therefore the same wish.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

# Longer than a launcher on a busy machine takes to hand on a signal, shorter than a person's patience.
SECONDS_OF_ONE_WISH = 3.0
# Not every system has all of them.
STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
SAVES = tuple(getattr(signal, name) for name in ("SIGUSR1",) if hasattr(signal, name))

# What torchrun's launcher, ours included, tells the processes that it starts.
LAUNCHED_MARK = "TORCHELASTIC_RUN_ID"


class StopWish:
    """As a context manager it hears SIGTERM, SIGINT and SIGHUP and remembers the first; a later one ends the process at once.

    SIGUSR1 is remembered as a wish to save and continue, until somebody takes it.
    """

    def __init__(self, note: Callable[[str], None] = lambda _: None) -> None:
        self.note = note
        self.signal: signal.Signals | None = None
        self._heard_at = 0.0
        self._is_save_wished = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopWish:
        # Python lets only the main thread hear signals; elsewhere the program that started us decides about them.
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                if not is_kept_ignored(number):
                    self._former[number] = signal.signal(number, self._hear)
            for number in SAVES:
                self._former[number] = signal.signal(number, self._hear_save)
            unblock(*SAVES)
            self._is_save_wished |= bool(_early)
            _early.clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.signal is not None and LAUNCHED_MARK in os.environ:
            # The wish is granted and this process about to end: what its launcher still hands on says nothing new.
            self._former = dict.fromkeys(self._former, signal.SIG_IGN)
        self._give_back()

    def take_save(self) -> bool:
        """Whether a checkpoint is wished for; asked once, it is granted."""
        wished, self._is_save_wished = self._is_save_wished, False
        return wished

    def _hear_save(self, number: int, frame: FrameType | None) -> None:
        self._is_save_wished = True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            self._heard_at = time.monotonic()
            # Python refuses to begin a line in the middle of another, and there may be nobody left to read it: to stop well
            # matters more than to say so.
            with suppress(RuntimeError, OSError):
                self.note(f"{self.signal.name}: finishing this update and saving; once more after {SECONDS_OF_ONE_WISH:g} s "
                          "stops at once")
        elif time.monotonic() - self._heard_at >= SECONDS_OF_ONE_WISH:
            self._give_back()
            os.kill(os.getpid(), number)

    def _give_back(self) -> None:
        while self._former:
            number, handler = self._former.popitem()
            # None: set by code that is not Python's.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def is_kept_ignored(number: signal.Signals) -> bool:
    """Under nohup a closed terminal must not stop us. SIGINT is heard also where a shell's script ignores it for its jobs."""
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def saves_wait() -> Iterator[None]:
    """Inside, a wish to save that comes before there is something to save does not end the process, but waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Threads that libraries have started before may hear it all the same.
    _early.clear()
    former = {number: signal.signal(number, _remember) for number in SAVES if signal.getsignal(number) is signal.SIG_DFL}
    try:
        with blocked(*SAVES):
            yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


_early: list[int] = []


def _remember(number: int, frame: FrameType | None) -> None:
    """For the wish that training begins with. Not SIG_IGN: a signal that is ignored is not kept for later."""
    _early.append(number)


@contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Signals wait: in this thread, and in the threads and processes that it starts, which inherit it."""
    if not hasattr(signal, "pthread_sigmask"):  # not a Unix
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(*numbers: signal.Signals) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
