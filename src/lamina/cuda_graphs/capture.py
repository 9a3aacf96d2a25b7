"""CUDA graphs, as training and searches record them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Other threads, which bring data to the device, may go on while this one records.
CAPTURE_ERROR_MODE = "thread_local"


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Inside, Python collects no garbage: an older graph could be part of it, and its end would break off a recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
