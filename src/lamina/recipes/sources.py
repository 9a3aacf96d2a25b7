"""Lines of text out of the files in which corpora come: plain, packed, in archives, or wrapped in the markup of test sets.

A place is written `ARCHIVE!MEMBER` or `FILE`, below the folder that holds the downloads; `ONE|OTHER!MEMBER` names archives that
hold the same. An archive may have been unpacked already: the member is then looked for in that folder. Nothing is ever unpacked
to disk, and a few lines at a time are in memory.
"""

from __future__ import annotations

import gzip
import html
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from lamina.errors import DataError

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
# A segment of a WMT (.sgm) or IWSLT (.xml) test set, which may run over several lines.
SEGMENT_START = re.compile(r"<seg\b[^>]*>", re.IGNORECASE)
SEGMENT_END = re.compile(r"</seg\s*>", re.IGNORECASE)
# IWSLT's training text: lines about the talk go, the text of its title and description stays.
TALK_NOTE = re.compile(r"\s*</?(?:url|talkid|keywords|speaker|reviewer|translator|doc)\b", re.IGNORECASE)
TALK_TAG = re.compile(r"</?(?:title|description)\s*>", re.IGNORECASE)
MAX_SEGMENT_CHARACTERS = 1_000_000


def read_place(folder: Path, place: str) -> Iterator[str]:
    """The sentences of a place, in order; what is not UTF-8 has U+FFFD in it."""
    member = place.partition("!")[2] or place
    lines = _raw_lines(folder, place)
    name = Path(member).name.removesuffix(".gz")
    if name.endswith((".sgm", ".sgml", ".xml")):
        return _segments(lines, member)
    if name.startswith("train.tags."):
        return _talk_lines(lines)
    return lines


def _raw_lines(folder: Path, place: str) -> Iterator[str]:
    with _opened(folder, place) as file:
        try:
            for line in file:
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")
        except (EOFError, OSError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
            raise DataError(f"{folder / place.partition('!')[0]} cannot be read to its end: {error}. Download it "
                            "again.") from None


@contextmanager
def _opened(folder: Path, place: str) -> Iterator[BinaryIO]:
    archives, _, member = place.rpartition("!")
    archive = next((name for name in archives.split("|") if (folder / name).is_file()), "")
    unpacked = [folder / member, folder / member.removesuffix(".gz")]
    found = next((path for path in unpacked if path.is_file()), None)
    try:
        if found is not None:
            with (gzip.open(found) if found.suffix == ".gz" else found.open("rb")) as file:
                yield cast(BinaryIO, file)
            return
        if not archive:
            wanted = f"{archives.replace('|', ' or ')} (with {member} in it)" if archives else member
            raise DataError(f"{folder} has no {wanted}. Download it into this folder, or name the right one with --data.")
        with _in_archive(folder / archive, member) as file:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file) if member.endswith(".gz") else file)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"{folder / archive} is not a whole archive: {error}. Download it again.") from None
    except OSError as error:
        raise DataError(f"{folder / (archive or member)} cannot be read: {error.strerror or error}.") from None


@contextmanager
def _in_archive(path: Path, member: str) -> Iterator[BinaryIO]:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if _is_same(name, member)), None)
            if name is None:
                raise _missing(path, member, archive.namelist())
            with archive.open(name) as file:
                yield cast(BinaryIO, file)
        return
    if not path.name.endswith(TAR_ENDINGS):
        raise DataError(f"{path} is no archive that is known here: expected .zip or {', '.join(TAR_ENDINGS)}.")
    seen: list[str] = []
    # As a stream: the table of contents of a compressed archive lies all over it.
    with tarfile.open(path, mode="r|*") as archive:
        for info in archive:
            if info.isfile() and _is_same(info.name, member):
                inner = archive.extractfile(info)
                assert inner is not None, "it is a file"
                yield cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, inner)))
                return
            seen.append(info.name)
    raise _missing(path, member, seen)


def _is_same(name: str, member: str) -> bool:
    """Archives of one corpus differ in the folders that they wrap it in (`./dev/x`, `x`)."""
    return name.removeprefix("./") == member or name.endswith(f"/{member}")


def _missing(path: Path, member: str, names: list[str]) -> DataError:
    there = ", ".join(sorted(names)[:5])
    return DataError(f"{path} has no {member} in it; it has {there or 'nothing'}{', ...' if len(names) > 5 else ''}.")


def _segments(lines: Iterator[str], name: str) -> Iterator[str]:
    inside: str | None = None
    for line in lines:
        while True:
            if inside is None:
                start = SEGMENT_START.search(line)
                if start is None:
                    break
                inside, line = "", line[start.end():]
            end = SEGMENT_END.search(line)
            inside += line[: end.start()] if end else line + " "
            if len(inside) > MAX_SEGMENT_CHARACTERS:
                raise DataError(f"{name} has a <seg> that does not end.")
            if end is None:
                break
            yield " ".join(html.unescape(inside).split())
            inside, line = None, line[end.end():]
    if inside is not None:
        raise DataError(f"{name} ends in the middle of a <seg>. Download it again.")


def _talk_lines(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not TALK_NOTE.match(line):
            yield TALK_TAG.sub("", line).strip()
