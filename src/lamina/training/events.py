"""What a training run tells those who listen: the log in its folder, trackers, and callbacks of one's own, in this order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

Row = dict[str, str | int | float | None]  # one line of train.jsonl
Kind = Literal["start", "update", "interval", "epoch", "validation", "checkpoint", "end"]
# What of a row says where it belongs; the rest are figures.
PLACE = ("where", "epoch", "batch", "num_batches", "num_updates")
# The kinds that train.jsonl keeps and trackers show.
MEASURED = ("interval", "epoch", "validation")


@dataclass(frozen=True)
class Event:
    """Something that happened in a training run.

    `kind` says what:

    - "start": everything is ready, and the first update is next.
    - "update": an update is done; figures of it alone. On a GPU it is heard of two updates later, so that nothing waits for it.
    - "interval": `log_interval` updates are done; means over them, and speed.
    - "epoch": an epoch has ended; means over it.
    - "validation": a validation set was measured; `where` is its name.
    - "checkpoint": `files` are on disk.
    - "end": the run has ended, for `reason`. It does not come after an error.

    >>> lamina.Event("update", {"where": "update", "epoch": 1, "num_updates": 7, "loss": 2.5}).figures
    {'loss': 2.5}
    """

    kind: Kind
    row: Row  # as in train.jsonl
    files: tuple[str, ...] = ()  # of a checkpoint, in the save folder
    reason: str = ""  # of an end
    model: nn.Module = field(default_factory=nn.Module, repr=False)  # the one that is trained
    on_stop: Callable[[str], object] = field(default=lambda reason: None, repr=False)

    @property
    def where(self) -> str:
        """`"train"` for an interval, "epoch" for an epoch, the name of a validation set; otherwise the kind."""
        return str(self.row["where"])

    @property
    def num_updates(self) -> int:
        """How many updates were done."""
        return int(self.row["num_updates"] or 0)

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1."""
        return int(self.row["epoch"] or 0)

    @property
    def figures(self) -> dict[str, float]:
        """What was measured: loss, ppl, lr and so on. Losses are in bits per token."""
        return {name: value for name, value in self.row.items() if name not in PLACE and isinstance(value, (int, float))}

    def stop(self, reason: str = "") -> None:
        """End the run as if its last update was reached: with a validation and a checkpoint."""
        self.on_stop(f"a callback asked for it{reason and ': '}{reason}")


Callback = Callable[[Event], object]


class Listeners:
    """Those who are told, on the first rank."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = list(callbacks)
        self.model = nn.Module()
        self.stop_wish = ""  # of a callback of this rank; the loop grants it when all ranks know

    def add(self, *callbacks: Callback) -> None:
        """In front of those that are there."""
        self._callbacks[:0] = callbacks

    def tell(self, kind: Kind, *, where: str, epoch: int, updates: int, figures: Mapping[str, Any] | None = None,
             **facts: Any) -> Row:
        row: Row = {"where": where, "epoch": epoch, "num_updates": updates,
                    **{name: plain(value) for name, value in (figures or {}).items()}}
        if self._callbacks:
            event = Event(kind, row, model=self.model, on_stop=self._wish_stop, **facts)
            for callback in self._callbacks:
                callback(event)
        return row

    def _wish_stop(self, reason: str) -> None:
        self.stop_wish = self.stop_wish or reason


def plain(value: Any) -> str | int | float | None:
    """As JSON has it, which knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
