"""A search from the host's side: which sentence sits in which slot, who is finished, who comes next.

On a GPU the host runs ahead. It reads the flags of a step while the device works on the next one, and what it knows without
asking (how many steps ago a slot was filled) decides how much of the past a step looks at.
"""

# B slots, T steps, K beams

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.cuda_graphs.recorder import Recorder
from lamina.decode.backtrace import Hypothesis, hypotheses_of
from lamina.decode.beam_step import BeamStep
from lamina.decode.constraints import Constraints
from lamina.decode.requests import Entries, Sentence, entries_of, moved
from lamina.decode.step_rules import Due

if TYPE_CHECKING:
    from lamina.decode.search import Search

# Finished sentences leave when they are this share of the slots; sooner, it would cost more than it saves.
LEAVING_SHARE = 1 / 8
# On a CPU, sentences join an open scheduler in groups, which are encoded together and share an attention: when so many wait for
# each one that runs, or after so many steps.
JOINING_SHARE = 1 / 4
PATIENCE = 4
# Of many that join at once, each group has about one length.
GROUP = 16
# On a GPU, results handed out after each step are this share of the slots: what the caller does with them is then done while
# the device works.
RESULTS_SHARE = 1 / 12
NOBODY = -1
# On a GPU, lengths that a step is captured for, and widths that an encoder pass is: powers of two from here on.
SHORTEST_LENGTH = 32
NARROWEST_WIDTH = 16

Finished = tuple[Any, list[Hypothesis]]  # a sentence's key, and what was found


