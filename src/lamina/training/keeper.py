"""Which checkpoints to write, and which old ones may go."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from lamina.checkpoint.format import Checkpoint, save_checkpoint
from lamina.checkpoint.runs import BEFORE_RUNS, Mark, Marks, latest_run, named, read_mark, shards_without_name
from lamina.checkpoint.shards import SHARDS_PREFIX
from lamina.config.train_options import SavingConfig
from lamina.errors import CheckpointError
from lamina.files import part_of, remove_stale_parts, replace_durably
from lamina.training.host_copy import HostCopier, HostCopy

if TYPE_CHECKING:  # it takes a second to import
    from lamina.distributed.shard_writer import ShardWriter

LAST_NAME = "checkpoint_last.pt"
BEST_NAME = "checkpoint_best.pt"
KEPT_NAMES = re.compile(r"checkpoint(\d+|_best|_last|_\d+_\d+)\.pt")
# A full disk may be a neighbour's, and empty again in an hour; a run that saved nothing so often is wasting its time.
MAX_FAILURES_IN_A_ROW = 3
# Besides the state that is being written: a best and a last one, which newer ones replace.
MAX_WAITING = 2


class At(NamedTuple):
    """Where a run stands in a state."""

    epoch: int = 0
    updates: int = 0


class Waiting(NamedTuple):
    """A state that will be written under these names."""

    copy: HostCopy
    names: list[str]
    at: At


class Written(NamedTuple):
    """A state that is on disk, under these names in the folder."""

    names: tuple[str, ...]
    at: At


class Keeper:
    """checkpoint_last.pt, checkpoint_best.pt, checkpointEPOCH.pt and checkpoint_EPOCH_UPDATES.pt in one folder.

    An old checkpoint goes when the new one is complete, never before. A thread writes copies of the state while training goes
    on, one at a time; --no-async-save writes them in between. Those of another run stay: their numbers say nothing about this
    one's, and what would be replaced gets another name.

    As a context manager it is left when all that waits has been written, whatever ends the run.
    """

    def __init__(self, config: SavingConfig, note: Callable[[str], None] = lambda _: None, run: str = BEFORE_RUNS,
                 shards: ShardWriter | None = None) -> None:
        """With `shards`, all ranks have one and save together: each writes its rows, and the first gives them their names."""
        self.config = config
        self.run = run
        self.shards = shards
        self._written: set[str] = set()  # by this process
        self._marks = Marks()
        self.folder = Path(config.save_dir)
        self.note = note
        self._copier = HostCopier()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="saving") if config.is_async else None
        self._is_writing = False
        self._waiting: list[Waiting] = []
        self._outcomes: list[Exception | Written] = []  # of what the thread wrote, as long as it was not reported
        self.on_written: Callable[[Written], object] = lambda written: None  # called in the thread that trains
        self._changed = Condition()  # guards the three above
        self._num_failures = 0
        remove_stale_parts(self.folder)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.finish()
            else:
                self._give_up()
        finally:
            if self._writer is not None:
                self._writer.shutdown()  # its thread would live on where an error's traceback keeps this run alive

    def _give_up(self) -> None:
        """What waits is written all the same."""
        if self.shards is not None:
            self.shards.give_up()
        self._wait_until(lambda: not self._is_writing)
        for outcome in self._taken_outcomes():
            if isinstance(outcome, Exception):  # the error that ends the run is told first, by others
                self.note(f"warning: {outcome}")

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

    def save(self, checkpoint: Checkpoint, names: Sequence[str], at: At = At()) -> None:  # noqa: B008, it is frozen
        """Write the state once, under every one of the names; `at` describes it to those who watch.

        Names that another state still waits for are this one's now: it is newer. Numbered ones are in nobody's way. A save
        that fails costs nothing that was there; the next one may succeed, and the third failure in a row is an error.
        """
        if not names:
            return
        if self._writer is None:
            self._try(lambda: self._write(checkpoint, names, at))
            return
        self.look()
        with self._changed:
            if self.shards is None:  # or else all ranks would have to drop the same states
                self._replace_waiting(names)
            # Only numbered checkpoints that come faster than a disk takes them ever wait here: none is dropped, and the
            # host's memory has an end.
            self._changed.wait_for(lambda: len(self._waiting) < MAX_WAITING)
        copy = self._copier.copy(checkpoint)
        with self._changed:
            self._waiting.append(Waiting(copy, list(names), at))
            if not self._is_writing:
                self._is_writing = True
                self._writer.submit(self._write_waiting)

    def before_change(self) -> None:
        """The state is about to change on its device: not before copies of it are made."""
        self._copier.before_change()

    def settle(self) -> None:
        """Wait for what is to be written."""
        self._wait_until(lambda: not self._is_writing)
        self.look()

    def finish(self) -> None:
        """Wait for what is to be written; an error if the last state is not on disk."""
        self.settle()
        if self._num_failures:
            raise CheckpointError(f"{self._last_failure} The latest state of this run is not saved.")

    def _replace_waiting(self, names: Sequence[str]) -> None:
        for waiting in self._waiting:
            waiting.names[:] = [name for name in waiting.names if name not in names]
            if not waiting.names:
                self._copier.give_back(waiting.copy)
        self._waiting = [waiting for waiting in self._waiting if waiting.names]

    def _write_waiting(self) -> None:
        """In the thread: one state after another, until none waits."""
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_writing = False
                    self._changed.notify_all()
                    return
                copy, names, at = self._waiting.pop(0)
                self._changed.notify_all()
            outcome: Exception | Written
            try:
                copy.wait()
                outcome = self._write(copy.checkpoint, names, at)
            except Exception as error:  # told in the thread that trains
                outcome = error
            with self._changed:
                self._copier.give_back(copy)
                self._outcomes.append(outcome)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(is_so)

    def _taken_outcomes(self) -> list[Exception | Written]:
        with self._changed:
            outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def look(self) -> None:
        """What the thread has written, or failed to, since the last time; cheap enough for every update."""
        if self._outcomes:
            for outcome in self._taken_outcomes():
                self._try(partial(_told, outcome))

    def _try(self, write: Callable[[], Written]) -> None:
        try:
            written = write()
        except CheckpointError as error:
            self._num_failures += 1
            self._last_failure = str(error)
            if self._num_failures == MAX_FAILURES_IN_A_ROW:
                raise CheckpointError(f"{error} That was the last of {self._num_failures} attempts in a row.") from None
            self.note(f"warning: {error} Training continues; the next checkpoint is another attempt.")
        else:
            self._num_failures = 0
            self.on_written(written)

    def _write(self, checkpoint: Checkpoint, names: Sequence[str], at: At) -> Written:
        source, others = self.folder / names[0], names[1:]
        if self.shards is not None:
            description = self.shards.write(self.folder, checkpoint, at.updates)
            if description is None:  # this rank's part is done
                return Written(tuple(names), at)
            source, others = description, names
        for name in names:
            self._set_aside(name)
        if self.shards is None:
            save_checkpoint(source, checkpoint)
        for name in others:
            _publish(source, self.folder / name)
        self._written.update(names)
        self._remove_old()
        self.note(f"saved {', '.join(names)} in {self.folder} (epoch {at.epoch} @ {at.updates} updates)")
        return Written(tuple(names), at)

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
        self._remove_unnamed_shards()

    def _remove_unnamed_shards(self) -> None:
        """Folders with the tensors of this run's checkpoints that have no name any more."""
        for path in shards_without_name(self.folder, self.folder.glob("*.pt"), self._marks.of):
            if path.name.startswith(f"{SHARDS_PREFIX}{self.run}-"):
                shutil.rmtree(path, ignore_errors=True)

    def _keep_newest(self, pattern: str, number: int) -> None:
        if number < 0:
            return
        found = [(int(match[1]), path) for path in self.folder.iterdir()
                 if (match := re.fullmatch(pattern, path.name)) and self._is_own(path)]
        for _, path in sorted(found, reverse=True)[number:]:
            path.unlink(missing_ok=True)

    def _is_own(self, path: Path) -> bool:
        if path.name in self._written:
            return True
        mark = self._marks.of(path)
        return mark is not None and mark.run == self.run

    def _set_aside(self, name: str) -> None:
        """Give what another run wrote under this name a second one, before it is replaced."""
        path = self.folder / name
        if name in self._written or (mark := self._marks.of(path)) is None or mark.run == self.run:
            return
        for number in count(1):
            aside = path.with_name(f"{path.stem}.{named(mark.run)}{f'-{number}' if number > 1 else ''}{path.suffix}")
            if not aside.exists():
                break
        _publish(path, aside)
        self.note(f"{name} in {self.folder} is of another run: it is now {aside.name}")


