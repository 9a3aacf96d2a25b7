"""From downloads to the text that `lamina preprocess` takes: joined, cleaned, tokenized, split, with flat memory.

    OUT/train.en  train.de  valid.en  valid.de      OUT/TEST.en  TEST.ref0 ..  TEST.m2      OUT/corpus.json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from lamina.errors import DataError
from lamina.files import whole_folder
from lamina.metrics.m2 import Annotated, read_m2
from lamina.preprocess.workers import Progress, Workers, no_progress
from lamina.recipes.dataset import VALIDATION, Cleaning, Dataset, TestSet, check_places, filled
from lamina.recipes.origins import digest_of, origin
from lamina.recipes.sources import locate, read_place
from lamina.text.subword import Whitespace, remove_joiners
from lamina.text.tokenizer import Moses, punctuation_normalizer

CHUNK_LINES = 2000
CHUNKS_A_WORKER = 4  # in memory at a time, whatever the size of the corpus
NOT_UTF8 = "�"
REPORT_NAME = "corpus.json"
Read = Callable[[str], Iterator[str]]  # a place's lines
Row = tuple[str, ...]  # a line of each side


class _Task(NamedTuple):
    cleaning: Cleaning
    endings: tuple[str, ...]
    rows: list[Row]
    filters: bool


def prepare(dataset: Dataset, downloads: Path, out: Path, *, workers: int = 1,
            progress: Progress = no_progress, is_confined: bool = True) -> dict[str, dict[str, int]]:
    """Write the text of a corpus; the counts that it returns lie in corpus.json too.

    One that is not confined may read outside of `downloads`.
    """
    if is_confined:
        check_places(dataset)
    read = partial(read_place, downloads, is_confined=is_confined)
    files = digests(dataset, downloads)
    with whole_folder(out) as folder, Workers(workers) as pool:
        counts = dict(_write_training(dataset, read, folder, pool, progress))
        for test in dataset.tests:
            counts[test.name] = _write_test(dataset, test, read, folder, pool)
        report = {"corpus": dataset.name, "digest": dataset.digest, "splits": counts, "files": files}
        (folder / REPORT_NAME).write_text(json.dumps(report, indent=1) + "\n")
    return counts


def digests(dataset: Dataset, downloads: Path) -> dict[str, str]:
    """The SHA-256 of each archive. All files that are missing are told at once, with where they come from."""
    places = {name: filled(place, dataset.languages, 0) for name, place in dataset.files.items()}
    there = {name: locate(downloads, place) for name, place in places.items()}
    missing = [(name, origin(dataset.downloads, name)) for name, found in there.items() if found is None]
    if known := [(name, own) for name, own in missing if own is not None]:
        told = "; ".join(f"{name.replace('|', ' or ')} ({own.how(downloads)})" for name, own in known)
        raise DataError(f"{downloads} has no {told}. Put {'them' if len(known) > 1 else 'it'} there, or name the right folder "
                        "with --data.")
    return {found[0].name: digest_of(found[0]) for found in there.values() if found is not None and found[1]}


def _write_training(dataset: Dataset, read: Read, folder: Path, pool: Workers,
                    progress: Progress) -> Iterator[tuple[str, dict[str, int]]]:
    """Training and validation text; held-out pairs leave training, in the order in which they come."""
    seen: set[int] = set()
    with ExitStack() as stack, progress("preparing text", None) as advance:
        writers = {split: stack.enter_context(_Writer(folder, split, dataset.endings)) for split in ("train", "valid")}
        for split, places in (("train", dataset.train), ("valid", dataset.valid)):
            kept = 0
            for row, reason in cleaned(dataset, _rows(dataset, read, places), pool, filters=split == "train"):
                if not reason and split == "train" and dataset.cleaning.deduplicate:
                    # Numbers, not lines: 36 million pairs fit.
                    reason = "seen before" if hash(row) in seen else ""
                    seen.add(hash(row))
                if reason:
                    writers[split].left_out[reason] += 1
                    continue
                kept += 1
                is_held_out = bool(dataset.valid_every) and kept % dataset.valid_every == 0
                writers["valid" if is_held_out else split].write(row)
                advance(1)
    for split, writer in writers.items():
        if not writer.count:
            raise DataError(f"corpus {dataset.name}: nothing is left for {split} ({dict(writer.left_out) or 'no lines'}). Look "
                            "at the files, and at `clean` in its description.")
        yield split, {"lines": writer.count, **writer.left_out}
    if len(dataset.endings) == 2:
        lines = writers["valid"].paths[1].read_text(encoding="utf-8").split("\n")[:-1]
        _write_reference(dataset, f"{VALIDATION.name}.ref0", lines, folder)


def _rows(dataset: Dataset, read: Read, places: Iterable[str]) -> Iterator[Row]:
    for place in places:
        if place.endswith(".m2"):
            yield from _corrected(read, place)
            continue
        sides = [read(filled(place, dataset.languages, side)) for side in range(len(dataset.endings))]
        for number, row in enumerate(zip_longest(*sides), start=1):
            if None in row:
                raise DataError(f"{place}: the two sides differ in length; {dataset.endings[row.index(None)]} ends "
                                f"before line {number}.")
            yield row


def _corrected(read: Read, place: str) -> Iterator[Row]:
    """What a learner wrote, and the first annotator's correction of it."""
    block: list[str] = []
    for line in [*read(place), ""]:
        if line.strip():
            block.append(line)
        elif block:
            (sentence,) = read_m2(block, place)
            yield " ".join(sentence.source), " ".join(apply_edits(sentence))
            block = []


