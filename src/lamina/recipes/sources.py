"""Lines of text out of the files in which corpora come: plain, packed, in archives, or wrapped in the markup of test sets.

A place is written `ARCHIVE!MEMBER` or `FILE`, below the folder that holds the downloads. Either may have several names, as
releases differ: `ONE.tgz|OTHER.zip!name|other name`. An archive may have been unpacked already: the member is then looked for
in that folder, at most two folders down. Nothing is ever unpacked to disk, and a few lines at a time are in memory.
"""

from __future__ import annotations

import gzip
import html
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from lamina.errors import DataError, LaminaError
from lamina.recipes.confine import ADVICE, is_inside, is_place_inside

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
# A segment of a WMT (.sgm) or IWSLT (.xml) test set, which may run over several lines.
SEGMENT_START = re.compile(r"<seg\b[^>]*>", re.IGNORECASE)
SEGMENT_END = re.compile(r"</seg\s*>", re.IGNORECASE)
# IWSLT's training text: lines about the talk go, the text of its title and description stays.
TALK_NOTE = re.compile(r"\s*</?(?:url|talkid|keywords|speaker|reviewer|translator|doc)\b", re.IGNORECASE)
TALK_TAG = re.compile(r"</?(?:title|description)\s*>", re.IGNORECASE)
MAX_SEGMENT_CHARACTERS = 1_000_000
# Text packs to a fifth, or repeated lines to a fiftieth; what unpacks to more was made to fill the memory or the disk.
MAX_LINE_BYTES = 2**24
MOST_TIMES_PACKED, SPARE_BYTES = 200, 2**28


def read_place(folder: Path, place: str, *, is_confined: bool = True) -> Iterator[str]:
    """The sentences of a place, in order; what is not UTF-8 has U+FFFD in it. One that is confined lies below `folder`."""
    path, member = _find(folder, place)
    if is_confined and not (is_place_inside(place) and is_inside(path, folder)):
        raise DataError(f"{path} lies outside of {folder}, the folder that a corpus may read. {ADVICE}.")
    lines = _raw_lines(path, member)
    name = Path(member or path).name.removesuffix(".gz")
    if name.endswith((".sgm", ".sgml", ".xml")):
        return _segments(lines, name)
    if name.startswith("train.tags."):
        return _talk_lines(lines)
    return lines


def locate(folder: Path, place: str) -> tuple[Path, bool] | None:
    """The file of a place, and whether that is an archive which has not been unpacked; None where there is neither."""
    archives, _, members = place.rpartition("!")
    for member in members.split("|"):
        for depth in ("", "*/", "*/*/"):
            for name in (member, member.removesuffix(".gz")):
                if found := sorted(path for path in folder.glob(depth + name) if path.is_file()):
                    return found[0], False
    path = next((folder / name for name in archives.split("|") if name and (folder / name).is_file()), None)
    return None if path is None else (path, True)


def _find(folder: Path, place: str) -> tuple[Path, str]:
    """A file, or an archive and the member of it that is meant."""
    archives, _, members = place.rpartition("!")
    path, is_archive = locate(folder, place) or (None, False)
    if path is not None and not is_archive:
        return path, ""
    if path is None:
        wanted = f"{archives.replace('|', ' or ')} (with {members.replace('|', ' or ')} in it)" if archives else members
        raise DataError(f"{folder} has no {wanted}. Download it into this folder, or name the right one with --data.")
    if "|" not in members:
        return path, members
    with _told(path):
        names = _member_names(path)
    for member in members.split("|"):
        if any(_is_same(name, member) for name in names):
            return path, member
    raise _missing(path, members.replace("|", " or "), names)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except LaminaError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Download it again, if it was cut short.") from None
    except Exception as error:  # of damaged bytes the libraries raise whatever they stumble over, a TypeError included
        raise DataError(f"{path} is not a whole archive: {error}. Download it again.") from None


def _raw_lines(path: Path, member: str) -> Iterator[str]:
    most, done = MOST_TIMES_PACKED * path.stat().st_size + SPARE_BYTES, 0
    with _told(path), _opened(path, member) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            done += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{path} has a line of more than {MAX_LINE_BYTES} bytes, which no text has.")
            if done > most:
                raise DataError(f"{path} unpacks to more than {MOST_TIMES_PACKED} times its size, which no text does.")
            yield line.decode("utf-8", errors="replace").rstrip("\r\n")


@contextmanager
def _opened(path: Path, member: str) -> Iterator[BinaryIO]:
    if not member:
        with (gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            yield cast(BinaryIO, file)
        return
    with _in_archive(path, member) as inner:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=inner) if member.endswith(".gz") else inner)


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
    seen: list[str] = []
    with _open_tar(path) as archive:
        for info in archive:
            if info.isfile() and _is_same(info.name, member):
                inner = archive.extractfile(info)
                assert inner is not None, "it is a file"
                yield cast(BinaryIO, inner)
                return
            seen.append(info.name)
    raise _missing(path, member, seen)


def _open_tar(path: Path) -> tarfile.TarFile:
    if not path.name.endswith(TAR_ENDINGS):
        raise DataError(f"{path} is no archive that is known here: expected .zip or {', '.join(TAR_ENDINGS)}.")
    # As a stream: the table of contents of a compressed archive lies all over it.
    return tarfile.open(path, mode="r|*")


def _member_names(path: Path) -> list[str]:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    with _open_tar(path) as archive:
        return [info.name for info in archive]


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
