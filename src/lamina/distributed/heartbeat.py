"""Which rank is missing: each shows that it lives, so that those that wait for it can name it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed as dist

SECONDS_BETWEEN_BEATS = 0.5
# A rank on a busy machine may be late; one that is stopped or gone stays away.
SECONDS_OF_WATCHING = 4.0
SECONDS_TO_END = 5.0


@contextmanager
def beating(store: Any, rank: int) -> Iterator[None]:
    """Inside, a thread counts on in the store that all ranks share."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(SECONDS_BETWEEN_BEATS):
            count += 1
            try:
                store.set(_key(rank), str(count))
            except (dist.DistError, RuntimeError):  # the process that keeps the store is gone
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(SECONDS_TO_END)  # in the middle of a call it might abort the process when Python ends


def silent_ranks(store: Any, rank: int, size: int) -> list[int]:
    """Those that give no sign for a while; none, where the store cannot tell."""
    try:
        before = _counts(store, size)
        until = time.monotonic() + SECONDS_OF_WATCHING
        silent = [other for other in range(size) if other != rank]
        while silent and time.monotonic() < until:
            time.sleep(SECONDS_BETWEEN_BEATS / 2)
            now = _counts(store, size)
            silent = [other for other in silent if now[other] == before[other]]
    except (dist.DistError, RuntimeError):
        return []
    return silent


def _counts(store: Any, size: int) -> list[bytes]:
    return [store.get(_key(rank)) if store.check([_key(rank)]) else b"" for rank in range(size)]


def _key(rank: int) -> str:
    return f"beat {rank}"