class Fallback(NamedTuple):
    """A checkpoint that may take the place of a damaged one."""

    path: Path
    mark: Mark | None
    is_same_run: bool | None  # None: unknown, and nothing speaks against it


def earlier_checkpoints(path: Path) -> list[Fallback]:
    """The other checkpoints beside this one, the best to continue from first; second names of the same file are left out.

    Those of the same run come before all others, its latest update first. The time on a file says nothing: copies have
    another.
    """
    others = [other for other in path.parent.iterdir() if KEPT_NAMES.fullmatch(other.name) and not other.samefile(path)]
    marks = {other: read_mark(other) for other in others}
    known = [mark for mark in marks.values() if mark is not None]
    own = read_mark(path)
    run = own.run if own else latest_run(known) if known else BEFORE_RUNS
    is_sure = own is not None or len({mark.run for mark in known}) == 1

    def rank(other: Path) -> tuple[Any, ...]:
        mark, numbers = marks[other], tuple(map(int, re.findall(r"\d+", other.name)))
        if mark is None:
            return (0, numbers[::-1], other.name)  # fairseq's, or damaged as well
        return (2, mark.updates, other.name) if mark.run == run else (1, mark.time, mark.updates, other.name)

    def is_same_run(mark: Mark | None) -> bool | None:
        return None if mark is None or (mark.run == run and not is_sure) else mark.run == run

    return [Fallback(other, marks[other], is_same_run(marks[other])) for other in sorted(others, key=rank, reverse=True)]


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


def _told(outcome: Exception | Written) -> Written:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
