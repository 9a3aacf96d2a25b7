"""Pieces back to text, as a reader or a metric wants it."""

from __future__ import annotations

from lamina.text.subword import Subword
from lamina.text.vocabulary import SPECIAL_SYMBOLS, UNK

# An unknown word in a reference must not match one in a translation: the two were never the same word. The first form is what
# the references print; the second has no brackets that a tokenizer could split off and match.
UNKNOWN_IN_REFERENCE = "<<unk>>"
UNKNOWN_WORD_IN_REFERENCE = "UNKNOWNINREFERENCE"


def hide_unknown(pieces: list[str], mark: str) -> list[str]:
    """A reference's pieces with `mark` for <unk>; before joining, since a subword model may write <unk> in its own way."""
    return [mark if piece == SPECIAL_SYMBOLS[UNK] else piece for piece in pieces]


def join_pieces(pieces: list[str], subword: Subword, joiner: str | None) -> str:
    """`joiner` is what --remove-bpe takes: a mark such as '@@ ', or 'sentencepiece'."""
    if joiner is None:
        return subword.decode(pieces)
    if joiner == "sentencepiece":
        return "".join(pieces).replace("▁", " ").strip()
    mark = joiner.rstrip()
    return (" ".join(pieces) + " ").replace(f"{mark} ", "").rstrip()
