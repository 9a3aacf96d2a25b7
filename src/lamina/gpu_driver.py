"""The GPU's driver, which starts while Python still imports torch: neither needs the other before the first tensor."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from threading import Thread

LIBRARY = "libcuda.so.1"


def start_driver() -> Thread:
    """Where there is one. torch starts it too, in no time when it is on already, and says what is wrong if something is."""
    thread = Thread(target=_start, name="GPU driver", daemon=True)
    thread.start()
    return thread


def _start() -> None:
    with suppress(OSError):  # no GPU, or not one of NVIDIA's
        ctypes.CDLL(LIBRARY).cuInit(0)
