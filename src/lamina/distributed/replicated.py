"""Every rank holds all weights; their gradients are added up over ranks while backward still works on others.

Not torch's DistributedDataParallel, which waits for a gradient of every parameter: a layer that LayerDrop skips has none.
Here all ranks know which layers run, and gradients of the others are neither waited for nor sent. And the weights lie in
one tensor already, so that a bucket is a piece of it and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from lamina.distributed.ranks import Ranks
from lamina.distributed.weights import FlatWeights
from lamina.nn.stack import ActiveLayers


class Bucket:
    """Neighbours in the flat gradient that travel together, once all of them are there."""

    def __init__(self, numbers: range, place: slice) -> None:
        self.waits_for = set(numbers)
        self.place = place


class ReplicatedWeights(FlatWeights):
    """Buckets leave in the same order on all ranks, from the last parameter to the first, as backward reaches them.

    A pass that is replayed runs no hooks: its gradients are collected when it ends, and all buckets leave then. The order is
    the same, so ranks that replay and ranks that do not understand each other.
    """

    sends = True

    def __init__(self, model: nn.Module, dtype: torch.dtype, ranks: Ranks, bucket_size: int, *,
                 accumulates: bool = True) -> None:
        super().__init__(model, dtype, accumulates=accumulates)
        self.ranks = ranks
        self.bucket_size = bucket_size
        self._is_collected = False  # whether the gradient is whole but for that of other ranks
        self._buckets: list[Bucket] | None = None  # those that have not left yet, the next one first
        self._bucket_of: dict[int, Bucket] = {}
        self._sent: list[Any] = []
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))

    def expect_replays_(self) -> None:
        self.bucket_size = len(self.grad)  # nothing is gained by small ones, and each is a call

    def expect_last_(self, active: ActiveLayers) -> None:
        has_grad = [not is_skipped(name, active) for name in self.names]
        self._buckets, self._is_collected = [], False
        for numbers in buckets(self.starts, len(self.grad), has_grad, self.bucket_size):
            end = len(self.grad) if numbers.stop == len(self.names) else self.starts[numbers.stop]
            self._buckets.append(Bucket(numbers, slice(self.starts[numbers.start], end)))
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.waits_for}

    def collect_grad_(self) -> None:
        if self._buckets is None and self.is_half:  # buckets collect for themselves
            super().collect_grad_()
            if not self.accumulates:  # one batch, of which memory has made several pieces
                self.grad.add_(self.compute_grad)
                self.compute_grad.zero_()

    @property
    def can_begin_again(self) -> bool:
        return not self._sent

    def forget_grad_(self) -> None:
        super().forget_grad_()
        self._buckets = None

    def sum_grad_(self, active: ActiveLayers) -> None:
        if self._buckets is None:  # no batch, which adds zeros, or all of it replayed
            self.expect_last_(active)
            self._is_collected = True
        assert self._buckets is not None
        with self.ranks.waits.for_ranks(self.ranks.device):
            while self._buckets:
                self._send_next()  # parameters that took no part hold zeros, and their buckets wait no longer
            for work in self._sent:
                work.wait()
        self._sent.clear()
        self._buckets = None
        if self.is_half and not self._is_collected:
            self.compute_grad.zero_()

    def _arrived(self, number: int, _: Tensor) -> None:
        if self._buckets is None or number not in self._bucket_of:
            return
        self._bucket_of[number].waits_for.discard(number)
        while self._buckets and not self._buckets[0].waits_for:
            self._send_next()

    @torch.no_grad()
    def _send_next(self) -> None:
        assert self._buckets
        place = self._buckets.pop(0).place
        if self.is_half and not self._is_collected:
            self.grad[place].add_(self.compute_grad[place])
        self._sent.append(dist.all_reduce(self.grad[place], async_op=True))


def is_skipped(name: str, active: ActiveLayers) -> bool:
    """Whether the parameter belongs to a layer that does not run."""
    stack, _, rest = name.partition(".layers.")
    runs_of_stack = {"encoder": active.encoder, "decoder": active.decoder}.get(stack)
    return bool(rest) and runs_of_stack is not None and not runs_of_stack[int(rest.split(".")[0])]


def buckets(starts: Sequence[int], size: int, active: Sequence[bool], limit: int) -> Iterator[range]:
    """Runs of neighbouring active parameters with at most `limit` elements (or one parameter), the last ones first."""
    ends = [*starts[1:], size]
    stop = len(starts)
    while stop > 0:
        if not active[stop - 1]:
            stop -= 1
            continue
        first = stop - 1
        while first > 0 and active[first - 1] and ends[stop - 1] - starts[first - 1] <= limit:
            first -= 1
        yield range(first, stop)
        stop = first
