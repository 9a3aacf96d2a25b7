"""The one recorder of CUDA graphs, for training and for decoding: what is a few hundred launches for the host becomes one.

An eager pass launches a thousand kernels one by one, which takes longer than they run. A CUDA graph launches them all at
once, on the same memory each time: what it computes may depend on nothing that only the host knows. nn/stack.py says what that
asks of a layer.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from lamina.errors import LaminaError
from lamina.garbage import no_garbage_collection
from lamina.nn.compiling import is_strict

# Other threads, which bring data to the device, may work on while this one captures.
CAPTURE_ERROR_MODE = "thread_local"
# Before it is captured a function runs this often, since libraries set themselves up in their first calls.
WARM_UPS = 2

T = TypeVar("T")


def reason_of(error: Exception) -> str:
    """In one line, with its place; the error itself in strict mode. Memory that ran out is no fault of what was captured."""
    if is_strict() and not isinstance(error, torch.OutOfMemoryError):
        raise error
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, LaminaError | torch.OutOfMemoryError) or not frames:
        return reason
    return f"{reason} ({type(error).__name__} in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno})"


class Captured(Generic[T]):
    """The kernels of one call, and where they leave its result."""

    def __init__(self, compute: Callable[[], T], pool: Any, stream: torch.cuda.Stream) -> None:
        # By hand, since torch.cuda.graph waits for the device and empties the allocator's cache each time.
        self._graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        # An older graph could be garbage, and its end would break off the capture.
        with torch.cuda.stream(stream), no_garbage_collection():
            self._graph.capture_begin(pool=pool, capture_error_mode=CAPTURE_ERROR_MODE)
            try:
                self.result = compute()
            except BaseException:
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        current.wait_stream(stream)

    def replay(self) -> T:
        self._graph.replay()
        return self.result


def _warn(reason: str) -> None:
    warnings.warn(f"decoding without CUDA graphs, which cannot hold this search: {reason}", stacklevel=4)


class Recorder:
    """Captures functions in graphs that share their memory: they never run at the same time.

    Functions work on tensors that keep their place, and ask the device nothing. Off, they are simply called. `failed` hears
    why a function could not be captured; from then on the recorder is off.
    """

    def __init__(self, device: torch.device, *, is_on: bool = True, failed: Callable[[str], object] = _warn) -> None:
        self.device = device
        self.is_on = is_on
        self.failed = failed
        self._replays: dict[Hashable, Captured[Any]] = {}
        self._warm: set[Hashable] = set()
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None  # of memory, for what all of them compute on the way

    def __call__(self, key: Hashable, function: Callable[[], T]) -> T:
        """What the function returns. The first call is an ordinary one, so that libraries can prepare themselves; the second
        is captured, and replayed from then on.
        """
        if not self.is_on or key not in self._warm:
            self._warm.add(key)
            return function()
        if key not in self._replays:
            try:
                self._replays[key] = self.capture(function)
            except RuntimeError as error:
                self.is_on = False
                self.failed(reason_of(error))
                return function()
        return self._replays[key].replay()  # type: ignore[no-any-return]

    def warm_up(self, function: Callable[[], object]) -> None:
        """On the stream on which it will be captured."""
        stream, current = self._own_stream(), torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
        current.wait_stream(stream)

    def capture(self, function: Callable[[], T]) -> Captured[T]:
        """Of a function that has run before."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return Captured(function, self._pool, self._own_stream())

    def forget(self) -> None:
        """Memory has moved: what was captured no longer holds."""
        self._replays.clear()
        self._pool = None  # it ends with the last graph that uses it

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        return self._stream
