"""Text files by line: whole-line byte ranges for the workers, and errors that say where.

A line ends at a line feed and nowhere else; a lone carriage return is white space. Deviates from fairseq, which opens
files in text mode and so ends lines there too: sides that differ in stray carriage returns would lose their alignment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lamina.errors import DataError
from lamina.files import check_regular

BLOCK_BYTES = 256 << 10  # small enough that the pieces of a block stay in the CPU's cache
MAX_BYTES_PER_CHARACTER = 4  # in UTF-8
MAX_LINE_LENGTH = 1_000_000  # of a text that nobody sets a limit for


@dataclass(frozen=True)
class TextFile:
    """One side of one split."""

    split: str
    language: str | None
    path: str
    size: int


@dataclass(frozen=True)
class TextRange:
    """Some whole lines of a file, from byte `start` up to `end`."""

    path: str
    start: int
    end: int


def file_size(path: str) -> int:
    """The bytes of a text file, which has to be there and must not be empty."""
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder; expected a text file.")
    try:
        check_regular(path)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.{_nearby(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if size == 0:
        raise DataError(f"{path} is empty; expected one sentence per line.")
    return size


def _nearby(path: str) -> str:
    """A prefix with its dot, or another language, is the usual slip: show what is there."""
    stem = Path(path).name.split(".")[0]
    there = sorted(found.name for found in Path(path).parent.glob(f"{stem}*") if found.is_file()) if stem else []
    return f" Nearby: {', '.join(there[:5])}." if there else " Check the prefix and the language."


def count_lines(path: str) -> int:
    count, last = 0, b""
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n" and last != b"")


def split_ranges(path: str, size: int, max_line_length: int, range_bytes: int) -> list[TextRange]:
    """The file in pieces of about `range_bytes`, cut after line ends."""
    ranges, start = [], 0
    with open(path, "rb") as file:
        while start < size:
            end = min(start + range_bytes, size)
            if end < size:
                file.seek(end - 1)  # so that a cut that happens to follow a line end stays where it is
                tail = file.readline(MAX_BYTES_PER_CHARACTER * max_line_length + 1)
                end += len(tail) - 1
                if not tail.endswith(b"\n") and end < size:
                    raise _too_long(path, end, max_line_length)
            ranges.append(TextRange(path, start, end))
            start = end
    return ranges


def read_line_blocks(text: TextRange, max_line_length: int) -> Iterator[list[str]]:
    """The lines of a range, a block at a time, without their line ends."""
    with open(text.path, "rb") as file:
        file.seek(text.start)
        position, rest = text.start, b""
        while position < text.end:
            data = file.read(min(BLOCK_BYTES, text.end - position - len(rest)))
            if not data:
                if position + len(rest) < text.end:
                    raise DataError(f"{text.path} became shorter while it was being read.")
                whole, rest = rest, b""
            else:
                cut = data.rfind(b"\n") + 1
                whole, rest = (rest + data[:cut], data[cut:]) if cut else (b"", rest + data)
            if len(rest) > MAX_BYTES_PER_CHARACTER * max_line_length:
                raise _too_long(text.path, position + len(whole), max_line_length)
            if whole:
                yield _decode(text.path, position, whole, max_line_length)
                position += len(whole)


def _decode(path: str, position: int, data: bytes, max_line_length: int) -> list[str]:
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        place = position + error.start
        raise DataError(f"{path}, line {_line_number(path, place)}: byte {place} of the file "
                        f"(0x{data[error.start]:02x}) is not valid UTF-8. Convert the file to UTF-8, for example with "
                        "iconv.") from None
    if lines[-1] == "":
        lines.pop()
    lengths = list(map(len, lines))
    if max(lengths) > max_line_length:
        number = next(number for number, length in enumerate(lengths) if length > max_line_length)
        before = sum(len(line.encode("utf-8")) + 1 for line in lines[:number])
        raise _too_long(path, position + before, max_line_length)
    return lines


def read_lines(path: str, max_line_length: int) -> Iterator[str]:
    for lines in read_line_blocks(TextRange(path, 0, file_size(path)), max_line_length):
        yield from lines


def _line_number(path: str, position: int) -> int:
    """Which line a byte of the file stands in; only errors ask, so it is counted only then."""
    count = 1
    with open(path, "rb") as file:
        while position > 0 and (block := file.read(min(BLOCK_BYTES, position))):
            count += block.count(b"\n")
            position -= len(block)
    return count


def _too_long(path: str, position: int, max_line_length: int) -> DataError:
    return DataError(f"{path}, line {_line_number(path, position)} has more than {max_line_length} characters. "
                     "Cut it into sentences, or raise --max-line-length if it is meant.")
