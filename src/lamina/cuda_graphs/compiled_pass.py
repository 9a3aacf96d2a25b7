"""Eager passes with compiled layers: what is left to gain where a pass cannot be captured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import nn

from lamina.cuda_graphs.recorder import reason_of
from lamina.cuda_graphs.static_batches import RecurringShapes
from lamina.data.batching import AnyBatch
from lamina.models.contract import Model
from lamina.nn.compiling import compiled, kind_of, parts_to_compile, replaced
from lamina.nn.dropout import counted_draws
from lamina.nn.stack import ALL_LAYERS, ActiveLayers


class CompiledPasses:
    """Calls `forward_backward`, with compiled layers for batches of a shape that comes again.

    Layers alone are compiled, each in one piece, and not what calls them: FSDP gathers a layer's weights before that, and
    scatters its gradients after. So ranks that compile and ranks that do not send the same. Where the compiler fails, layers of
    that kind run eagerly, in the middle of a pass too: the others may already wait for this rank.
    """

    def __init__(self, model: Model, forward_backward: Callable[..., None], note: Callable[[str], None],
                 skip_time: Callable[[float], None]) -> None:
        self.forward_backward = forward_backward
        self.note = note
        self.skip_time = skip_time
        self._left_out: set[str] = set()  # kinds of parts that do not compile
        self._recurring = RecurringShapes()
        self._compiled: set[Any] = set()  # shapes
        self._parts: dict[nn.Module, Any] = {part: self.or_eager(part.forward, kind_of(part))
                                             for part in parts_to_compile(model)}

    @property
    def is_on(self) -> bool:
        return not {kind_of(part) for part in self._parts} <= self._left_out

    def __call__(self, batch: AnyBatch, active: ActiveLayers = ALL_LAYERS, *, is_filler: bool = False) -> None:
        shape = self._recurring(batch) if self.is_on else None
        if shape is None:
            self.forward_backward(batch, active, is_filler=is_filler)
            return
        started, is_new = time.perf_counter(), shape not in self._compiled
        if is_new:
            self.note("compiling layers: half a minute the first time, seconds when they are known")
        with replaced(self._parts), counted_draws():
            self.forward_backward(batch, active, is_filler=is_filler, is_compiled=True)
        if is_new and self.is_on:
            self._compiled.add(shape)
            seconds = time.perf_counter() - started
            self.note(f"compiled layers for batches of this shape, in {seconds:.1f} s")
            self.skip_time(seconds)

    def or_eager(self, eager: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """The function compiled, as long as the compiler works for this kind."""
        from torch._dynamo.exc import TorchDynamoException

        fast = compiled(eager)

        def run(*arguments: Any) -> Any:
            if kind not in self._left_out:
                try:
                    return fast(*arguments)
                except TorchDynamoException as error:
                    self._left_out.add(kind)
                    self.note(f"--compile is off for {kind}, since it failed: {reason_of(error)}")
            return eager(*arguments)

        return run
