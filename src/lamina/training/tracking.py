"""Trackers as callbacks: each works off what a run tells in a thread of its own, so that no network stops or slows training."""

from __future__ import annotations

import importlib.util
import queue
import threading

from lamina.errors import ConfigError
from lamina.parts.contracts import TrackedRun, Tracker
from lamina.training.events import MEASURED, Event

# Rows that wait for a network that is away, before they are left out: some months of a run.
MAX_WAITING = 100_000
# How long the end of a run waits for its trackers.
SECONDS_AT_END = 30.0


class Tracking:
    """A callback that hands rows to a tracker."""

    def __init__(self, tracker: Tracker, run: TrackedRun) -> None:
        tracker.check(run)
        self._tracker = tracker
        self._run = run
        self._rows: queue.Queue[tuple[dict[str, float], int] | None] = queue.Queue(MAX_WAITING)
        # A daemon: a process that wants to end does not wait for a network.
        self._thread = threading.Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        if event.kind in MEASURED and self._thread.is_alive() and not self._rows.full():
            self._rows.put_nowait(({f"{event.where}/{name}": value for name, value in event.figures.items()},
                                   event.num_updates))

    def close(self, seconds: float = SECONDS_AT_END) -> None:
        if not self._rows.full():
            self._rows.put_nowait(None)
            self._thread.join(seconds)
        if self._thread.is_alive():
            self._run.note(f"warning: {self._tracker.name} has not taken all figures in {seconds:g} s, and the run ends "
                           "without them: train.jsonl has them")

    def _work(self) -> None:
        try:
            recorder = self._tracker.open(self._run)
            try:
                while (row := self._rows.get()) is not None:
                    recorder.write(*row)
            finally:
                recorder.close()
        except Exception as error:  # whatever a library raises
            told = (isinstance(error, OSError) and error.strerror) or str(error).strip()
            reason = (told.splitlines() or [type(error).__name__])[0]
            self._run.note(f"warning: {self._tracker.name} takes no more figures: {reason}. Training continues without it, and "
                           "train.jsonl has them")


def check_package(tracker: Tracker) -> None:
    """Before anything else begins."""
    if tracker.package and importlib.util.find_spec(tracker.package) is None:
        raise ConfigError(f"--tracker {tracker.name} needs the package {tracker.package}: pip install "
                          f"'lamina[{tracker.extra or tracker.name}]'.")
