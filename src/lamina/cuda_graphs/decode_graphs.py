"""Work recorded once and replayed: what is a few hundred launches for the host becomes one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

import torch

from lamina.cuda_graphs.capture import CAPTURE_ERROR_MODE, no_garbage_collection


class Graphs:
    """CUDA graphs by what is special about each; off, functions are simply called.

    A function works on tensors that keep their place, and asks the device nothing. Its first call is an ordinary one, so that
    libraries can prepare themselves; the second is recorded. Where that fails, functions are called from then on.
    """

    def __init__(self, device: torch.device, *, is_on: bool) -> None:
        self.device = device
        self.is_on = is_on
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._warm: set[Hashable] = set()
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None  # of memory, for what all of them compute on the way: they never run at the same time

    def __call__(self, key: Hashable, function: Callable[[], object]) -> None:
        if not self.is_on or key not in self._warm:
            self._warm.add(key)
            function()
            return
        if key not in self._graphs:
            try:
                self._graphs[key] = self._recorded(function)
            except RuntimeError as error:
                self.is_on = False
                warnings.warn(f"decoding without CUDA graphs, which cannot hold this search: {str(error).splitlines()[0]}",
                              stacklevel=2)
                function()
                return
        self._graphs[key].replay()

    def _recorded(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        if not self._graphs:
            # A pool ends with the last graph that uses it.
            self._pool = torch.cuda.graph_pool_handle()
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), no_garbage_collection():
            graph.capture_begin(pool=self._pool, capture_error_mode=CAPTURE_ERROR_MODE)
            try:
                function()
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._stream)
        return graph

    def forget(self) -> None:
        """Memory has moved: what was recorded no longer holds."""
        self._graphs.clear()
