"""A trace of some updates, of what the host calls and what a GPU runs, in the format that Perfetto opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from lamina.files import whole_file


class UpdateProfiler:
    """Traces the updates of a range, on this rank, to a file of its own."""

    def __init__(self, updates: range, folder: Path, rank: int, device: torch.device, note: Callable[[str], object]) -> None:
        self.updates = updates
        self.path = folder / f"profile-{updates.start}-{updates.stop - 1}-rank{rank}.json"
        self.device = device
        self.note = note
        self._running: profile | None = None

    def look(self, updates_done: int) -> None:
        """Between two updates: begins ahead of the first one, ends behind the last."""
        if self._running is None and updates_done + 1 in self.updates:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
            self._running = profile(activities=activities)
            self._running.start()
        elif self._running is not None and updates_done + 1 not in self.updates:
            self.close()

    def close(self) -> None:
        """Also where the run ends before the last one: what there is of them is written."""
        if self._running is None:
            return
        running, self._running = self._running, None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what was launched belongs to it
        running.stop()
        with whole_file(self.path) as part:
            running.export_chrome_trace(str(part))
        self.note(f"the trace of updates {self.updates.start} to {self.updates.stop - 1} is in {self.path}; ui.perfetto.dev "
                  "opens it")
