"""Which checkpoints to write, and which old ones may go."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lamina.checkpoint.format import Checkpoint, save_checkpoint
from lamina.config.train_options import SavingConfig
from lamina.errors import CheckpointError
from lamina.files import part_of, remove_stale_parts, replace_durably

LAST_NAME = "checkpoint_last.pt"
BEST_NAME = "checkpoint_best.pt"
KEPT_NAMES = re.compile(r"checkpoint(\d+|_best|_last|_\d+_\d+)\.pt")
# A full disk may be a neighbour's, and empty again in an hour; a run that saved nothing so often is wasting its time.
MAX_FAILURES_IN_A_ROW = 3


class Keeper:
    """checkpoint_last.pt, checkpoint_best.pt, checkpointEPOCH.pt and checkpoint_EPOCH_UPDATES.pt in one folder.

    An old checkpoint goes when the new one is complete, never before. With --async-save a thread writes a copy of the state
    while training goes on, one at a time.
    """

    def __init__(self, config: SavingConfig, note: Callable[[str], None] = lambda _: None) -> None:
        self.config = config
        self.folder = Path(config.save_dir)
        self.note = note
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="saving") if config.is_async else None
        self._writing: Future[None] | None = None
        self._num_failures = 0
        remove_stale_parts(self.folder)

    def open(self) -> None:
        """Find out before the work begins that checkpoints cannot be written, if so."""
        if not self.config.is_on:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            trial = part_of(self.folder / LAST_NAME)
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise CheckpointError(f"no checkpoint could be written to {self.folder}: {error.strerror or error}. Choose another "
                                  "--save-dir, or --no-save to keep nothing.") from None

    def save(self, checkpoint: Checkpoint, names: Sequence[str], what: str = "", *, can_be_left_out: bool = False) -> None:
        """Write the state once, under every one of the names; `what` describes it to the person who watches.

        One that can be left out, since a newer one follows, is if the one before is still being written. A save that fails
        costs nothing that was there; the next one may succeed, and the third failure in a row is an error.
        """
        is_writing = self._writing is not None and not self._writing.done()
        if not names or (can_be_left_out and is_writing):
            return
        self._settle()
        if self._writer is None:
            self._try(lambda: self._write(checkpoint, names, what))
        else:
            copied = _copied(checkpoint)
            self._writing = self._writer.submit(self._write, copied, names, what)

    def finish(self) -> None:
        """Wait for what is being written; an error if the last state is not on disk."""
        self._settle()
        if self._num_failures:
            raise CheckpointError(f"{self._last_failure} The latest state of this run is not saved.")

    def _settle(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            self._try(writing.result)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except CheckpointError as error:
            self._num_failures += 1
            self._last_failure = str(error)
            if self._num_failures == MAX_FAILURES_IN_A_ROW:
                raise CheckpointError(f"{error} That was the last of {self._num_failures} attempts in a row.") from None
            self.note(f"warning: {error} Training goes on; the next checkpoint is another attempt.")
        else:
            self._num_failures = 0

    def _write(self, checkpoint: Checkpoint, names: Sequence[str], what: str) -> None:
        save_checkpoint(self.folder / names[0], checkpoint)
        for name in names[1:]:
            _publish(self.folder / names[0], self.folder / name)
        self._remove_old()
        self.note(f"saved {', '.join(names)} in {self.folder}{what}")

    def names_due(self, *, epoch: int, updates: int, is_epoch_end: bool, is_best: bool) -> list[str]:
        config = self.config
        if not config.is_on:
            return []
        names = []
        if is_epoch_end and config.has_epochs and epoch % config.interval == 0:
            names.append(f"checkpoint{epoch}.pt")
        # Not besides an epoch's own, as in fairseq; without those, an update that ends an epoch counts like any other.
        if not names and config.interval_updates and updates % config.interval_updates == 0:
            names.append(f"checkpoint_{epoch}_{updates}.pt")
        if is_best:
            names.append(BEST_NAME)
        if config.has_last:
            names.append(LAST_NAME)
        return names

    def _remove_old(self) -> None:
        self._keep_newest(r"checkpoint_\d+_(\d+)\.pt", self.config.keep_interval_updates)
        self._keep_newest(r"checkpoint(\d+)\.pt", self.config.keep_last_epochs)

    def _keep_newest(self, pattern: str, number: int) -> None:
        if number < 0:
            return
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := re.fullmatch(pattern, path.name))]
        for _, path in sorted(found, reverse=True)[number:]:
            path.unlink(missing_ok=True)


def earlier_checkpoints(path: Path) -> list[Path]:
    """The other checkpoints that a run wrote beside this one, the latest first; second names of the same file are left out."""
    others = [other for other in path.parent.iterdir() if KEPT_NAMES.fullmatch(other.name) and not other.samefile(path)]
    return sorted(others, key=lambda other: (other.stat().st_mtime_ns, other.name), reverse=True)


def _publish(source: Path, name: Path) -> None:
    """Give a finished file a second name, atomically; without copying it where the file system has hard links."""
    part = part_of(name)
    part.unlink(missing_ok=True)
    try:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        replace_durably(part, name)
    except OSError as error:
        raise CheckpointError(f"{name} could not be written: {error.strerror or error}. Free some space or choose another "
                              "--save-dir; earlier checkpoints are untouched.") from None
    finally:
        part.unlink(missing_ok=True)


def _copied(checkpoint: Checkpoint) -> Checkpoint:
    """As it is now, in the host's memory: training goes on changing its tensors."""
    return replace(checkpoint, weights=_on_host(checkpoint.weights), training=_on_host(checkpoint.training))


def _on_host(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
