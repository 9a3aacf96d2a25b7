"""Files that appear whole or not at all, and what to make of files from strangers."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lamina.errors import DataError, LaminaError

# The last one is all that torch's writer says.
DISK_REASONS = (*map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)), "unexpected pos")
SUM_COLUMNS, SUM_ROWS = 512, 1024  # of quick_sum; a row is 4 KiB


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says against writing, as one line."""
    try:
        yield
    except OSError as error:
        raise _unwritten(path, error.strerror or error) from None
    except Exception as error:
        # Libraries that write files themselves wrap what the system said, or only repeat its words.
        cause = next((found for found in (error.__cause__, error.__context__) if isinstance(found, OSError)), None)
        reason = cause.strerror if cause is not None else next((text for text in DISK_REASONS if text in str(error)), None)
        if reason is None or isinstance(error, LaminaError):
            raise
        raise _unwritten(path, "No space left" if reason == DISK_REASONS[-1] else reason) from None


def _unwritten(path: Path, reason: object) -> DataError:
    return DataError(f"{path} could not be written: {reason}. Free some space or write it elsewhere.")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to, beside `path`; what is there when the block ends takes its place, unless the block fails."""
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def part_of(path: Path) -> Path:
    """Where to write what will be `path`; the name says which process of which machine is at it."""
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.part")


def remove_stale_parts(folder: Path) -> None:
    """Clear away what processes of this machine left half-written when they were killed."""
    mark = f".{socket.gethostname()}-"
    for left in folder.glob(f".*{mark}*.part"):
        number = left.name.removesuffix(".part").rpartition(mark)[2]
        if number.isdecimal() and not is_running(int(number)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            with suppress(OSError):
                left.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """Whether another process has this number."""
    if process == os.getpid():
        return False
    if os.name == "nt":  # os.kill would end the process there
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def replace_durably(part: Path, path: Path) -> None:
    """Move a file that is on disk into place, and the move onto the disk: a power cut leaves the old one or the new."""
    os.replace(part, path)
    with suppress(OSError):  # not every system lets a folder be opened or synced
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, beside `path`; it becomes `path` when the block ends, unless the block fails."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DataError(f"{path} is there already and not empty. Choose another folder, or remove it.")
    is_there = path.exists()
    # `.` has no name to put another one beside; inside a folder that is there already, its own name does not matter.
    part = part_of(path / "new" if is_there else Path(os.path.abspath(path)))
    try:
        with _told(path):
            remove_stale_parts(part.parent)
            part.mkdir(parents=True)
            yield part
            if is_there:  # it may be somebody's current folder, which would be lost to them if it were replaced
                for item in sorted(part.iterdir()):
                    os.replace(item, path / item.name)
            else:
                os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def file_hash(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def quick_sum(path: str | Path) -> str:
    """A checksum as fast as memory: of 8-byte words, in rows of 512, the sum of each row and of each column, hashed.

    It is for damage, not for forgers: a flipped bit changes a row, rows that change places change their order, and words that
    change places within a row change columns.
    """
    import numpy as np

    row = 8 * SUM_COLUMNS
    digest, columns = hashlib.sha256(), np.zeros(SUM_COLUMNS, np.uint64)
    block = np.empty(SUM_ROWS * row, np.uint8)
    with open(path, "rb") as file:
        while size := file.readinto(block.data):
            whole = size // row * row
            rows = block[:whole].view("<u8").reshape(-1, SUM_COLUMNS)
            digest.update(rows.sum(axis=1, dtype="<u8").tobytes())
            columns += rows.sum(axis=0, dtype="<u8")
            digest.update(block[whole:size].tobytes())
    digest.update(columns.astype("<u8").tobytes())
    return digest.hexdigest()


# What the content of a file may come to when every reference in it is followed: so many times its size, and this much more.
LIMIT_FACTOR, LIMIT_SPARE = 10, 2**24
MAX_DEPTH = 100
MAX_INTEGER_BITS = 256  # longer ones cannot be printed


class Budget:
    """How large plain values are, with every reference followed: a list that holds a list twice ... holds it 2^n times.

    Each object is walked once. `cost` knows of other kinds: what a value itself costs, and what else it holds.
    """

    def __init__(self, limit: int, cost: Callable[[Any], tuple[int, list[Any]] | None] = lambda _: None) -> None:
        self.limit = limit
        self._cost = cost
        self._sizes: dict[int, int] = {}
        self._kept: list[Any] = []  # an id is an object's as long as that lives
        self._open: set[int] = set()

    def spend(self, value: Any, depth: int = 0) -> int:
        """A ValueError where there is no end to it, or it is more than the limit."""
        if isinstance(value, (str, bytes, bytearray)):
            return self._checked(1 + len(value))
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise ValueError("it holds a number of more digits than any that is needed")
        own, inner = self._cost(value) or (1, _inside(value))
        if not inner:
            return self._checked(own)
        name = id(value)
        if name in self._open:
            raise ValueError("it holds itself, and so has no end")
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        if name not in self._sizes:
            self._open.add(name)
            for item in inner:
                own = self._checked(own + self.spend(item, depth + 1))
            self._open.remove(name)
            self._sizes[name] = own
            self._kept.append(value)
        return self._sizes[name]

    def _checked(self, size: int) -> int:
        if size > self.limit:
            raise ValueError(f"it refers to the same things so often that it comes to more than {self.limit} bytes")
        return size


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else []


def check_regular(path: str | Path) -> None:
    """An OSError for a pipe or a device: to open one may wait for ever, and it cannot be read twice."""
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
        raise OSError(errno.EINVAL, "it is no ordinary file, but a pipe or a device", str(path))


def read_json(path: Path) -> Any:
    """What a file holds; whatever is wrong with it is an OSError or a ValueError."""
    check_regular(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def split_paths(text: str) -> list[str]:
    """a.pt:b.pt as two paths; the colon of hf://owner/name is none between paths."""
    return [path for path in re.split(r":(?!//)", text) if path]


def is_plain_name(name: object) -> bool:
    """Whether a name that stood in a file can be that of a file or a language: one that leads into no other folder."""
    return isinstance(name, str) and re.fullmatch(r"(?!\.)[^/\\:\x00-\x1f]{1,200}", name) is not None
