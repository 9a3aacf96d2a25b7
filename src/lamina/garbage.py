"""When Python's garbage collector stays away: where there is nothing for it to find, and where it must not come."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Inside, no garbage is collected. What is imported stays: looking it through again and again takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def leave_garbage() -> None:
    """The process ends: looking all there is through once more would take a third as long as importing torch."""
    gc.freeze()
