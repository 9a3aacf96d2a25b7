"""A pool of processes that ends cleanly: on Ctrl-C, on an error, and when the parent is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, TypeVar

from lamina.errors import DataError

T = TypeVar("T")
R = TypeVar("R")

# How a library function shows its progress: `with progress(label, total) as advance: advance(amount)`.
Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]

START_METHOD: str | None = None  # the platform's own: fork on Linux, spawn elsewhere
_stop: Any = None  # in a worker: the event by which the parent calls off the work


@contextmanager
def no_progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    yield lambda amount: None


class StoppedError(Exception):
    """Raised inside a worker whose result nobody wants any more."""


def check_stop() -> None:
    """Called now and then by long tasks, so that an interrupted command ends at once and not after the task."""
    if _stop is not None and _stop.is_set():
        raise StoppedError


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """`results` runs a function over tasks in `count` processes, or right here when there is one."""

    def __init__(self, count: int, start_method: str | None = START_METHOD,
                 advice: str = "Try again with fewer --workers.") -> None:
        """`advice` ends the error about a worker that was killed."""
        self.count = count
        self.advice = advice
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            context: Any = multiprocessing.get_context(start_method)
            self._event = context.Event()
            self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(self._event,))
            # Started now: to fork later, from beside a progress bar's thread, could hang. Threads that wait for kernels are
            # no danger: a worker makes its own.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
                for future in [self._pool.submit(check_stop) for _ in range(count)]:
                    future.result()

    def results(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[int, R]]:
        """(number of the task, its result), in the order in which they are ready."""
        if self._pool is None:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        numbers: dict[Future[R], int] = {}
        try:
            for number, task in enumerate(tasks):
                numbers[self._pool.submit(function, task)] = number
            for future in as_completed(numbers):
                yield numbers[future], future.result()
        except BrokenProcessPool:
            raise DataError(f"a worker process was killed, most likely because memory ran out. {self.advice}") from None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._pool is not None:
            if kind is not None:
                self._event.set()
            self._pool.shutdown(wait=True, cancel_futures=True)


def _begin(stop: Any) -> None:
    """What a worker does first."""
    global _stop
    _stop = stop
    # Ctrl-C reaches the whole group: the parent answers it, and then calls us off.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A killed parent can say nothing, and its workers would wait for their next task for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
