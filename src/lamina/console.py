"""What commands show on stderr while they work: notices, warnings, progress. Results go to stdout, elsewhere."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

# What the system says of a disk, or of a stream that leads to one.
STREAM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
# The exit status of a command that SIGPIPE, which Python ignores, would have ended.
WITHOUT_READER = 128 + 13
# All but tabs and line feeds.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
Advance = Callable[[int], None]
# In a log file, so that an hour's work leaves a page and not a book.
SECONDS_BETWEEN_LINES = 30.0


def printable(text: str) -> str:
    """A text of a file, which a terminal might obey: control characters and those that turn the direction are escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def notice(text: str) -> None:
    tell(f"| {text}")


def is_first_process() -> bool:
    """Of those that torchrun or srun started with the same command line, one should speak of it."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def warn(text: str) -> None:
    tell(f"warning: {text}")


def tell(line: str) -> None:
    """To the person, if there is one: a log that is not read or that has no room left is no reason to fail."""
    try:
        # In one piece: where Python is unbuffered, as under torchrun, print would write the end of the line by itself.
        print(printable(line) + "\n", end="", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """What could not be written to a stream goes nowhere, so that Python does not fail on it again when the process ends."""
    with suppress(OSError, ValueError):  # a stream without a file needs nothing
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def streams_without_reader() -> list[TextIO]:
    """Of our two: a pipe whose other end is closed."""
    return [stream for stream in (sys.stdout, sys.stderr) if _is_without_reader(stream)]


def _is_without_reader(stream: TextIO) -> bool:
    try:
        stream.flush()
        # Of a stream without a buffer nothing is left to fail on; the system still knows.
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, ValueError, AttributeError):  # not a Unix, or a stream without a file
        return False


class LastingStream:
    """Takes what is printed as long as the stream behind it does, and leaves out what that does not take."""

    def __init__(self, stream: TextIO, on_failure: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._on_failure = on_failure
        self._has_failed = self._is_gone = False

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def settle(self) -> None:
        """At the end: what could not be written will never be."""
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)

    def _try(self, act: Callable[[], object]) -> None:
        if self._is_gone:
            return
        try:
            act()
        except OSError as error:
            # A reader does not come back; a disk may have room again.
            self._is_gone = error.errno in (errno.EPIPE, errno.EIO)
            if not self._has_failed:
                self._has_failed = True
                self._on_failure(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Inside, work continues when what it prints is no longer read: a closed pipe or terminal, a full disk under a log.

    The other of the two streams says so, once.
    """
    def lost(name: str) -> Callable[[OSError], None]:
        def say(error: OSError) -> None:
            other = stderr if name == "stdout" else stdout
            print(f"warning: {name} cannot be written ({error.strerror or error}): work continues without it", file=other,
                  flush=True)

        return say

    # Python has no object for one that is closed; whatever is opened next would take its place.
    stdout, stderr = (LastingStream(stream or open(os.devnull, "w"), lost(name))  # noqa: SIM115, it stands for one that stays open
                      for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)))
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):  # type: ignore[type-var]
            yield
    finally:
        stdout.settle()
        stderr.settle()


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
            if stream is sys.stdout and isinstance(error, BrokenPipeError):
                code = code or WITHOUT_READER
            elif stream is sys.stdout and isinstance(error, OSError) and error.errno in STREAM_ERRORS and not code:
                # Otherwise the person has been told already what went wrong, this most likely.
                tell(f"error: standard output could not be written: {error.strerror}. Free some space, or write it elsewhere.")
                code = 2
            discard(stream)
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
    """Counts up to `total` (None: unknown): a live bar in a terminal, a line now and then in a log."""
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
