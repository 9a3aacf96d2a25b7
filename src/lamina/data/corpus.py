"""Sentence pairs of a data folder, read through memory maps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from lamina.data.batching import AnyBatch, Batch, collate
from lamina.data.binary import BinaryReader
from lamina.data.data_folder import check_finished, split_name
from lamina.data.packing import PackedBatch, PackedShape, Sentences, flat, packed
from lamina.data.verify import load_dictionary
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, Vocabulary


class Example(NamedTuple):
    source: np.ndarray
    target: np.ndarray


class Corpus(Protocol):
    """Examples that a feed plans by their sizes and that come as batches."""

    name: str
    unit: str  # what messages call the examples: pairs, blocks

    def __len__(self) -> int: ...

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        """The length of each example, by what messages call it (source, target); batches are sorted by the first."""

    @property
    def lengths(self) -> np.ndarray:
        """What each example costs in a batch."""

    def batch(self, indices: Sequence[int], draw: tuple[int, int]) -> AnyBatch:
        """`draw` is the run's seed and the epoch: who draws at random draws from these and from the indices alone."""


@runtime_checkable
class FlatCorpus(Protocol):
    """A corpus whose examples also come one behind the other, without a pad."""

    def flat_batch(self, indices: Sequence[int], draw: tuple[int, int]) -> AnyBatch:
        """As `batch`; a model takes both."""


@runtime_checkable
class PackedCorpus(Protocol):
    """A corpus of pairs whose batches come in two rows of one shape, too."""

    def packed_batch(self, indices: Sequence[int], shape: PackedShape) -> PackedBatch: ...


class Languages(NamedTuple):
    source: str
    target: str


def find_languages(folder: Path, split: str, source: str | None, target: str | None) -> Languages:
    """The pair that the file names tell, checked against what was asked for."""
    if source and target:
        return Languages(source, target)
    if not folder.is_dir():
        raise DataError(f"there is no data folder {folder}. Make one with `lamina preprocess --destdir {folder} ...`.")
    pattern = re.compile(r"(.+?)\.([^.-]+)-([^.-]+)\.\2\.idx")
    matches = [match for path in folder.iterdir() if (match := pattern.fullmatch(path.name)) and match[3] != "None"]
    pairs = {Languages(match[2], match[3]) for match in matches if match[1] == split}
    pairs = {pair for pair in pairs if source in (None, *pair) and target in (None, *pair)}
    if len(pairs) != 1:
        found = f"several ({', '.join(sorted(map('-'.join, pairs)))})" if pairs else "none"
        advice = "Name them with --source-lang and --target-lang."
        splits = sorted({match[1] for match in matches})
        if splits and split not in splits:
            advice = f"The folder has {', '.join(splits)}."
        elif not splits and any(folder.glob(f"{split}*.idx")):
            advice = "It holds texts in one language: --task language_modeling and --task masked_lm train on those."
        raise DataError(f"the languages of {folder} cannot be told: of the files {split}.SRC-TGT.SRC.idx there are {found}. "
                        f"{advice}")
    found_source, found_target = pairs.pop()
    # A folder made for one direction serves the other too, as in fairseq.
    if source == found_target or target == found_source:
        return Languages(found_target, found_source)
    return Languages(found_source, found_target)


def load_dictionaries(folder: Path, languages: Languages) -> tuple[Vocabulary, Vocabulary]:
    source, target = (load_dictionary(folder, language) for language in languages)
    return source, target


