"""Passes over batches of one shape, recorded once and replayed: the host no longer decides how fast a GPU is.

An eager pass launches a thousand kernels one by one, which takes longer than they run. A CUDA graph launches them all at
once, on the same memory each time; so its input is copied into the batch that it was recorded with, and it must not depend
on anything that only the host knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from lamina.cuda_graphs.capture import CAPTURE_ERROR_MODE, no_garbage_collection
from lamina.data.batching import AnyBatch
from lamina.nn.compiling import compiled

# Before it is recorded a pass runs this often, since libraries set themselves up in their first calls.
WARM_UPS = 2
# A shape that came this often is taken to come again, and is recorded; but not ever more of them: each may be compiled.
SIGHTINGS = 4
MAX_SHAPES = 4

T = TypeVar("T")


def warm_up(compute: Callable[[], object], stream: torch.cuda.Stream) -> None:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(stream)


class Captured(Generic[T]):
    """The kernels of one call, and where they leave its result."""

    def __init__(self, compute: Callable[[], T], pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(self._graph, pool=pool, stream=stream,
                                                       capture_error_mode=CAPTURE_ERROR_MODE):
            self.result = compute()

    def replay(self) -> T:
        self._graph.replay()
        return self.result


class Recorder:
    """Records calls that share their memory: they run one after the other."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()

    def __call__(self, compute: Callable[[], T], *, is_warm: bool = False) -> Captured[T]:
        if not is_warm:
            warm_up(compute, self.stream)
        return Captured(compute, self.pool, self.stream)


class StaticBatches:
    """For each shape that comes again, one batch whose memory stays; others are copied into it."""

    def __init__(self) -> None:
        self._seen: Counter[Any] = Counter()
        self._tensors: dict[Any, dict[str, Tensor]] = {}

    def hold(self, batch: AnyBatch) -> AnyBatch | None:
        """The batch again, in memory that stays; None if its shape is not known to come again."""
        key = shape_of(batch)
        if key not in self._tensors:
            self._seen[key] += 1
            is_known = self._seen[key] >= SIGHTINGS or getattr(batch, "recurs", False)
            if not is_known or len(self._tensors) == MAX_SHAPES:
                return None
            self._tensors[key] = {name: torch.empty_like(tensor) for name, tensor in tensors_of(batch).items()}
        own = self._tensors[key]
        for name, tensor in tensors_of(batch).items():
            own[name].copy_(tensor, non_blocking=True)
        return replace(batch, **own)  # type: ignore[type-var]


def tensors_of(batch: AnyBatch) -> dict[str, Tensor]:
    values = {item.name: getattr(batch, item.name) for item in fields(batch)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def shape_of(batch: AnyBatch) -> tuple[Any, ...]:
    """Batches of one shape run the same kernels on the same number of bytes."""
    return (*((name, tensor.shape, tensor.dtype) for name, tensor in tensors_of(batch).items()),
            getattr(batch, "shape", None), getattr(getattr(batch, "draw", None), "shape", None))


def compiled_parts(model: nn.Module) -> dict[nn.Module, Any]:
    """What to run instead of a model's layers and embeddings; the compiler works when it is first run."""
    return {part: compiled(part.forward) for part in model.modules() if getattr(part, "is_compiled_whole", False)}


@contextmanager
def replaced(forwards: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Inside, these modules run other functions than their own."""
    for part, forward in forwards.items():
        part.forward = forward
    try:
        yield
    finally:
        for part in forwards:
            del part.forward
