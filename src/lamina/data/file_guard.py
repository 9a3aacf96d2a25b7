"""Notices when the files of a run change under it: a mapped file that is cut short would end the process without a word."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from lamina.errors import DataError

SECONDS_BETWEEN_LOOKS = 1.0
ENDINGS = (".idx", ".bin", ".txt")


class FileGuard:
    """The files of some splits, as they were when the run began.

    One that was written to is an error at once: what is read from it from now on is something else. One that was removed or
    replaced still has its old content for us, so the epoch continues and its checkpoint is saved; the next epoch would differ.
    """

    def __init__(self, folders: Iterable[Path], splits: Iterable[str]) -> None:
        starts = tuple(f"{split}." for split in splits) + tuple(f"{split}{digit}" for split in splits for digit in "123456789")
        self._states = {path: _state(path) for folder in folders for path in sorted(folder.rglob("*"))
                        if path.suffix in ENDINGS and path.name.startswith(starts)}
        self._looked = time.monotonic()

    def look(self) -> None:
        """Between updates; asks the file system once a second at most."""
        now = time.monotonic()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        for path, before in self._states.items():
            state = _state(path)
            if state is not None and before is not None and state != before and state[0] == before[0]:
                raise DataError(f"{path} was written to while it was read. Checkpoints so far are whole: put the file back, or "
                                "train on the new data in another --save-dir.")

    def check(self) -> None:
        """Before an epoch."""
        for path, before in self._states.items():
            state = _state(path)
            if state is None:
                raise DataError(f"{path} has disappeared. Checkpoints so far are whole: with the file back, the same command "
                                "resumes from them.")
            if state != before:
                raise DataError(f"{path} has changed since this run began. Checkpoints so far are whole: put the file back, or "
                                "train on the new data in another --save-dir.")


def _state(path: Path) -> tuple[int, int, int] | None:
    """Which file it is, its size and when it was last written; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
