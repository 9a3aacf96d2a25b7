"""Forward and backward passes as CUDA graphs: whole ones, or layer by layer where not all layers run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lamina.cuda_graphs.layer_graphs import LayerGraphs
from lamina.cuda_graphs.recorder import Captured, Recorder, reason_of
from lamina.cuda_graphs.static_batches import StaticBatches, shape_of
from lamina.data.batching import AnyBatch
from lamina.distributed.weights import FlatWeights
from lamina.models.contract import Model
from lamina.nn.compiling import compiled_parts, replaced
from lamina.nn.stack import ALL_LAYERS, ActiveLayers

# An eager pass over a batch, as training/update.py does it.
ForwardBackward = Callable[..., None]


class CapturedPasses:
    """`is_compiled` and `is_off` say what has turned out to work."""

    def __init__(self, model: Model, weights: FlatWeights, forward_backward: ForwardBackward, note: Callable[[str], None],
                 skip_time: Callable[[float], None], *, is_compiled: bool) -> None:
        self.model = model
        self.weights = weights
        self.forward_backward = forward_backward
        self.recorder = Recorder(weights.master.device, failed=self._turn_off)
        self.note = note
        self.skip_time = skip_time
        self.is_compiled = is_compiled
        self._batches = StaticBatches()
        self._parts: dict[nn.Module, Any] = compiled_parts(model) if is_compiled else {}
        self._whole: dict[Any, Captured[None]] = {}
        self._layers: dict[Any, LayerGraphs] = {}
        # What the host alone knows differs from batch to batch.
        self._can_be_whole = not model.head.needs_host

    @property
    def is_off(self) -> bool:
        return not self.recorder.is_on

    def step(self, function: Callable[[], Tensor]) -> Tensor:
        """A step of the optimizer."""
        return self.recorder("step", function)

    def find(self, batch: AnyBatch, active: ActiveLayers, sums: Tensor) -> Callable[[], None] | None:
        """What to call for a pass over this batch, captured now if need be; None if its shape may never come again."""
        static = None if self.is_off else self._batches.hold(batch)
        if static is None:
            return None
        key, is_whole = shape_of(batch), self._can_be_whole and active == ALL_LAYERS
        if key not in (self._whole if is_whole else self._layers):
            # Capturing runs passes for nothing: what they add to is put right again.
            total = None if self.weights.replaces else self.weights.grad.clone()
            saved_sums = sums.clone()
            is_captured = self._capture(key, static, is_whole=is_whole)
            self.weights.forget_grad_()
            sums.copy_(saved_sums)
            if total is not None:
                self.weights.grad.copy_(total)
            if not is_captured:
                return None
        return self._whole[key].replay if is_whole else partial(self._pass_by_layers, static, active, self._layers[key])

    def _capture(self, key: Any, batch: AnyBatch, *, is_whole: bool) -> bool:
        """Whether it worked; if not, what stood in the way is off from now on."""
        started = time.perf_counter()
        if self.is_compiled:
            self.note("compiling and capturing updates: half a minute the first time, seconds when they are known")
        try:
            if is_whole:
                run = partial(self._pass, batch)
                self.recorder.warm_up(run)
                torch.cuda.synchronize()
                torch.cuda.empty_cache()  # what eager passes held is the graph's to take
                self._whole[key] = self.recorder.capture(run)
            else:
                self._layers[key] = self._layer_graphs(batch)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Whatever a compiler or a driver says: an eager update is slower, and as right.
            reason = reason_of(error)
            if self.is_compiled:
                self.note(f"--compile is off, since it failed: {reason}")
                self.is_compiled, self._parts = False, {}
                return self._capture(key, batch, is_whole=is_whole)
            self.recorder.is_on = False
            self._turn_off(reason)
            return False
        seconds = time.perf_counter() - started
        self.note(f"captured {'updates' if is_whole else 'the layers'} for batches of this shape, in {seconds:.1f} s")
        self.skip_time(seconds)
        return True

    def _turn_off(self, reason: str) -> None:
        self.note(f"--cuda-graphs is off, since it failed: {reason}")

    def _pass(self, batch: AnyBatch) -> None:
        with self.weights.gathering(), replaced(self._parts):
            self.forward_backward(batch, is_compiled=self.is_compiled)

    def _layer_graphs(self, batch: AnyBatch) -> LayerGraphs:
        return LayerGraphs(self.model, self._parts, self.weights.compute_grads(), self.recorder,
                           partial(self.model, *batch.inputs))

    def _pass_by_layers(self, batch: AnyBatch, active: ActiveLayers, layers: LayerGraphs) -> None:
        with layers.in_use({**self._parts, **layers.graphs}):
            self.forward_backward(batch, active, is_compiled=self.is_compiled)
        self.weights.collect_grad_()
