"""train.jsonl in the folder of a run's checkpoints: each logged interval, epoch and validation, one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from lamina.errors import DataError
from lamina.files import whole_file
from lamina.training.events import MEASURED, Event, Row

LOG_NAME = "train.jsonl"


class TrainLog:
    """A callback that keeps the rows of a run, in memory and, with a folder, in a file.

    Training does not depend on the file: rows that cannot be written wait for the next one.
    """

    def __init__(self, folder: Path | None, note: Callable[[str], object] = lambda _: None) -> None:
        self.path = None if folder is None else folder / LOG_NAME
        self.rows: list[Row] = []
        self._note = note
        self._waiting = ""
        self._has_failed = False

    def begin(self, updates: int, *, is_same_run: bool, is_validation_due: bool = False) -> None:
        """Keep the lines up to the update that the run continues from.

        `is_validation_due`: the validation at that update comes only now. What another run has written gets another name first.
        """
        if self.path is None or not self.path.exists():
            return
        try:
            rows = list(read_rows(self.path))
            kept = [row for row in rows if _is_before(row, updates, is_validation_due)]
            if rows and not is_same_run:
                os.replace(self.path, self._aside())
            if len(kept) < len(rows) or not is_same_run or not _ends_whole(self.path):
                with whole_file(self.path) as part:
                    part.write_text("".join(map(_line, kept)), encoding="utf-8")
        except (OSError, DataError) as error:
            self._fail(error)
            kept = []
        self.rows = kept

    def __call__(self, event: Event) -> None:
        if event.kind not in MEASURED:
            return
        self.rows.append(event.row)
        if self.path is None:
            return
        self._waiting += _line(event.row)
        try:
            self._append()
        except OSError as error:
            self._fail(error)

    def _append(self) -> None:
        """All of it or nothing: a disk may be full in the middle of a line."""
        assert self.path is not None
        with self.path.open("ab", buffering=0) as file:
            size, left = file.tell(), self._waiting.encode()
            try:
                while left:
                    left = left[file.write(left):]
            except OSError:
                file.truncate(size)
                raise
        self._waiting = ""

    def _aside(self) -> Path:
        assert self.path is not None
        names = (self.path.with_name(f"train-{number}.jsonl") for number in count(1))
        return next(name for name in names if not name.exists())

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            reason = getattr(error, "strerror", None) or error
            self._note(f"warning: {self.path} cannot be written: {reason}. Training continues; the next line is a new try")


def read_rows(path: Path) -> Iterator[Row]:
    """Of a file of one JSON object per line, which a kill may have cut short."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _is_before(row: Row, updates: int, is_validation_due: bool) -> bool:
    done = row.get("num_updates")
    if not isinstance(done, int) or done > updates:
        return False
    return done < updates or not is_validation_due or row.get("where") == "train"


def _ends_whole(path: Path) -> bool:
    return path.read_bytes()[-1:] in (b"", b"\n")


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
