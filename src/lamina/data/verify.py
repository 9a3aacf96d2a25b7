"""Whether the files of a data folder are those that `lamina preprocess` wrote: their checksums against its manifest.

A flipped bit in ids is a wrong word, which nobody would notice. Dictionaries, subword models and indexes are compared whenever
they are read. The ids themselves, which may be large, are compared once: the result is remembered beside them, and counts as
long as the file keeps its size, time and place. A folder that fairseq made has no manifest, and nothing to compare with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lamina.data.data_folder import MANIFEST_NAME, check_finished, dictionary_name, read_manifest
from lamina.errors import DataError
from lamina.files import check_regular, file_hash, quick_sum, read_json, whole_file
from lamina.text.subword import SUBWORDS_NAME, Subword, load_subwords, model_files
from lamina.text.vocabulary import Vocabulary

VERIFIED_NAME = ".verified.json"
# Reading that much takes a moment: it is compared each time, and nothing need be remembered.
SMALL_BYTES = 2**25
BYTES_TO_SPEAK_OF = 2**32
State = tuple[int, int, int]

_known_good: set[tuple[str, State, str]] = set()  # in this process: an index is opened once for each epoch or copy
_manifests: dict[tuple[str, State], dict[str, Any]] = {}


def load_dictionary(folder: Path, language: str | None) -> Vocabulary:
    """A data folder's dictionary, as preprocess wrote it."""
    check_finished(folder)
    path = folder / dictionary_name(language)
    try:
        check_regular(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    check_small(path)
    return Vocabulary.load(path)


def load_folder_subwords(folder: Path) -> dict[str, Subword]:
    """A data folder's segmentations; none of a folder that fairseq made, whose text was segmented before."""
    if read_manifest(folder) is None:
        return {}
    expected = _expected(folder)
    if SUBWORDS_NAME in expected and not (folder / SUBWORDS_NAME).exists():
        raise DataError(f"{folder / SUBWORDS_NAME} is missing, though {MANIFEST_NAME} lists it: text would be split at white "
                        "space. Put it back, or run `lamina preprocess` again.")
    for name in (SUBWORDS_NAME, *model_files(folder)):
        check_small(folder / name)
    return load_subwords(folder)


def check_small(path: Path) -> None:
    """Each time, but in this process once for each file as long as it stays the same. That there is one is for the reader."""
    facts = _expected(path.parent).get(path.name)
    if facts is not None and path.exists():
        _compare(path, facts, is_quick=False)


def verify_splits(folders: Iterable[Path], splits: Iterable[str], mode: str, *, pair: Sequence[str] = (),
                  note: Callable[[str], object] = lambda _: None) -> None:
    """The ids of these splits and of the numbered ones beside them; of several pairs of languages, of this one.

    `mode` is the value of --verify: "full" compares the SHA-256 sums each time; "once" the quick ones, where there are such,
    and remembers the result; "off" does nothing.
    """
    if mode == "off":
        return
    for folder in folders:
        paths = _ids_of(folder, tuple(splits), pair)
        large = [path for path in paths if path.stat().st_size > SMALL_BYTES]
        for path in paths:
            if path not in large:
                check_small(path)
        _verify_large(folder, large, note, is_once=mode == "once")


def _ids_of(folder: Path, splits: Sequence[str], pair: Sequence[str]) -> list[Path]:
    split = re.compile(rf"({'|'.join(map(re.escape, splits))})\d*\.")
    pairs = [f".{one}-{other}." for one, other in (pair, pair[::-1])] if pair else [""]
    return [folder / name for name in sorted(_expected(folder)) if name.endswith(".bin") and split.match(name)
            and any(text in name for text in pairs) and (folder / name).exists()]


def _verify_large(folder: Path, paths: Sequence[Path], note: Callable[[str], object], *, is_once: bool) -> None:
    expected, verified = _expected(folder), _read_verified(folder) if is_once else {}
    states = {path.name: [expected[path.name].get("sha256"), *_state(path)] for path in paths}
    left = [path for path in paths if verified.get(path.name) != states[path.name]]
    num_bytes = sum(path.stat().st_size for path in left)
    if num_bytes > BYTES_TO_SPEAK_OF:
        note(f"comparing {num_bytes / 2**30:.1f} GiB of {folder} with its checksums{', once' if is_once else ''} (--verify off "
             "leaves that out)")
    for path in left:
        _compare(path, expected[path.name], is_quick=is_once)
    if left and is_once:
        _write_verified(folder, verified | states)


def _compare(path: Path, facts: dict[str, Any], *, is_quick: bool) -> None:
    kind = "quick" if is_quick and "quick" in facts else "sha256"
    expected = facts.get(kind)
    if not isinstance(expected, str):
        raise DataError(f"{path.parent / MANIFEST_NAME} is damaged: it has no checksum of {path.name}. Run `lamina preprocess` "
                        "again.")
    try:
        known = str(path.resolve()), _state(path), expected
        if known in _known_good:
            return
        found = (quick_sum if kind == "quick" else file_hash)(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Run `lamina preprocess` again.") from None
    if found != expected:
        raise DataError(f"{path} is not as `lamina preprocess` wrote it: its checksum differs from that in {MANIFEST_NAME}. "
                        "Copy the folder again, or run `lamina preprocess` again.")
    _known_good.add(known)


def _expected(folder: Path) -> dict[str, Any]:
    """What the manifest says of each file; nothing where there is none."""
    try:
        known = str(folder.resolve()), _state(folder / MANIFEST_NAME)
    except OSError:
        return {}
    if known not in _manifests:
        _manifests[known] = (read_manifest(folder) or {}).get("files", {})
    return _manifests[known]


def _state(path: Path) -> State:
    """What changes when a file is written to, replaced or copied."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def _read_verified(folder: Path) -> dict[str, Any]:
    for place in _places(folder):
        with suppress(OSError, ValueError):
            content = read_json(place)
            if isinstance(content, dict):
                return content
    return {}


def _write_verified(folder: Path, verified: dict[str, Any]) -> None:
    """Beside the data, or where that cannot be written to, in the user's cache; nowhere if that cannot be either."""
    for place in _places(folder):
        try:
            with whole_file(place) as part:
                part.write_text(json.dumps(verified) + "\n", encoding="utf-8")
            return
        except DataError:
            continue


def _places(folder: Path) -> tuple[Path, Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    name = re.sub(r"[^\w.-]", "_", str(folder.resolve()))[-150:]
    return folder / VERIFIED_NAME, cache / "lamina" / f"{name}.verified.json"
