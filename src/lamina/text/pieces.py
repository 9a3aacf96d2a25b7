"""Pieces back to text, as a reader or a metric wants it."""

from __future__ import annotations

from collections.abc import Callable

from lamina.config.joining import joiner_of
from lamina.text.subword import Subword
from lamina.text.vocabulary import FIRST_WORD_ID, SPECIAL_SYMBOLS, UNK, Vocabulary

# An unknown word in a reference must not match one in a translation: the two were never the same word. The first form is what
# fairseq prints; the second has no brackets that a tokenizer could split off and match.
UNKNOWN_IN_REFERENCE = "<<unk>>"
UNKNOWN_WORD_IN_REFERENCE = "UNKNOWNINREFERENCE"


def hide_unknown(pieces: list[str], mark: str) -> list[str]:
    """A reference's pieces with `mark` for <unk>; before joining, since a subword model may write <unk> in its own way."""
    return [mark if piece == SPECIAL_SYMBOLS[UNK] else piece for piece in pieces]


def join_pieces(pieces: list[str], subword: Subword, joiner: str | None) -> str:
    """`joiner` is what --remove-bpe takes: a mark such as '@@ ', or a rule's name such as 'sentencepiece'."""
    if joiner is None:
        return subword.decode(pieces)
    mark, is_space, _ = rule = joiner_of(joiner)
    if is_space:
        return "".join(pieces).replace(mark, " ").strip()
    text = " ".join(pieces)
    return f"{text} ".replace(f"{mark} ", "").rstrip() if rule.joins else text


def warn_of_joiner(joiner: str | None, vocabulary: Vocabulary, warn: Callable[[str], object],
                   flag: str = "remove-bpe") -> None:
    """`warn` hears of a joiner whose mark no symbol of the dictionary carries, so that no text can hold it."""
    if joiner is None:
        return
    rule = joiner_of(joiner, flag)
    if rule.joins and not any(map(rule.marks, vocabulary.symbols[FIRST_WORD_ID:])):
        what = "it makes one word of each text" if rule.is_space else "it joins nothing"
        warn(f"--{flag} {joiner.rstrip()}: no symbol of the dictionary has the mark {rule.mark}, so {what}. Name the mark of "
             "these subwords, or leave it out where there are none")
