"""Which run wrote a checkpoint, and when: read from a file's description, without its tensors.

A run has an id, `training["run"]` in each of its files. Continuing it keeps the id; counting updates or epochs from the
beginning again is another run, also in the same folder.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from torch.utils.serialization import config as torch_files

from lamina.checkpoint.format import read_archive
from lamina.checkpoint.shards import SHARDS_PREFIX
from lamina.errors import CheckpointError

BEFORE_RUNS = ""  # the id in files of before there were ids
_ID = re.compile(r"[0-9a-f]{12}")


class Mark(NamedTuple):
    """What a file says of its making."""

    run: str
    updates: int
    time: str  # of writing, UTC: as text it orders like the moments
    shards: str = ""  # the folder beside it that has its tensors, if they are not in it


def new_run() -> str:
    return secrets.token_hex(6)


def is_run(value: object) -> bool:
    return value == BEFORE_RUNS or (isinstance(value, str) and _ID.fullmatch(value) is not None)


def named(run: str) -> str:
    """An id as messages and file names have it."""
    return f"run-{run}" if run else "earlier"


def read_mark(path: Path) -> Mark | None:
    """None where the file is none of ours, or damaged beyond reading. Its checksum is not looked at: that would read it all."""
    try:
        with torch_files.patch({"load.mmap": True}):  # type: ignore[attr-defined]
            content = read_archive(path, is_checked=False)
        training = content["training"]
        run, updates = training.get("run", BEFORE_RUNS), training.get("progress", {}).get("updates", 0)
        time, shards = content.get("origin", {}).get("time", ""), content.get("shards", {}).get("folder", "")
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return None
    is_ours = ("lamina_format" in content and is_run(run) and type(updates) is int and isinstance(time, str)
               and isinstance(shards, str))
    return Mark(run, updates, time, shards) if is_ours else None


class Marks:
    """`read_mark`, once for each file as long as that stays the same."""

    def __init__(self, read: Callable[[Path], Mark | None] = read_mark) -> None:
        self._read = read
        self._known: dict[Path, tuple[tuple[int, int, int], Mark | None]] = {}

    def of(self, path: Path) -> Mark | None:
        try:
            facts = path.stat()
        except OSError:
            return None
        state = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if path not in self._known or self._known[path][0] != state:
            self._known[path] = state, self._read(path)
        return self._known[path][1]


def shards_without_name(folder: Path, named_by: Iterable[Path],
                        mark_of: Callable[[Path], Mark | None] = read_mark) -> list[Path]:
    """The folders of sharded checkpoints in a folder that none of these files needs."""
    found = [path for path in folder.glob(f"{SHARDS_PREFIX}*") if path.is_dir()]
    needed = {mark.shards for path in named_by if (mark := mark_of(path)) is not None} if found else set()
    return [path for path in found if path.name not in needed]


def latest_run(marks: list[Mark]) -> str:
    """The run that saved last, by the time in the files: copying a folder changes the time on them."""
    return max(marks, key=lambda mark: (mark.time, mark.updates)).run