class OnItsWay(NamedTuple):
    """Something that the device copies to the host."""

    value: Tensor
    event: torch.cuda.Event | None

    @classmethod
    def of(cls, tensor: Tensor, old: OnItsWay | None = None) -> OnItsWay:
        """`old` is one of such a tensor that nobody reads any more: its memory is used again."""
        if tensor.device.type == "cpu":
            return cls(tensor.clone(), None)
        value = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) if old is None else old.value
        value.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event() if old is None or old.event is None else old.event
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
    """Slots in which sentences are searched, and the queue of those that wait for one: continuous batching.

    `add` sentences at any time, and call `step` until it is idle. Each step is one token for every slot; a sentence that is
    finished leaves, and the next one takes its slot. Iterating does all steps. Where all sentences are known beforehand
    (`known`), sizes follow from them; an open scheduler takes sources of at most `width` tokens.
    """

    def __init__(self, search: Search, num_slots: int, device: torch.device, *, known: Sequence[Sentence] = (), width: int = 0,
                 has_constraints: bool = False) -> None:
        self.search = search
        self.device = device
        self.constraints = Constraints(search.config.beam) if has_constraints else None
        self.is_ahead = works_by_itself(device) and not has_constraints
        self.graphs = Recorder(device, is_on=self.is_ahead and search.config.cuda_graphs)
        self.is_open = not known
        self.num_slots = num_slots if self.is_open else min(num_slots, len(known))
        self.width = self._wide(max((len(sentence.source) for sentence in known), default=width))
        self.num_prefix = max((len(sentence.prefix) for sentence in known), default=0)
        self.num_steps = 1 + (max(sentence.limit for sentence in known) if known else search.sentences().most(width))
        self.waiting = deque(known)
        self.slots: BeamStep | None = None
        self._resize(0)
        self.tick = 0  # steps so far
        self.due = Due(0)
        self.due_until = 0  # before this tick each step is like the last one, unless a sentence comes or goes
        self.has_waited = 0  # steps since somebody waits
        self.flags: deque[tuple[int, OnItsWay]] = deque()
        self.old_flags: OnItsWay | None = None
        self.results: deque[tuple[list[Sentence], OnItsWay]] = deque()
        self.ready: deque[Finished] = deque()
        self.inputs: dict[int, Entries] = {}  # where captured encoder passes look, by width

    def _resize(self, number: int) -> None:
        """What the host knows of each slot, of so many empty ones."""
        self.who = np.full(number, None, dtype=object)  # (B,): the sentence in each slot
        self.filled_at = np.zeros(number, dtype=int)
        self.num_before = np.zeros(number, dtype=int)  # tokens that were read when the slot was filled
        self.limits = np.zeros(number, dtype=int)
        self.num_prefixed = np.zeros(number, dtype=int)
        self.is_finished = np.ones(number, dtype=bool)  # as far as the host knows

    # -- from outside

    def add(self, sentence: Sentence) -> None:
        self.waiting.append(sentence)
        self.due_until = 0

    def drop(self, keys: Collection[Any]) -> None:
        """Forget these sentences, waiting or searched."""
        self.waiting = deque(sentence for sentence in self.waiting if sentence.key not in keys)
        slots = np.array([slot for slot in self._running() if self.who[slot].key in keys], dtype=int)
        if len(slots) and self.slots is not None:
            self.slots.drop_(moved(torch.from_numpy(slots), self.device))
            self.is_finished[slots], self.who[slots] = True, None
            self.due_until = 0

    @property
    def num_sentences(self) -> int:
        """Waiting, or searched."""
        return len(self.waiting) + len(self._running())

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.results or self.ready or self.tick < self.due_until or len(self._running()))

    def __iter__(self) -> Iterator[Finished]:
        while not self.is_idle:
            yield from self.step()

    def step(self) -> Iterator[Finished]:
        """One token further in every slot, and what is known to be finished by then.

        What the caller does with the results is done while a GPU works: so they come before the flags are looked at.
        """
        if self.tick >= self.due_until:
            self._admit()
            if self.slots is None or self.is_finished.all():
                yield from self._results(is_last=True)
                return
            self._look_ahead(self.slots)
        slots, due = self.slots, self.due
        assert slots is not None
        self.graphs(due, lambda: slots.step_(due))
        self.tick += 1
        self.flags.append((self.tick, OnItsWay.of(slots.is_done, self.old_flags)))
        self.old_flags = None
        if self.results or self.ready:
            yield from self._results()
        if len(self.flags) > self.is_ahead and self._look(slots):
            self.due_until = 0
            self._leave(slots)

    # -- inside

    def _running(self) -> np.ndarray:
        return np.flatnonzero(self.who != None)  # noqa: E711, element by element

    def _look_ahead(self, slots: BeamStep) -> None:
        """What the next step is like, and how many steps will be like it: a GPU may wait for little but the host."""
        active = ~self.is_finished
        steps = self.tick - self.filled_at[active] + self.num_before[active]
        limits, num_prefixed = self.limits[active], self.num_prefixed[active]
        length = int(np.minimum(steps, limits).max()) + 1
        has_ends, has_prefixes = bool((steps >= limits).any()), bool((steps < num_prefixed).any())
        number = 1
        if self.graphs.is_on:
            wide = min(power_of_two(length, SHORTEST_LENGTH), slots.max_length)
            number += min([wide - length, *([] if has_ends else [int((limits - steps).min()) - 1]),
                           *([int((num_prefixed - steps).max()) - 1] if has_prefixes else [])])
            length = wide
        self.due, self.due_until = Due(length, has_ends, has_prefixes), self.tick + number if self.is_ahead else 0
        if slots.reserve_(length):
            self.graphs.forget()

    def _look(self, slots: BeamStep) -> bool:
        """Who is finished, as the flags of the oldest step tell; whether somebody may have to leave."""
        tick, flags = self.flags.popleft()
        found = flags.get() & (self.filled_at < tick)
        self.old_flags = flags
        if self.is_ahead and not (found & ~self.is_finished).any():
            return False
        self.is_finished |= found
        if self.constraints is not None and slots.beams is not None and not self.is_finished.all():
            self.constraints.advance_(slots.beams, np.flatnonzero(~self.is_finished).tolist())
        return True

    def _leave(self, slots: BeamStep) -> None:
        """Fetch what is finished."""
        leaving = np.flatnonzero(self.is_finished & (self.who != None))  # noqa: E711
        # Some together, since less often costs less; but a client that waits for an answer gets it at once.
        if not len(leaving) or (len(leaving) < self._group and not self.is_open and not self.is_finished.all()):
            return
        steps = self.tick - self.filled_at[leaving] + self.num_before[leaving]
        length = int(np.minimum(steps, self.limits[leaving] + 1).max())
        with torch.inference_mode():
            notes = slots.trace.of(moved(torch.from_numpy(leaving), self.device), length)
        self.results.append((self.who[leaving].tolist(), OnItsWay.of(notes)))
        self.who[leaving] = None

    @property
    def _group(self) -> int:
        """Sentences that come and go together."""
        return max(1, int(len(self.who) * LEAVING_SHARE))

    def _admit(self) -> None:
        """Sentences that wait take free slots. On a CPU there are as many slots as there are sentences, or hardly more."""
        if self._is_elastic and not len(self._running()):
            self.slots = None
            self._resize(0)
        if self._is_elastic and self.is_open:
            self._join()
            return
        if self.slots is None:
            if self.waiting:
                self._begin()
            return
        if self._is_elastic:
            self._fit_slots(self.slots)
        while self.waiting and len(free := np.flatnonzero(self.who == None)):  # noqa: E711
            if len(free) < min(self._group, len(self.waiting)) and not self.is_finished.all() and not self._is_elastic:
                return
            # A captured pass has one size.
            self._fill(self.slots, free[: min(self._group if self.graphs.is_on else len(free), len(self.waiting))])

    def _begin(self) -> None:
        """The first sentences; slots that are left over are as if they were done."""
        first = [self.waiting.popleft() for _ in range(min(self.num_slots, len(self.waiting)))]
        number = len(first) if self._is_elastic else self.num_slots
        entries = self._entries([*first, *first[-1:] * (number - len(first))], range(number), self.width).to(self.device)
        self.slots = BeamStep(self.search, entries, self.num_steps, self.constraints, is_even=not self.graphs.is_on)
        self._resize(number)
        self._note(np.arange(len(first)), first, entries.num_shared)
        if number > len(first):
            self.slots.drop_(moved(torch.arange(len(first), number), self.device))

    def _join(self) -> None:
        """In an open scheduler on a CPU, slots go with their sentences, and a group that comes brings its own."""
        running = self._running()
        if self.slots is not None and len(running) < len(self.who):
            self._select(self.slots, running)
        number = min(len(self.waiting), self.num_slots - len(running))
        if number < min(GROUP, JOINING_SHARE * len(running)) and self.has_waited < PATIENCE:
            self.has_waited += number > 0
            return
        self.has_waited = 0
        # The longest first: those that are finished are likely to be neighbours.
        joining = sorted((self.waiting.popleft() for _ in range(number)), key=lambda sentence: -len(sentence.source))
        for begin in range(0, number, GROUP):
            self._add_group(joining[begin : begin + GROUP])

    def _add_group(self, sentences: Sequence[Sentence]) -> None:
        places = np.arange(len(self.who), len(self.who) + len(sentences))
        entries = self._entries(sentences, places.tolist())
        if self.slots is None:
            self.slots = BeamStep(self.search, entries, self.num_steps, self.constraints, grows=True)
            self._resize(len(sentences))
        else:
            self.slots.extend_(entries)
            self._take(np.append(np.arange(len(self.who)), np.zeros(len(sentences), dtype=int)))
        self._note(places, sentences, entries.num_shared)

    def _fit_slots(self, slots: BeamStep) -> None:
        """More slots where sentences wait, fewer where enough are free and none waits."""
        free = int((self.who == None).sum())  # noqa: E711
        missing = min(len(self.waiting), self.num_slots - len(self.who) + free) - free
        if missing <= 0 and (self.waiting or free < max(1, int(len(self.who) * LEAVING_SHARE))):
            return
        kept = np.arange(len(self.who)) if missing > 0 else self._running()
        # A slot that is new is a copy of another one until it is filled.
        self._select(slots, np.append(kept, kept[:1].repeat(max(missing, 0))))
        if missing > 0:
            slots.drop_(torch.arange(len(kept), len(self.who)))
            self.who[len(kept) :], self.is_finished[len(kept) :] = None, True

    def _select(self, slots: BeamStep, rows: np.ndarray) -> None:
        slots.select_(moved(torch.from_numpy(rows), self.device))
        if self.constraints is not None:
            self.constraints.select_(list(dict.fromkeys(rows.tolist())))
        self._take(rows)

    def _take(self, rows: np.ndarray) -> None:
        """What the host knows of these slots, in this order."""
        for name in ("who", "filled_at", "num_before", "limits", "num_prefixed", "is_finished"):
            setattr(self, name, getattr(self, name)[rows])

    def _fill(self, slots: BeamStep, free: np.ndarray) -> None:
        sentences = [self.waiting.popleft() for _ in free]
        num_prefix = max(len(sentence.prefix) for sentence in sentences)
        if not self.graphs.is_on or num_prefix > self.num_prefix or any(sentence.num_known for sentence in sentences):
            # Prompts, which are read at once, have no shape in common.
            entries = self._entries(sentences, free.tolist()).to(self.device)
            if slots.reserve_(entries.num_shared) or num_prefix > self.num_prefix:
                self.graphs.forget()
                self.inputs.clear()
                self.num_prefix = max(self.num_prefix, num_prefix)
            slots.fill_(entries)
            self._note(free, sentences, entries.num_shared)
            return
        # The last sentence may come in several times.
        missing = self._group - len(free)
        width = self._wide(max(len(sentence.source) for sentence in sentences))
        entries = self._entries([*sentences, *sentences[-1:] * missing], [*free, *free[-1:].repeat(missing)], width)
        if width not in self.inputs:
            self.inputs[width] = entries.to(self.device)
        else:
            self.inputs[width].copy_(entries)
        self.graphs(("fill", width), lambda: slots.fill_(self.inputs[width]))
        self._note(free, sentences, 0)

    @property
    def _is_elastic(self) -> bool:
        """Whether slots come and go with the sentences; a device that works ahead is handed the same ones again and again."""
        return not self.is_ahead

    def _note(self, slots: np.ndarray, sentences: Sequence[Sentence], num_before: int) -> None:
        """These sentences have taken these slots."""
        for slot, sentence in zip(slots.tolist(), sentences, strict=True):
            self.who[slot] = sentence
            if self.constraints is not None:
                self.constraints.put_(slot, sentence.phrases)
        self.limits[slots] = [sentence.limit for sentence in sentences]
        self.num_prefixed[slots] = [len(sentence.prefix) for sentence in sentences]
        self.filled_at[slots], self.num_before[slots], self.is_finished[slots] = self.tick, num_before, False

    def _entries(self, sentences: Sequence[Sentence], slots: Sequence[int], width: int = 0) -> Entries:
        return entries_of(sentences, slots, self.search.config, self.num_steps, width=width, num_prefix=self.num_prefix)

    def _results(self, *, is_last: bool = False) -> Iterator[Finished]:
        while self.results and (is_last or self.results[0][1].is_here):
            sentences, notes = self.results.popleft()
            lengths = [len(sentence.source) for sentence in sentences]
            found = hypotheses_of(notes.get(), self.search.config, lengths)
            self.ready.extend((sentence.key, own) for sentence, own in zip(sentences, found, strict=True))
        number = len(self.ready)
        if self.is_ahead and not is_last:
            number = min(number, max(1, int(len(self.who) * RESULTS_SHARE)))
        for _ in range(number):
            yield self.ready.popleft()

    def _wide(self, width: int) -> int:
        return power_of_two(width, NARROWEST_WIDTH) if self.graphs.is_on else width


def works_by_itself(device: torch.device) -> bool:
    """Whether the host can hand it work and continue."""
    return device.type == "cuda"


def power_of_two(number: int, smallest: int) -> int:
    """The least power of two that is not below either."""
    return 1 << (max(number, smallest) - 1).bit_length()
