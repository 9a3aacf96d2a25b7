"""The data folder: what its files are called, its manifest, and how a new one appears all at once.

The names are fairseq's, so that a folder made by either serves the other:

    dict.en.txt  train.en-ro.en.bin  train.en-ro.en.idx  valid1.en-ro.ro.bin ...
    dict.txt     train.bin           train.idx           with --only-source and no language

Lamina adds manifest.json, and subwords.json with the subword models where the text was segmented here.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lamina.errors import DataError
from lamina.files import is_plain_name, is_running, read_json

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1
# While files of an older folder are replaced, this one stands beside them: old ids under a new dictionary would load.
UNFINISHED_NAME = "unfinished.txt"


def dictionary_name(language: str | None) -> str:
    return f"dict.{language}.txt" if language else "dict.txt"


def split_name(split: str, source: str | None, target: str | None, language: str | None) -> str:
    """What the .bin and .idx of a split and side are called, less these endings."""
    return f"{split}.{source}-{target}.{language}" if language else split


def check_finished(folder: Path) -> None:
    if (folder / UNFINISHED_NAME).exists():
        raise DataError(f"{folder} was being made again when `lamina preprocess` was stopped, and mixes old and new "
                        "files. Run `lamina preprocess` again.")


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """What preprocess noted down; None for a folder that fairseq made."""
    folder = Path(folder)
    check_finished(folder)
    try:
        manifest = read_json(folder / MANIFEST_NAME)
        number = manifest["format"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{folder / MANIFEST_NAME} cannot be read. Run `lamina preprocess` again.") from None
    if number != MANIFEST_FORMAT:
        raise DataError(f"{folder / MANIFEST_NAME} has format {number!r}; this Lamina reads format {MANIFEST_FORMAT}. "
                        "Run `lamina preprocess` again, or use the Lamina that made the folder.")
    for section in ("files", "splits", "vocabularies"):
        entries = manifest.get(section, {})
        if not isinstance(entries, dict) or not all(
                (name == "" or is_plain_name(name)) and isinstance(facts, dict) for name, facts in entries.items()):
            raise DataError(f"{folder / MANIFEST_NAME} is damaged: its {section} are no names with facts. Run `lamina "
                            "preprocess` again.")
    return manifest


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps({"format": MANIFEST_FORMAT, **manifest}, indent=1, ensure_ascii=False)
    # A file name that is not UTF-8 becomes an escape, which JSON reads.
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A hidden folder inside `folder` to make files in; whatever happens, it is gone afterwards.

    Inside, not beside it: the final moves then never cross from one file system to another.
    """
    remove_stale(folder)
    topmost_new = next((parent for parent in [*reversed(folder.parents), folder] if not parent.exists()), None)
    own = folder / f".partial-{socket.gethostname()}-{os.getpid()}"
    try:
        own.mkdir(parents=True)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        if topmost_new is not None:
            _remove_empty(folder, topmost_new)


def remove_stale(folder: Path) -> None:
    """Clear away what a run on this machine left behind when it was killed."""
    start = f".partial-{socket.gethostname()}-"
    for left in folder.glob(start + "*"):
        number = left.name.removeprefix(start)
        if number.isdecimal() and not is_running(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _remove_empty(folder: Path, topmost: Path) -> None:
    """Take back the folders we made, unless something stands in them by now."""
    for made in [folder, *folder.parents]:
        with suppress(OSError):
            made.rmdir()
        if made == topmost or made.exists():
            return


def move_into_place(staged: Path, folder: Path, obsolete: Iterable[str] = ()) -> None:
    """Every file of `staged` into `folder`, the manifest last; of the `obsolete` ones, those without a successor go.

    A move within one file system cannot fail half-way; being killed between two of them can happen, hence the mark.
    """
    names = sorted(path.name for path in staged.iterdir() if path.is_file())
    names.sort(key=lambda name: name == MANIFEST_NAME)
    unfinished = folder / UNFINISHED_NAME
    unfinished.write_text("`lamina preprocess` was stopped while it replaced these files: run it again.\n")
    for name in names:
        os.replace(staged / name, folder / name)
    for name in set(obsolete) - set(names):
        (folder / name).unlink()
    unfinished.unlink()
