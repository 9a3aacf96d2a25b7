"""Where a run stands: all that decides what the next update does, in plain numbers."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lamina.data.feed import Place
from lamina.errors import CheckpointError


@dataclass
class Progress:
    updates: int = 0
    epoch: int = 1
    batches_done: int = 0  # of this epoch
    # Of this epoch when it was saved inside one: which batches those were, and how many sentences (data/feed.py, Place).
    corpus: str = ""
    plan: str = ""
    sentences_done: int = 0
    schedule_start: int = 0  # the update at which the learning rate's schedule began
    schedule: dict[str, float] = field(default_factory=dict)  # what a schedule that looks at validation remembers
    best: float | None = None
    best_of: dict[str, Any] = field(default_factory=dict)  # what that score measures: training/measure.py
    stale_validations: int = 0  # since the best one
    seconds: float = 0.0  # of training, over all sittings
    # Sums over the epoch so far, so that its closing line does not depend on interruptions.
    epoch_loss: float = 0.0
    epoch_nll: float = 0.0
    epoch_tokens: int = 0
    is_check_pending: bool = False  # a signal came before the validation and the checkpoint that were due at this update

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batches_done = epoch, 0
        self.place = Place()
        self.epoch_loss = self.epoch_nll = 0.0
        self.epoch_tokens = 0

    @property
    def place(self) -> Place:
        return Place(self.corpus, self.plan, self.sentences_done)

    @place.setter
    def place(self, place: Place) -> None:
        self.corpus, self.plan, self.sentences_done = place

    def begin_schedule(self) -> None:
        self.schedule_start = self.updates
        self.schedule.clear()

    def forget_scores(self) -> None:
        self.forget_best()
        self.seconds = 0.0

    def forget_best(self) -> None:
        self.best, self.stale_validations = None, 0

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        names = {item.name for item in fields(cls)}
        if not isinstance(state, dict) or not state.keys() <= names:
            raise CheckpointError("the checkpoint's record of progress is damaged; resume from an earlier one.")
        return cls(**state)


class Stopwatch:
    """Of a run, over all sittings: those before this one are known from its progress."""

    def __init__(self, progress: Progress) -> None:
        self._started = time.perf_counter() - progress.seconds

    def seconds(self) -> float:
        return time.perf_counter() - self._started
