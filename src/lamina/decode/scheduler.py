"""A search from the host's side: which sentence sits in which slot, who is finished, who comes next.

On a GPU the host runs ahead. It reads the flags of a step while the device works on the next one, and what it knows without
asking (how many steps ago a slot was filled) decides how much of the past a step looks at.
"""

# B slots, T steps, K beams

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.cuda_graphs.recorder import Recorder
from lamina.decode.backtrace import Hypothesis, hypotheses_of
from lamina.decode.beam_step import BeamStep
from lamina.decode.constraints import Constraints
from lamina.decode.requests import Entries, Sentences, moved
from lamina.decode.step_rules import Due

if TYPE_CHECKING:
    from lamina.decode.search import Search

# Finished sentences leave when they are this share of the slots; sooner, it would cost more than it saves.
LEAVING_SHARE = 1 / 8
# On a GPU, results handed out after each step are this share of the slots: what the caller does with them is then done while
# the device works.
RESULTS_SHARE = 1 / 12
NOBODY = -1
# On a GPU, lengths that a step is recorded for, and widths that an encoder pass is: powers of two from here on.
SHORTEST_LENGTH = 32
NARROWEST_WIDTH = 16

Finished = tuple[int, list[Hypothesis]]  # a sentence's number, and what was found


class OnItsWay(NamedTuple):
    """Something that the device copies to the host."""

    value: Tensor
    event: torch.cuda.Event | None

    @classmethod
    def of(cls, tensor: Tensor) -> OnItsWay:
        if tensor.device.type == "cpu":
            return cls(tensor.clone(), None)
        value = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        value.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensor.device))
        return cls(value, event)

    @property
    def is_here(self) -> bool:
        return self.event is None or self.event.query()

    def get(self) -> np.ndarray:
        if self.event is not None:
            self.event.synchronize()
        return self.value.numpy()


