"""The searches of an engine, one for each depth, set of options and range of source lengths; their steps take turns.

All lanes share the weights of one model: a depth is a choice of layers, and a step of a lane costs what its layers cost. The
lane that has had the least of the decoder's layers is next, so that a lane at half depth takes two steps while a whole one
takes one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from lamina.api import Translator
from lamina.config.search_options import SearchConfig
from lamina.data.batching import pad_rows
from lamina.decode.active_depth import layer_counts
from lamina.decode.backtrace import Hypothesis
from lamina.decode.scheduler import Scheduler
from lamina.decode.search import Search
from lamina.nn.stack import ActiveLayers

# Sources of up to so many tokens share slots, which are as wide as the longest; each further range is WIDTH_RATIO times as
# wide.
NARROW = 64
WIDTH_RATIO = 4
# Lanes without sentences that are kept: what was captured for them on a GPU, and what their options looked up.
IDLE_LANES = 8


class LaneKey(NamedTuple):
    config: SearchConfig
    active: ActiveLayers
    width: int  # most tokens of a source


@dataclass(eq=False)
class Wanted:
    """A sentence to search for."""

    key: Any
    ids: np.ndarray
    config: SearchConfig
    active: ActiveLayers
    seed: Sequence[int]
    phrases: Sequence[Sequence[int]] = ()
    with_attention: bool = False


@dataclass(eq=False)
class Lane:
    search: Search
    scheduler: Scheduler
    cost: float  # of a step
    clock: float = 0.0
    running: set[Wanted] = field(default_factory=set)


class Lanes:
    """Not for several threads."""

    num_lost = 0  # processes that died: lane_workers.py has some

    def __init__(self, model: Translator, num_slots: int) -> None:
        self.model = model
        self.num_slots = num_slots
        self.lanes: OrderedDict[LaneKey, Lane] = OrderedDict()  # least recently used first

    @property
    def running(self) -> list[Wanted]:
        return [wanted for lane in self.lanes.values() for wanted in lane.running]

    @property
    def num_running(self) -> int:
        return sum(len(lane.running) for lane in self.lanes.values())

    @property
    def is_alive(self) -> bool:
        return True

    def wake(self) -> None:
        """A step does not wait for anybody."""

    def close(self) -> None:
        """There is nothing to end."""

    def add(self, wanted: Wanted) -> None:
        lane = self._lane(LaneKey(wanted.config, wanted.active, self._width(len(wanted.ids))))
        sentences = lane.search.sentences()
        sentence = sentences.sentence(wanted, wanted.ids, seed=wanted.seed, phrases=wanted.phrases)
        if not lane.running:
            # Who comes new begins where the others are, with nothing saved up.
            lane.clock = max(lane.clock, min((other.clock for other in self._busy()), default=lane.clock))
        lane.scheduler.add(sentence)
        lane.running.add(wanted)

    def drop(self, is_unwanted: Callable[[Any], bool]) -> None:
        """Forget the sentences with such keys."""
        for lane in self._busy():
            unwanted = {wanted for wanted in lane.running if is_unwanted(wanted.key)}
            if unwanted:
                lane.scheduler.drop(unwanted)
                lane.running -= unwanted

    def step(self) -> Iterator[tuple[Any, list[Hypothesis]]]:
        """One token further in the lane whose turn it is: the keys that are finished, and what was found."""
        key, lane = min(((key, lane) for key, lane in self.lanes.items() if lane.running), key=lambda item: item[1].clock)
        lane.clock += lane.cost
        try:
            for wanted, hypotheses in self._looked_up(lane, lane.scheduler.step()):
                lane.running.discard(wanted)
                yield wanted.key, hypotheses
        except Exception as error:
            # What is left in its slots is unknown.
            del self.lanes[key]
            raise LaneError([wanted.key for wanted in lane.running]) from error

    def _looked_up(self, lane: Lane,
                   found: Iterator[tuple[Wanted, list[Hypothesis]]]) -> Iterator[tuple[Wanted, list[Hypothesis]]]:
        waiting = []
        for wanted, hypotheses in found:
            if wanted.with_attention and not hypotheses[0].is_lost:
                waiting.append((wanted, hypotheses))
            else:
                yield wanted, hypotheses
        if waiting:
            source = torch.from_numpy(pad_rows([wanted.ids for wanted, _ in waiting])).to(self.model.device)
            lane.search.look_up_attention(source, [hypotheses for _, hypotheses in waiting])
            for wanted, hypotheses in waiting:
                for hypothesis in hypotheses:
                    assert hypothesis.attention is not None
                    hypothesis.attention = hypothesis.attention[:, : len(wanted.ids)]
                yield wanted, hypotheses

    def _busy(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.running]

    def _width(self, length: int) -> int:
        width = NARROW
        while width < length:
            width *= WIDTH_RATIO
        return max(length, min(width, self.model.max_source_positions))

    def _lane(self, key: LaneKey) -> Lane:
        if key not in self.lanes:
            idle = [other for other, lane in self.lanes.items() if not lane.running]
            for other in idle[: max(0, len(idle) + 1 - IDLE_LANES)]:
                del self.lanes[other]
            search = Search(self.model.models, key.config, key.active, vocabulary=self.model.vocabularies[1])
            whole, own = (layer_counts(active, self.model.models[0])["decoder"] for active in (ActiveLayers(), key.active))
            self.lanes[key] = Lane(search, search.open(self.num_slots, self.model.device, width=key.width), own / whole)
        self.lanes.move_to_end(key)
        return self.lanes[key]


class LaneError(Exception):
    """A step failed; these sentences are lost."""

    def __init__(self, keys: Collection[Any]) -> None:
        super().__init__("a decoding step failed")
        self.keys = keys
