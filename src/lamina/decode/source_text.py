"""The source lines of a split as they were before preprocessing: words that the dictionary lacks are <unk> in a data folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.errors import DataError
from lamina.preprocess.line_blocks import MAX_LINE_LENGTH, read_lines
from lamina.text.subword import Subword
from lamina.text.vocabulary import Vocabulary


class SourceText:
    """Pieces of a sentence by its number; a text that is not the split's is noticed at the first sentence that differs."""

    def __init__(self, path: str, split: str, num_sentences: int, subword: Subword, vocabulary: Vocabulary) -> None:
        self.path, self.split, self.subword, self.vocabulary = path, split, subword, vocabulary
        self.lines = list(read_lines(path, MAX_LINE_LENGTH))
        if len(self.lines) != num_sentences:
            raise DataError(f"--source-text {path} has {len(self.lines)} lines, but {split} has {num_sentences} sentences. "
                            "Name the source text that the split was made from.")

    def pieces(self, number: int, ids: Sequence[int]) -> list[str]:
        """As many as there are ids, of which the last, </s>, stands for itself; the source may have been cut."""
        pieces = self.subword.encode(self.lines[number])[: len(ids) - 1]
        if not np.array_equal(self.vocabulary.encode(pieces), ids):
            raise DataError(f"--source-text {self.path}, line {number + 1} is not the source of sentence {number} of "
                            f"{self.split}. Name the text that the split was made from, in the same segmentation.")
        return [*pieces, self.vocabulary.symbols[ids[-1]]]
