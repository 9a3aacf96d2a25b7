"""Files that appear whole or not at all, and what to make of files from strangers."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lamina.errors import DataError


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system says against writing, as one line."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} could not be written: {error.strerror or error}. Free some space or write it "
                        "elsewhere.") from None


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
            with suppress(OSError):
                left.unlink()


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
    part = part_of(path)
    try:
        with _told(path):
            part.mkdir(parents=True)
            yield part
            os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_json(path: Path) -> Any:
    """What a file holds; whatever is wrong with it is an OSError or a ValueError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_plain_name(name: object) -> bool:
    """Whether a name that stood in a file can be that of a file or a language: one that leads into no other folder."""
    return isinstance(name, str) and re.fullmatch(r"(?!\.)[^/\\:\x00-\x1f]{1,200}", name) is not None
