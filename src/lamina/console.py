"""What commands show on stderr while they work: notices, warnings, progress. Results go to stdout, elsewhere."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

# What the system says of a disk, or of a stream that leads to one.
STREAM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
# All but tabs and line feeds.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
Advance = Callable[[int], None]
# In a log file, so that an hour's work leaves a page and not a book.
SECONDS_BETWEEN_LINES = 30.0


def printable(text: str) -> str:
    """A text of a file, which a terminal might obey: control characters and those that turn the direction are escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def notice(text: str) -> None:
    print(f"| {printable(text)}", file=sys.stderr, flush=True)


def is_first_process() -> bool:
    """Of those that torchrun or srun started with the same command line, one should speak of it."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def warn(text: str) -> None:
    print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """A last line on stderr, if that can be written to."""
    with suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def settle_streams() -> None:
    """Standard streams that are there, and that take any text.

    Where one was closed, the next file to be opened would get its number, and what libraries print would go into that file.
    Characters that the encoding lacks are escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, for as long as the process lives
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def flushed(code: int) -> int:
    """The exit status of a command, once all that it printed is written; Python would only complain about it on leaving."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in STREAM_ERRORS:
                if stream is sys.stdout:
                    tell(f"error: standard output could not be written: {error.strerror}. Free some space, or write it "
                         "elsewhere.")
                code = code or 2
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


@contextmanager
def silence(*, is_on: bool) -> Iterator[None]:
    """Inside, nothing is shown: for a process whose peer shows it for both."""
    if not is_on:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Advance]:
    """Counts up to `total` (None: nobody knows): a live bar in a terminal, a line now and then in a log."""
    with (_bar if sys.stderr.isatty() else _lines)(label, total) as advance:
        yield advance


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("| {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
               TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda amount: bars.update(task, advance=amount)


@contextmanager
def _lines(label: str, total: int | None) -> Iterator[Advance]:
    done, start = 0, time.monotonic()
    last = start
    if total is None:
        notice(f"{label} ...")

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and total:
            last = now
            left = (now - start) * (total - done) / done if done else 0.0
            notice(f"{label}: {100 * done / total:.0f} %, about {left:.0f} s left")

    yield advance
