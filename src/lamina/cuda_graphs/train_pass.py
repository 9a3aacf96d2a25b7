"""Forward and backward passes as CUDA graphs, which hold all of a pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.cuda_graphs.recorder import Captured, Recorder, reason_of
from lamina.cuda_graphs.static_batches import SIGHTINGS, StaticBatches, shape_of
from lamina.data.batching import AnyBatch
from lamina.data.flat_texts import room_for_count
from lamina.distributed.weights import FlatWeights
from lamina.errors import LaminaError
from lamina.models.contract import Model
from lamina.nn.compiling import compiled_parts, kind_of, replaced
from lamina.nn.dropout import counted_draws
from lamina.nn.stack import ALL_LAYERS, ActiveLayers

# An eager pass over a batch, as training/update.py does it.
ForwardBackward = Callable[..., None]
Sizes = tuple[int, ...]  # that the host alone knows of a batch (VocabularyHead.host_sizes)

MISSES_TOLD, SHARE_TOLD = 50, 0.1
LOSS = "the loss"  # beside the kinds of parts
COST_OF_EAGER = "Small batches take up to eight times as long (docs/performance.md)"


class _CapturedPass(NamedTuple):
    captured: Captured[None]
    room: Sizes


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
        self._left_out: set[str] = set()  # kinds of parts that do not compile
        self._passes: dict[Any, _CapturedPass] = {}
        self._num_found = self._num_missed = 0  # batches, and those of shapes that did not recur
        self._has_told = False
        self._exceeded: Counter[Any] = Counter()  # by shape, how often a batch had no room

    @property
    def is_off(self) -> bool:
        return not self.recorder.is_on

    def step(self, function: Callable[[], Tensor]) -> Tensor:
        """A step of the optimizer."""
        return self.recorder("step", function)

    def find(self, batch: AnyBatch, active: ActiveLayers, sums: Tensor) -> Callable[[], None] | None:
        """What to call for a pass over this batch, captured now if need be; None if it is to run eagerly.

        That is so where whole layers are left out, where its shape may never come again, and where it exceeds the room that a
        captured pass has.
        """
        if self.is_off or active != ALL_LAYERS:
            return None
        sizes = self.model.head.host_sizes(getattr(batch, "target_on_host", None))
        if sizes is None:
            reason = reason_of(LaminaError("its batches do not tell the host the words they predict (target_on_host)"))
            self.recorder.is_on = False
            self._turn_off(reason)
            return None
        static = self._batches.hold(batch)
        self._num_found += 1
        if static is None:
            self._num_missed += 1
            self._tell_of_misses()
            return None
        key = shape_of(batch)
        known = self._passes.get(key)
        if known is not None and not _fits(sizes, known.room):
            self._exceeded[key] += 1
            if self._exceeded[key] % SIGHTINGS:
                return None
            # Not by chance, then: words have become rarer.
            self._passes.pop(key)
        if key not in self._passes:
            # Capturing runs passes for nothing: what they add to is put right again.
            total = None if self.weights.replaces else self.weights.added_up.clone()
            saved_sums = sums.clone()
            is_captured = self._capture(key, static, room_for(sizes, known.room if known else ()))
            self.weights.forget_grad_()
            sums.copy_(saved_sums)
            if total is not None:
                self.weights.added_up.copy_(total)
            if not is_captured:
                return None
        return self._passes[key].captured.replay

    def _capture(self, key: Any, batch: AnyBatch, room: Sizes) -> bool:
        """Whether it worked; if not, what stood in the way is off from now on."""
        started = time.perf_counter()
        if self.is_compiled:
            self.note("compiling and capturing updates: half a minute the first time, seconds when they are known")
        capture = partial(self._failure, key, batch, room)
        failure = capture()
        if failure is not None and self.is_compiled:
            failure = self._compile_less(failure, capture)
        if failure is not None:
            self.recorder.is_on = False
            self._turn_off(failure)
            return False
        seconds = time.perf_counter() - started
        self.note(f"captured updates for batches of this shape, in {seconds:.1f} s")
        self.skip_time(seconds)
        return True

    def _failure(self, key: Any, batch: AnyBatch, room: Sizes) -> str | None:
        """Why a pass could not be captured; None: it is."""
        try:
            run = partial(self._pass, batch, room)
            self.recorder.warm_up(run)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what eager passes held is the graph's to take
            self._passes[key] = _CapturedPass(self.recorder.capture(run), room)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Whatever a compiler or a driver says: an eager update is slower, and as right.
            return reason_of(error)
        return None

    def _compile_less(self, failure: str, capture: Callable[[], str | None]) -> str | None:
        """Without one kind of part, if that is enough; otherwise nothing is compiled any more."""
        for kind in dict.fromkeys([*map(kind_of, self._parts), LOSS]):
            if kind in self._left_out:
                continue
            self._left_out.add(kind)
            if capture() is None:
                self.note(f"--compile is off for {kind}, since it failed: {failure}")
                return None
            self._left_out.remove(kind)
        self.note(f"--compile is off, since it failed: {failure}")
        self.is_compiled = False
        return capture()

    def _tell_of_misses(self) -> None:
        if self._has_told or self._num_missed < MISSES_TOLD or self._num_missed < SHARE_TOLD * self._num_found:
            return
        self._has_told = True
        if not self._passes:
            self.note(f"updates are eager: {self._num_missed} batches kept changing shape, and what is captured has one. "
                      f"{COST_OF_EAGER}")
            return
        shapes = "the one that is" if len(self._passes) == 1 else f"the {len(self._passes)} that are"
        self.note(f"{self._num_missed} of {self._num_found} batches ran eagerly: they had other shapes than {shapes} captured. "
                  f"{COST_OF_EAGER}")

    def _turn_off(self, reason: str) -> None:
        self.note(f"--cuda-graphs is off, since it failed: {reason}. {COST_OF_EAGER}")

    def _pass(self, batch: AnyBatch, room: Sizes) -> None:
        parts = {part: run for part, run in self._parts.items() if self.is_compiled and kind_of(part) not in self._left_out}
        with self.weights.gathering(), replaced(parts), counted_draws(), self.model.head.with_room(room):
            self.forward_backward(batch, is_compiled=self.is_compiled and LOSS not in self._left_out)


def room_for(sizes: Sizes, least: Sizes = ()) -> Sizes:
    """For other batches like the one of these sizes, and for what has come before."""
    rooms = [room_for_count(size) for size in sizes]
    return tuple(map(max, rooms, least or rooms))


def _fits(sizes: Sizes, room: Sizes) -> bool:
    return all(size <= own for size, own in zip(sizes, room, strict=True))
