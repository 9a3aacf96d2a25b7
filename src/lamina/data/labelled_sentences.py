"""Sentences, or pairs of them, with a label each: the folder DATA/input0, DATA/input1 and DATA/label."""

# B batch, T tokens

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import cut_draw, moved, pad_rows
from lamina.data.binary import BinaryReader
from lamina.data.flat_texts import FlatSentences, end_to_end, flat_row
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, Vocabulary

if TYPE_CHECKING:
    from lamina.data.layer_subsets import Draw

FIRST_INPUT, SECOND_INPUT, LABEL = "input0", "input1", "label"


@dataclass(frozen=True)
class SentenceBatch:
    """Padded rows (on the right) and a class, or a number, for each."""

    tokens: Tensor  # (B, T)
    target: Tensor  # (B,)
    indices: tuple[int, ...]
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @property
    def inputs(self) -> tuple[Tensor]:
        return (self.tokens,)

    @property
    def num_target_tokens(self) -> int:
        return len(self.indices)

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> SentenceBatch:
        return moved(self, device)

    def rows(self, rows: slice) -> SentenceBatch:
        return cut_draw(self, rows, SentenceBatch(self.tokens[rows], self.target[rows], self.indices[rows]))


@dataclass(frozen=True)
class Frame:
    """How a sentence or a pair stands in a row: a first token, and one between the two; -1 for none."""

    init_id: int
    separator_id: int

    def num_added(self, *, is_pair: bool) -> int:
        return (self.init_id >= 0) + (is_pair and self.separator_id >= 0)

    def join(self, first: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """Both sentences bring their </s>."""
        parts = [[self.init_id], first] if self.init_id >= 0 else [first]
        if second is not None:
            parts += [[self.separator_id], second] if self.separator_id >= 0 else [second]
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


class SentencePart:
    """The files of one split: inputs, second inputs where there are such, and a target each."""

    def __init__(self, folder: Path, split: str, targets: np.ndarray) -> None:
        self.name, self.targets = f"{folder}/{split}", targets
        self.first = BinaryReader(folder / FIRST_INPUT / split)
        has_second = (folder / SECOND_INPUT / f"{split}.idx").exists()
        self.second = BinaryReader(folder / SECOND_INPUT / split) if has_second else None
        for what, other in (("labels", targets), ("second inputs", self.second)):
            if other is not None and len(other) != len(self.first):
                raise DataError(f"{self.name} has {len(self.first)} inputs and {len(other)} {what}; there must be one for "
                                "each.")
        self.sizes = self.first.sizes if self.second is None else self.first.sizes + self.second.sizes


class SentenceCorpus:
    """Labelled sentences, part after part."""

    unit = "sentences"

    def __init__(self, parts: Sequence[SentencePart], vocabulary: Vocabulary, frame: Frame, *, max_length: int | None) -> None:
        self.name = parts[0].name
        self._parts, self._frame, self._max_length = parts, frame, max_length
        self._starts = np.cumsum([0, *(len(part.targets) for part in parts)])
        self._targets = np.concatenate([part.targets for part in parts])
        self._vocabulary_size = len(vocabulary)
        sizes = np.concatenate([part.sizes + frame.num_added(is_pair=part.second is not None) for part in parts])
        self.lengths = sizes if max_length is None else np.minimum(sizes, max_length)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> np.ndarray:
        part = self._parts[number := int(np.searchsorted(self._starts, index, side="right")) - 1]
        place = index - int(self._starts[number])
        row = self._frame.join(part.first[place], None if part.second is None else part.second[place])
        if int(row.max()) >= self._vocabulary_size or int(row.min()) < 0:
            raise DataError(f"input {index} of {self.name} holds ids that the dictionary of {self._vocabulary_size} symbols "
                            "does not have: it belongs to other data. Run `lamina preprocess` again, with one --srcdict for "
                            f"{FIRST_INPUT} and {SECOND_INPUT}.")
        if self._max_length is not None and len(row) > self._max_length:
            return np.append(row[: self._max_length - 1], EOS)
        return row

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        return {"input": self.lengths}

    def batch(self, indices: Sequence[int], draw: tuple[int, int]) -> SentenceBatch:
        tokens = pad_rows([self[index] for index in indices])
        return SentenceBatch(torch.from_numpy(tokens), torch.from_numpy(self._targets[list(indices)]), tuple(indices))

    def flat_batch(self, indices: Sequence[int], draw: tuple[int, int]) -> FlatSentences:
        return FlatSentences(**flat_row(end_to_end([self[index] for index in indices])), indices=tuple(indices),
                             target=torch.from_numpy(self._targets[list(indices)]))


def read_classes(folder: Path, split: str, labels: Vocabulary, num_classes: int) -> np.ndarray:
    """The class of each label: its place in the label dictionary, special symbols not counted. (N,)"""
    reader = BinaryReader(folder / LABEL / split)
    wrong = np.flatnonzero(reader.sizes != 2)
    if len(wrong):
        raise DataError(f"label {wrong[0]} of {folder}/{split} has {reader.sizes[wrong[0]] - 1} words; a label is one word.")
    classes = np.array([int(reader[index][0]) for index in range(len(reader))], dtype=np.int64) - FIRST_WORD_ID
    unknown = np.flatnonzero((classes < 0) | (classes >= num_classes))
    if len(unknown):
        place, number = int(unknown[0]), int(classes[unknown[0]])
        what = "one that the training labels lack" if number < 0 else (
            f"{labels.symbols[number + FIRST_WORD_ID]!r}, number {number + 1} of its dictionary"
            if number + FIRST_WORD_ID < len(labels) else "not in its dictionary")
        raise DataError(f"label {place} of {folder}/{split} is {what}, but --num-classes is {num_classes}. Check the labels, "
                        "or raise --num-classes.")
    return classes


def read_numbers(folder: Path, split: str) -> np.ndarray:
    """The lines of DATA/label/SPLIT.label. (N,)"""
    path = folder / LABEL / f"{split}.label"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', error)}. With --regression-target it holds a "
                        "number per line, as text.") from None
    numbers = []
    for place, line in enumerate(lines, start=1):
        try:
            number = float(line)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"{path}, line {place}: expected a number, found {line[:40]!r}.")
        numbers.append(number)
    return np.array(numbers, dtype=np.float32)
