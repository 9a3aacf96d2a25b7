"""How long a process waits for other ranks and for data, measured without waiting for anything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

DATA, RANKS = "data", "ranks"


class Waits:
    """Seconds since they were last taken.

    Work of a GPU is measured there, by events that are read when they have passed. What it waits for in an all-reduce is the
    slowest rank, and the sending itself.
    """

    def __init__(self) -> None:
        self._seconds = {DATA: 0.0, RANKS: 0.0}
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # around what a GPU did for other ranks

    @contextmanager
    def on_host(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[what] += time.perf_counter() - started

    @contextmanager
    def for_ranks(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            with self.on_host(RANKS):
                yield
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._events.append((start, end))

    def take(self) -> dict[str, float]:
        """By what was waited for. Events that have not passed yet are of the next time."""
        passed = [pair for pair in self._events if pair[1].query()]
        self._events = [pair for pair in self._events if pair not in passed]
        taken, self._seconds = self._seconds, {DATA: 0.0, RANKS: 0.0}
        taken[RANKS] += sum(start.elapsed_time(end) / 1000 for start, end in passed)
        return taken