def apply_edits(sentence: Annotated) -> list[str]:
    words = list(sentence.source)
    edits = sentence.annotators[0] if sentence.annotators else ()
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        words[edit.start : edit.end] = min(edit.corrections)
    return words


def _write_test(dataset: Dataset, test: TestSet, read: Read, folder: Path, pool: Workers) -> dict[str, int]:
    """Every line of a test set stays, whatever it looks like."""
    count = 0
    files = {test.name + "." + dataset.endings[0]: (test.source, 0)}
    files |= {f"{test.name}.ref{number}": (places, 1) for number, places in enumerate(test.references)}
    for name, (places, side) in files.items():
        rows = ((line,) for place in places for line in read(place))
        lines = [row[0] for row, _ in cleaned(dataset, rows, pool, filters=False, endings=(dataset.endings[side],))]
        if count and len(lines) != count:
            raise DataError(f"test {test.name}: {places[0]} has {len(lines)} lines and {test.source[0]} {count}; line N of one "
                            "must belong to line N of the other.")
        count = len(lines)
        if side:
            _write_reference(dataset, name, lines, folder)
        else:
            _write_lines(folder / name, lines)
    if test.m2:
        text = "".join(line + "\n" for line in read(test.m2))
        (folder / f"{test.name}.m2").write_text(text, encoding="utf-8")
    return {"lines": count}


def _write_reference(dataset: Dataset, name: str, lines: Iterable[str], folder: Path) -> None:
    _write_lines(folder / name, map(remove_joiners, lines) if dataset.has_bpe_marks else lines)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


# -- cleaning


def cleaned(dataset: Dataset, rows: Iterable[Row], pool: Workers, *, filters: bool,
            endings: tuple[str, ...] = ()) -> Iterator[tuple[Row, str]]:
    """Each row as it should be, in order, and why it should be left out, if it should."""
    left = iter(rows)
    chunks = iter(lambda: list(islice(left, CHUNK_LINES)), [])
    tasks = (_Task(dataset.cleaning, endings or dataset.endings, chunk, filters) for chunk in chunks)
    while window := list(islice(tasks, CHUNKS_A_WORKER * pool.count)):
        results = dict(pool.results(_clean, window))
        for number in range(len(window)):
            yield from results[number]


def _clean(task: _Task) -> list[tuple[Row, str]]:
    rows = [tuple(_line(task.cleaning, ending, line) for ending, line in zip(task.endings, row, strict=True))
            for row in task.rows]
    return [(row, _objection(task.cleaning, row) if task.filters else "") for row in rows]


def _line(cleaning: Cleaning, language: str, line: str) -> str:
    # A line feed apart, white space is one kind: a corpus with U+2028 or tabs in it keeps its lines.
    line = " ".join(line.split())
    if cleaning.normalize:
        line = _normalizer(language).normalize(line)
    if cleaning.tokenize:
        line = _tokenizer(language).tokenize(line)
    return line.lower() if cleaning.lowercase else line


def _objection(cleaning: Cleaning, row: Row) -> str:
    if any(NOT_UTF8 in line for line in row):
        return "not UTF-8"
    lengths = [len(line.split()) for line in row]
    if len(row) > 1 and min(lengths) == 0:
        return "empty"
    if cleaning.max_length and max(lengths) > cleaning.max_length:
        return "too long"
    if cleaning.max_ratio and len(row) > 1 and max(lengths) > cleaning.max_ratio * min(lengths):
        return "lengths differ"
    return ""


@lru_cache(maxsize=8)
def _tokenizer(language: str) -> Moses:
    return Moses(Whitespace(), language)


@lru_cache(maxsize=8)
def _normalizer(language: str) -> Any:
    return punctuation_normalizer(language)


class _Writer:
    """The files of a split, one a side."""

    def __init__(self, folder: Path, split: str, endings: tuple[str, ...]) -> None:
        self.paths = [folder / f"{split}.{ending}" for ending in endings]
        self.count = 0
        self.left_out: Counter[str] = Counter()

    def __enter__(self) -> _Writer:
        self._files = [path.open("w", encoding="utf-8", newline="\n") for path in self.paths]
        return self

    def write(self, row: Row) -> None:
        for file, line in zip(self._files, row, strict=True):
            file.write(line + "\n")
        self.count += 1

    def __exit__(self, *failure: object) -> None:
        for file in self._files:
            file.close()
