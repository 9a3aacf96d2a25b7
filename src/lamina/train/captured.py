"""Passes over batches of one shape, recorded once and replayed: the host no longer decides how fast a GPU is.

An eager pass launches a thousand kernels one by one, which takes longer than they run. A CUDA graph launches them all at
once, on the same memory each time; so its input is copied into the batch that it was recorded with, and it must not depend
on anything that only the host knows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from lamina.data.batching import AnyBatch
from lamina.nn.embedding import InputEmbedding
from lamina.nn.stack import CausalLayer, DecoderLayer, EncoderLayer

# Before it is recorded a pass runs this often, since libraries set themselves up in their first calls.
WARM_UPS = 2
# Shapes that come again are recorded; what comes in ever new shapes would never be done with recording.
MAX_SHAPES = 8
# Parts that are compiled as a whole. Layers of a kind share their code, so that depth costs no compilation.
COMPILED_PARTS = (EncoderLayer, CausalLayer, DecoderLayer, InputEmbedding)

T = TypeVar("T")


class Recorded(Generic[T]):
    """The kernels of one call, and where they leave its result."""

    def __init__(self, compute: Callable[[], T], pool: Any, stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self.result = compute()

    def replay(self) -> T:
        self._graph.replay()
        return self.result


class Recorder:
    """Records calls that share their memory: they run one after the other."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()

    def __call__(self, compute: Callable[[], T]) -> Recorded[T]:
        return Recorded(compute, self.pool, self.stream)


class CapturedPasses:
    """One recording for each shape that has been seen before."""

    def __init__(self, compute: Callable[[AnyBatch], None], recorder: Recorder, note: Callable[[str], None]) -> None:
        self.compute = compute
        self.recorder = recorder
        self.note = note
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, tuple[dict[str, Tensor], Recorded[None]]] = {}

    def is_worth_recording(self, batch: AnyBatch) -> bool:
        """Whether a pass over this batch has a recording, or should have: its shape has come before."""
        key = shape_of(batch)
        self._seen[key] += 1
        return key in self._recorded or (self._seen[key] > 1 and len(self._recorded) < MAX_SHAPES)

    def is_recorded(self, batch: AnyBatch) -> bool:
        return shape_of(batch) in self._recorded

    def record(self, batch: AnyBatch) -> None:
        """Runs the pass a few times: whoever asks for it puts the gradient right again."""
        started = time.perf_counter()
        own = {name: tensor.clone() for name, tensor in tensors_of(batch).items()}
        static = replace(batch, **own)  # type: ignore[type-var]
        self._recorded[shape_of(batch)] = own, self.recorder(lambda: self.compute(static))
        torch.cuda.synchronize()
        self.note(f"recorded the update for batches of this shape in {time.perf_counter() - started:.1f} s")

    def replay(self, batch: AnyBatch) -> None:
        own, recorded = self._recorded[shape_of(batch)]
        for name, tensor in tensors_of(batch).items():
            own[name].copy_(tensor, non_blocking=True)
        recorded.replay()


def tensors_of(batch: AnyBatch) -> dict[str, Tensor]:
    values = {item.name: getattr(batch, item.name) for item in fields(batch)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def shape_of(batch: AnyBatch) -> tuple[Any, ...]:
    """Batches of one shape run the same kernels on the same number of bytes."""
    return (*((name, tensor.shape, tensor.dtype) for name, tensor in tensors_of(batch).items()),
            getattr(batch, "longest", None))


class CompiledParts:
    """A model's layers and embeddings as the compiler makes them, in place of the plain ones while `in_use`."""

    def __init__(self, model: nn.Module) -> None:
        self._forwards: dict[nn.Module, Any] = {part: torch.compile(part.forward, dynamic=False) for part in model.modules()
                          if isinstance(part, COMPILED_PARTS)}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        for part, forward in self._forwards.items():
            part.forward = forward
        try:
            yield
        finally:
            for part in self._forwards:
                del part.forward
