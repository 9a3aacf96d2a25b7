"""Parts that show a run's figures elsewhere: trackers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from lamina.parts.part import Part


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run."""

    id: str  # the same when the run is resumed
    name: str  # of its save folder
    folder: Path  # that folder
    here: Path  # the folder that it was started in
    updates: int  # where it continues from; 0: a new one
    options: Mapping[str, Any]  # by flag
    note: Callable[[str], object]  # what a person should know


class Recorder(Protocol):
    """A tracker's run, while it lasts."""

    def write(self, figures: Mapping[str, float], updates: int) -> object:
        """Figures, such as {"train/loss": 3.2}, after so many updates."""

    def close(self) -> object:
        """The run is over, or stopped."""


class Tracker(Part):
    """Where figures of a run go besides train.jsonl (--tracker).

    `check` is called when a run begins, and its errors are told at once. `open` and the Recorder's methods are called in a
    thread of their own: they may wait for a network, and what they raise ends the tracking, never the run.
    """

    table = "tracker"
    option = "tracker"
    topic = "Trackers"

    package: ClassVar[str] = ""  # that it needs
    extra: ClassVar[str] = ""  # of ours that installs it; its name, if left out

    @property
    def is_on(self) -> bool:
        """Whether one of its options asks for it without --tracker."""
        return False

    def check(self, run: TrackedRun) -> None:
        """Raise a ConfigError where it cannot work."""

    @abstractmethod
    def open(self, run: TrackedRun) -> Recorder:
        """Begin, or continue, the tracker's run of this id."""
