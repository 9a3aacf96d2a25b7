"""The lines that scripts read: S- T- H- D- P- A-, tab-separated, scores in base 2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lamina.decode.alignment import alignment_of
from lamina.decode.trace import Hypothesis
from lamina.errors import DataError
from lamina.tasks.translation import UNKNOWN_IN_REFERENCE, UNKNOWN_WORD_IN_REFERENCE, join_pieces
from lamina.text.subword import Subword
from lamina.text.vocabulary import EOS, PAD, SPECIAL_SYMBOLS, UNK, Vocabulary

UNKNOWN = SPECIAL_SYMBOLS[UNK]


@dataclass
class Described:
    """A hypothesis as text."""

    tokens: str  # as they stand, after --remove-bpe
    text: str  # detokenized
    score: float  # base 2, as printed
    lines: list[str] = field(default_factory=list)


class Describer:
    """Turns ids into the texts that are printed and scored."""

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary], subwords: tuple[Subword, Subword], *,
                 remove_bpe: str | None = None, replacements: Mapping[str, str] | None = None,
                 has_alignment: bool = False) -> None:
        self.vocabularies = vocabularies
        self.subwords = subwords
        self.remove_bpe = remove_bpe
        self.replacements = replacements
        self.has_alignment = has_alignment

    @property
    def needs_attention(self) -> bool:
        return self.has_alignment or self.replacements is not None

    def source(self, ids: Sequence[int]) -> str:
        return self._join(self.vocabularies[0].decode(ids))

    def reference(self, ids: Sequence[int]) -> str:
        pieces = self.vocabularies[1].decode(ids)
        return self._join([UNKNOWN_IN_REFERENCE if piece == UNKNOWN else piece for piece in pieces])

    def reference_text(self, ids: Sequence[int]) -> str:
        pieces = self.vocabularies[1].decode(ids)
        return self._text([UNKNOWN_WORD_IN_REFERENCE if piece == UNKNOWN else piece for piece in pieces])

    def hypothesis(self, index: int, hypothesis: Hypothesis, source_ids: Sequence[int]) -> Described:
        pieces = self.vocabularies[1].decode(hypothesis.ids)
        pairs = self._alignment(hypothesis, source_ids)
        if self.replacements is not None:
            pieces = self._replace_unknown(pieces, {target: source for source, target in pairs}, source_ids)
        score = hypothesis.score / math.log(2)
        tokens, text = self._join(pieces), self._text(pieces)
        token_scores = " ".join(f"{value / math.log(2):.4f}" for value in hypothesis.token_scores)
        lines = [f"H-{index}\t{score:.6f}\t{tokens}", f"D-{index}\t{score:.6f}\t{text}", f"P-{index}\t{token_scores}"]
        if self.has_alignment:
            lines.append(f"A-{index}\t{' '.join(f'{source}-{target}' for source, target in pairs)}")
        return Described(tokens, text, score, lines)

    def _alignment(self, hypothesis: Hypothesis, source_ids: Sequence[int]) -> list[tuple[int, int]]:
        """For each target token the source token that it looks at most, </s> left out on both sides: (source, target)."""
        if not self.needs_attention:
            return []
        assert hypothesis.attention is not None, "the search was asked for attention"
        return alignment_of(hypothesis.attention, source_ids, skipped=(EOS, PAD))

    def _join(self, pieces: list[str]) -> str:
        return " ".join(pieces) if self.remove_bpe is None else join_pieces(pieces, self.subwords[1], self.remove_bpe)

    def _text(self, pieces: list[str]) -> str:
        return join_pieces(pieces, self.subwords[1], self.remove_bpe)

    def _replace_unknown(self, pieces: list[str], source_of: dict[int, int], source_ids: Sequence[int]) -> list[str]:
        assert self.replacements is not None
        source_symbols = self.vocabularies[0].symbols
        replaced = []
        for position, piece in enumerate(pieces):
            if piece == UNKNOWN and position in source_of:
                word = source_symbols[source_ids[source_of[position]]]
                piece = self.replacements.get(word, word)
            replaced.append(piece)
        return replaced


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