class Scheduler:
    """Iterate over it for each sentence's number and hypotheses, in the order in which they finish."""

    def __init__(self, search: Search, sentences: Sentences, numbers: Sequence[int], num_slots: int, device: torch.device,
                 constraints: Constraints | None = None) -> None:
        self.search = search
        self.sentences = sentences
        self.device = device
        self.constraints = constraints
        self.waiting = deque(numbers)
        self.is_ahead = works_by_itself(device) and constraints is None
        self.graphs = Recorder(device, is_on=self.is_ahead and search.config.cuda_graphs)
        num_slots = min(num_slots, len(numbers))
        self.refills = num_slots < len(numbers)
        self.group = max(1, int(num_slots * LEAVING_SHARE))  # sentences that come and go together
        width = max(sentences.lengths[number] for number in numbers)
        first = [self.waiting.popleft() for _ in range(num_slots)]
        entries = sentences.entries(first, range(num_slots), self._wide(width)).to(device)
        self.slots = BeamStep(search, entries, sentences.num_steps, constraints,
                           is_even=not self.refills and not self.graphs.is_on)
        self.who = np.array(first)  # (B,): the sentence in each slot
        self.tick = 0  # steps so far
        self.filled_at = np.zeros(num_slots, dtype=int)
        self.num_before = np.full(num_slots, entries.num_shared)  # tokens that were read when the slot was filled
        self.is_finished = np.zeros(num_slots, dtype=bool)  # as far as the host knows
        self.flags: deque[tuple[int, OnItsWay]] = deque()
        self.results: deque[tuple[np.ndarray, OnItsWay]] = deque()
        self.ready: deque[Finished] = deque()
        self.inputs: dict[int, Entries] = {}  # where recorded encoder passes look, by width

    def __iter__(self) -> Iterator[Finished]:
        while not self.is_finished.all():
            due = self._due()
            if self.slots.reserve_(due.length):
                self.graphs.forget()
            self.graphs(due, lambda due=due: self.slots.step_(due))  # type: ignore[misc]
            self.tick += 1
            self.flags.append((self.tick, OnItsWay.of(self.slots.is_done)))
            yield from self._results()
            if len(self.flags) > self.is_ahead:
                self._look()
            self._exchange()
        yield from self._results(is_last=True)

    def _due(self) -> Due:
        active = ~self.is_finished
        numbers = self.who[active]
        steps = self.tick - self.filled_at[active] + self.num_before[active]
        limits = self.sentences.limits[numbers]
        length = int(np.minimum(steps, limits).max()) + 1
        if self.graphs.is_on:
            length = min(power_of_two(length, SHORTEST_LENGTH), self.slots.max_length)
        return Due(length, has_ends=bool((steps >= limits).any()),
                   has_prefixes=bool((steps < self.sentences.prefix_lengths[numbers]).any()))

    def _look(self) -> None:
        """Who is finished, as the flags of the oldest step tell."""
        tick, flags = self.flags.popleft()
        self.is_finished |= flags.get() & (self.filled_at < tick)
        if self.constraints is not None and self.slots.beams is not None and not self.is_finished.all():
            self.constraints.advance_(self.slots.beams, np.flatnonzero(~self.is_finished).tolist())

    def _exchange(self) -> None:
        """Finished sentences leave; others come in their place, or fewer slots go on."""
        leaving = np.flatnonzero(self.is_finished & (self.who != NOBODY))
        is_end = bool(self.is_finished.all())
        if len(leaving) < self.group and not is_end:
            return
        if len(leaving):
            self._take(leaving)
        while self.waiting and len(free := np.flatnonzero(self.who == NOBODY)[: self.group]):
            if len(free) < min(self.group, len(self.waiting)) and not is_end:
                return
            self._fill(free[: len(self.waiting)])
        if not self.waiting and not self.is_ahead and not is_end:
            self._shrink()

    def _take(self, leaving: np.ndarray) -> None:
        """Fetch what these slots have found."""
        steps = self.tick - self.filled_at[leaving] + self.num_before[leaving]
        length = int(np.minimum(steps, self.sentences.limits[self.who[leaving]] + 1).max())
        with torch.inference_mode():
            notes = self.slots.trace.of(moved(torch.from_numpy(leaving), self.device), length)
        self.results.append((self.who[leaving], OnItsWay.of(notes)))
        self.who[leaving] = NOBODY

    def _fill(self, slots: np.ndarray) -> None:
        numbers = [self.waiting.popleft() for _ in slots]
        self.who[slots], self.filled_at[slots], self.is_finished[slots] = numbers, self.tick, False
        if not self.graphs.is_on or self.sentences.num_known[numbers].any():
            # Prompts, which are read at once, have no shape in common.
            entries = self.sentences.entries(numbers, slots.tolist()).to(self.device)
            self.num_before[slots] = entries.num_shared
            if self.slots.reserve_(entries.num_shared):
                self.graphs.forget()
            self.slots.fill_(entries)
            return
        self.num_before[slots] = 0
        # A recorded pass has one size: the last sentence may come in several times.
        missing = self.group - len(slots)
        width = self._wide(max(self.sentences.lengths[number] for number in numbers))
        entries = self.sentences.entries([*numbers, *numbers[-1:] * missing], [*slots, *slots[-1:].repeat(missing)], width)
        if width not in self.inputs:
            self.inputs[width] = entries.to(self.device)
        else:
            self.inputs[width].copy_(entries)
        self.graphs(("fill", width), lambda: self.slots.fill_(self.inputs[width]))

    def _shrink(self) -> None:
        kept = np.flatnonzero(~self.is_finished)
        self.slots.select_(moved(torch.from_numpy(kept), self.device))
        if self.constraints is not None:
            self.constraints.select_(kept.tolist())
        self.who, self.filled_at, self.num_before = self.who[kept], self.filled_at[kept], self.num_before[kept]
        self.is_finished = self.is_finished[kept]
        self.group = max(1, int(len(kept) * LEAVING_SHARE))

    def _results(self, *, is_last: bool = False) -> Iterator[Finished]:
        while self.results and (is_last or self.results[0][1].is_here):
            numbers, notes = self.results.popleft()
            lengths = [self.sentences.lengths[number] for number in numbers]
            self.ready.extend(zip(numbers.tolist(), hypotheses_of(notes.get(), self.search.config, lengths), strict=True))
        number = len(self.ready)
        if self.is_ahead and not is_last:
            number = min(number, max(1, int(len(self.who) * RESULTS_SHARE)))
        for _ in range(number):
            yield self.ready.popleft()

    def _wide(self, width: int) -> int:
        return power_of_two(width, NARROWEST_WIDTH) if self.graphs.is_on else width


def works_by_itself(device: torch.device) -> bool:
    """Whether the host can hand it work and go on."""
    return device.type == "cuda"


def power_of_two(number: int, smallest: int) -> int:
    """The least power of two that is not below either."""
    return 1 << (max(number, smallest) - 1).bit_length()
