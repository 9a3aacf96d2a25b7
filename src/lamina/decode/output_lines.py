"""The lines that scripts read: S- T- H- D- P- A-, tab-separated, scores in base 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lamina.config.generate_options import OutputConfig
from lamina.decode.alignment import alignment_of
from lamina.decode.backtrace import Hypothesis
from lamina.errors import DataError
from lamina.text.pieces import UNKNOWN_IN_REFERENCE, UNKNOWN_WORD_IN_REFERENCE, hide_unknown, join_pieces
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, PAD, SPECIAL_SYMBOLS, UNK, Vocabulary

UNKNOWN = SPECIAL_SYMBOLS[UNK]


class Described(NamedTuple):
    """A translation as text, and the lines that say it."""

    tokens: str  # as they stand, after --remove-bpe
    text: str  # detokenized
    lines: list[str]


class Describer:
    """Turns ids into the texts that are printed and scored."""

    def __init__(self, vocabularies: tuple[Vocabulary, ...], subwords: tuple[Subword, ...],
                 config: OutputConfig) -> None:
        self.vocabularies = vocabularies
        self.subwords = subwords
        self.remove_bpe = config.remove_bpe
        self.replacements = None if config.replace_unk is None else read_replacements(config.replace_unk)
        self.has_alignment = config.has_alignment

    @property
    def needs_attention(self) -> bool:
        return self.has_alignment or self.replacements is not None

    def reference(self, ids: Sequence[int]) -> str:
        return self.join(hide_unknown(self.vocabularies[1].decode(ids), UNKNOWN_IN_REFERENCE))

    def reference_text(self, ids: Sequence[int]) -> str:
        return self._text(hide_unknown(self.vocabularies[1].decode(ids), UNKNOWN_WORD_IN_REFERENCE))

    def hypothesis(self, number: int, hypothesis: Hypothesis, source_ids: Sequence[int],
                   source: Sequence[str] | None = None) -> Described:
        """What a search found, from ids alone, or with the source pieces that the ids stand for."""
        pairs: list[tuple[int, int]] = []
        if self.needs_attention:
            assert hypothesis.attention is not None, "the search was asked for attention"
            pairs = alignment_of(hypothesis.attention, source_ids, skipped=(EOS, PAD))
        if source is None:
            source = [self.vocabularies[0].symbols[token] for token in source_ids]
        return self.describe(number, source, self.vocabularies[1].decode(hypothesis.ids), hypothesis.score,
                             hypothesis.token_scores, pairs)

    def describe(self, number: int, source: Sequence[str], pieces: list[str], score: float, token_scores: Sequence[float],
                 pairs: Sequence[tuple[int, int]]) -> Described:
        """`pairs` aligns (source, target) pieces; scores are natural logarithms."""
        if self.replacements is not None:
            source_of = {target: source[place] for place, target in pairs}
            pieces = [self.replacements.get(source_of[place], source_of[place]) if piece == UNKNOWN and place in source_of
                      else piece for place, piece in enumerate(pieces)]
        tokens, text, bits = self.join(pieces), self._text(pieces), score / math.log(2)
        lines = [f"H-{number}\t{bits:.6f}\t{tokens}", f"D-{number}\t{bits:.6f}\t{text}", token_line(number, token_scores)]
        if self.has_alignment:
            lines.append(f"A-{number}\t{' '.join(f'{place}-{target}' for place, target in pairs)}")
        return Described(tokens, text, lines)

    def join(self, pieces: list[str]) -> str:
        """Tokens as they stand, after --remove-bpe."""
        return " ".join(pieces) if self.remove_bpe is None else join_pieces(pieces, self.subwords[1], self.remove_bpe)

    def _text(self, pieces: list[str]) -> str:
        return join_pieces(pieces, self.subwords[1], self.remove_bpe)


def token_line(number: int, token_scores: Sequence[float]) -> str:
    return f"P-{number}\t{' '.join(f'{value / math.log(2):.4f}' for value in token_scores)}"


def read_replacements(path: str) -> dict[str, str]:
    """`source target` lines; an empty path means that the source word itself is taken."""
    if not path:
        return {}
    try:
        rows = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--replace-unk {path} cannot be read: {error}.") from None
    pairs = [row.split(maxsplit=1) for row in rows if row.strip()]
    bad = next((number for number, pair in enumerate(pairs, start=1) if len(pair) != 2), None)
    if bad is not None:
        raise DataError(f"--replace-unk {path}, line {bad}: expected `source target`, found one word.")
    return {source: target.strip() for source, target in pairs}