class ParallelCorpus:
    """Examples by index; `source_sizes` and `target_sizes` tell their lengths without reading them."""

    unit = "pairs"

    def __init__(self, parts: Sequence[tuple[BinaryReader, BinaryReader]], vocabulary_sizes: tuple[int, int],
                 name: str, max_source_length: int | None = None) -> None:
        for source, target in parts:
            if len(source) != len(target):
                raise DataError(f"{name} has {len(source)} source and {len(target)} target sentences; they must be "
                                "aligned one to one. Run `lamina preprocess` again.")
        self._parts = parts
        self._starts = np.cumsum([0, *(len(source) for source, _ in parts)])
        self._vocabulary_sizes = vocabulary_sizes
        self._max_source_length = max_source_length
        self.name = name
        sizes = np.concatenate([source.sizes for source, _ in parts])
        self.source_sizes = sizes if max_source_length is None else np.minimum(sizes, max_source_length)
        self.target_sizes = np.concatenate([target.sizes for _, target in parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Example:
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        source, target = (reader[index - int(self._starts[part])] for reader in self._parts[part])
        limit = self._max_source_length
        if limit is not None and len(source) > limit:
            source = np.append(source[: limit - 1], source.dtype.type(EOS))
        for side, ids, size in zip(("source", "target"), (source, target), self._vocabulary_sizes, strict=True):
            if len(ids) == 0 or int(ids.max()) >= size or int(ids.min()) < 0:
                raise DataError(f"the {side} of pair {index} in {self.name} holds ids that its dictionary of {size} "
                                "symbols does not have: the dictionary belongs to other data. Run `lamina preprocess` "
                                "again.")
        return Example(source, target)

    def packed_batch(self, indices: Sequence[int], shape: PackedShape) -> PackedBatch:
        source, target = (self._side(number, np.asarray(indices)) for number in range(2))
        return packed(source, target, shape, indices)

    def flat_batch(self, indices: Sequence[int], draw: tuple[int, int]) -> PackedBatch:
        source, target = (self._side(number, np.asarray(indices)) for number in range(2))
        return flat(source, target, indices)

    def _side(self, side: int, indices: np.ndarray) -> Sentences:
        """Read in one go, not sentence by sentence: a fast GPU would wait for that."""
        sizes = (self.source_sizes, self.target_sizes)[side][indices].astype(np.int64)
        part_of = np.searchsorted(self._starts, indices, side="right") - 1
        ids = np.empty(int(sizes.sum()), dtype=np.int64)
        for part in np.unique(part_of):
            own = part_of == part
            ids[np.repeat(own, sizes)] = self._parts[part][side].end_to_end(indices[own] - self._starts[part], sizes[own])
        if side == 0 and self._max_source_length is not None:
            whole = np.concatenate([source.sizes for source, _ in self._parts])
            ids[(np.cumsum(sizes) - 1)[whole[indices] > self._max_source_length]] = EOS
        if sizes.min() == 0 or int(ids.max()) >= self._vocabulary_sizes[side] or int(ids.min()) < 0:
            for index in indices.tolist():
                self[index]  # one of them says what is wrong with it
        return Sentences(ids, sizes)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        return {"source": self.source_sizes, "target": self.target_sizes}

    @property
    def lengths(self) -> np.ndarray:
        """What a pair costs in a batch: its longer side."""
        return np.maximum(self.source_sizes, self.target_sizes)

    def batch(self, indices: Sequence[int], draw: tuple[int, int]) -> Batch:
        return collate([self[index] for index in indices], indices)


def open_corpus(folder: Path, split: str, languages: Languages, vocabulary_sizes: tuple[int, int], *,
                adds_numbered: bool = False, upsample_primary: int = 1,
                max_source_length: int | None = None) -> ParallelCorpus:
    """A split; with `adds_numbered`, SPLIT1, SPLIT2, ... beside it are appended, as fairseq does for training."""
    check_finished(folder)
    parts = [_open_pair(folder, split, languages)] * upsample_primary
    number = 1
    while adds_numbered and _pair_prefix(folder, f"{split}{number}", languages) is not None:
        parts.append(_open_pair(folder, f"{split}{number}", languages))
        number += 1
    return ParallelCorpus(parts, vocabulary_sizes, f"{folder}/{split}", max_source_length)


def _pair_prefix(folder: Path, split: str, languages: Languages) -> tuple[str, str] | None:
    """The pair as the file names spell it, whichever way round the folder was made."""
    for pair in (languages, (languages.target, languages.source)):
        if (folder / f"{split_name(split, *pair, languages.source)}.idx").exists():
            return pair
    return None


def _open_pair(folder: Path, split: str, languages: Languages) -> tuple[BinaryReader, BinaryReader]:
    pair = _pair_prefix(folder, split, languages)
    if pair is None:
        raise DataError(f"{folder} has no split {split!r} for {'-'.join(languages)}: "
                        f"{split_name(split, *languages, languages.source)}.idx is missing. "
                        "Check the folder, --source-lang and --target-lang, or preprocess that split.")
    source, target = (BinaryReader(folder / split_name(split, *pair, language)) for language in languages)
    return source, target
