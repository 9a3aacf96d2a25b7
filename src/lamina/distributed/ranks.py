"""The processes of a run, and what they tell each other; one process alone is the same without others.

A run on several GPUs is one process a GPU. All know the same plan and take the same decisions from the same sums, so what
travels is gradients and a few numbers. Texts travel as JSON: nothing that a peer sends can run code.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from lamina.distributed.waiting import Waits

T = TypeVar("T")

FAILURES = "failures"  # how many ranks have failed
TOLD = "told"  # set once one of them knows what to say
SECONDS_FOR_OTHERS = 1.0
SECONDS_TO_TELL = 10.0


@dataclass(frozen=True)
class Ranks:
    """This process, its number among all, and its peers."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    is_group: bool = False  # also where it is of one: tests and benchmarks measure what talking costs
    store: Any = None  # torch's, shared by all ranks from the start to the end
    waits: Waits = field(default_factory=Waits, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """The one that prints and writes."""
        return self.rank == 0

    @property
    def talks(self) -> bool:
        return self.size > 1 or self.is_group

    def sum(self, *values: int) -> tuple[int, ...]:
        """Whole numbers that the hosts know, added up over all ranks without asking a device."""
        if not self.talks:
            return values
        return tuple(self.sum_(torch.tensor(values, dtype=torch.int64)).tolist())

    def sum_(self, tensor: Tensor) -> Tensor:
        """In place, where the tensor lives; all ranks get the same bits."""
        if self.talks:
            with self.waits.for_ranks(self.device):
                dist.all_reduce(tensor)
        return tensor

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """What the first rank has is what all have."""
        if self.talks:
            dist.broadcast(tensor, src=0)
        return tensor

    def share(self, items: list[T]) -> list[T]:
        """This rank's, dealt out in turn."""
        return items[self.rank :: self.size]

    def gather(self, own: list[T]) -> list[T]:
        """The inverse of `share`, on every rank: what each made of its items, in the order of the whole."""
        if self.size == 1:
            return own
        packed = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(packed)]))
        longest = int(max(lengths))
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(parts, torch.nn.functional.pad(packed, (0, longest - len(packed))))
        rows = [json.loads(part[: int(length)].numpy().tobytes()) for part, length in zip(parts, lengths, strict=True)]
        return [rows[place % self.size][place // self.size] for place in range(sum(map(len, rows)))]

    def is_first_to_fail(self) -> bool:
        """Whether no other rank has an error to show yet: one run, one error.

        The first rank may be the one that keeps the count, so it stays a moment for those that fail with it. Who finds the
        count gone tells its own error: twice is better than never.
        """
        if self.store is None:
            return True
        try:
            is_first = self.store.add(FAILURES, 1) == 1
            until = time.monotonic() + SECONDS_FOR_OTHERS
            while self.is_first and self.store.add(FAILURES, 0) < self.size and time.monotonic() < until:
                time.sleep(0.02)
        except dist.DistError:
            return True
        return is_first

    def note_told(self) -> None:
        """The error is known, and this process about to end with it."""
        if self.store is not None:
            with suppress(dist.DistError):
                self.store.set(TOLD, "yes")

    def wait_until_told(self) -> None:
        """Stay until then: a launcher ends all ranks when one is gone."""
        until = time.monotonic() + SECONDS_TO_TELL
        with suppress(dist.DistError):
            while self.store is not None and not self.store.check([TOLD]) and time.monotonic() < until:
                time.sleep(0.05)


ALONE = Ranks()
