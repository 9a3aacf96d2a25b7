"""What cuts words into pieces: the kinds of --subword, and white space for text that was segmented before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from lamina.fields import check, flag
from lamina.parts.contracts import SubwordLibrary
from lamina.registry import register

if TYPE_CHECKING:
    from lamina.text.subword import Subword

DEFAULT_CHARACTER_COVERAGE = 0.9995  # sentencepiece's own
JOINER = "@@"  # subword-nmt's: the next piece belongs to the same word
WORD_END = "</w>"  # FSMT's: a word ends with this piece
SPACE_BYTE = "Ġ"  # byte-level BPE's space: a word begins with this piece
WORD_START = "▁"  # sentencepiece's: a word begins with this piece


@register.subword("whitespace")
@dataclass(frozen=True, kw_only=True)
class WhitespaceLibrary(SubwordLibrary):
    """Pieces are what white space separates."""

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.subword import Whitespace

        return Whitespace.from_bytes(data, name)


class MarksWordStarts(SubwordLibrary):
    """Pieces that begin a word begin with a mark."""

    shows_words = True
    word_start: ClassVar[str] = WORD_START

    def is_marked(self, piece: str) -> bool:
        return piece.startswith(self.word_start)

    def begins_word(self, piece: str) -> bool:
        return piece.startswith(self.word_start)

    def spell(self, pieces: Sequence[str]) -> str:
        return "".join(pieces).replace(self.word_start, "")


@register.subword("sentencepiece")
@dataclass(frozen=True, kw_only=True)
class SentencePieceLibrary(MarksWordStarts):
    """Unigram pieces (Kudo 2018)."""

    file_ending = "model"
    model_option = "sentencepiece-model"
    about_model = "a sentencepiece .model"

    character_coverage: float = flag(DEFAULT_CHARACTER_COVERAGE, "share of the characters that sentencepiece covers",
                                     needs="subword")
    sentencepiece_model: tuple[str, ...] = flag((), "apply this .model; one file, or source,target", metavar="FILE",
                                                needs="!subword")

    @property
    def models(self) -> tuple[str, ...]:
        return self.sentencepiece_model

    def check(self, *, is_learned: bool) -> None:
        check(is_learned or self.character_coverage == DEFAULT_CHARACTER_COVERAGE,
              "--character-coverage has no effect without --subword sentencepiece.")
        check(0.0 < self.character_coverage <= 1.0,
              f"--character-coverage is {self.character_coverage}; it must lie in (0, 1].")

    def learn(self, lines: Iterable[str], vocab_size: int) -> Subword:
        from lamina.text.subword import learn_sentencepiece

        return learn_sentencepiece(lines, vocab_size, self.character_coverage)

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.subword import SentencePiece

        return SentencePiece.from_bytes(data, name)


@register.subword("bpe")
@dataclass(frozen=True, kw_only=True)
class BpeLibrary(SubwordLibrary):
    """Byte-pair codes of subword-nmt (Sennrich et al. 2016)."""

    file_ending = "codes"
    model_option = "bpe-codes"
    about_model = "subword-nmt codes"
    shows_words = True

    bpe_codes: tuple[str, ...] = flag((), "apply these subword-nmt codes; one file, or source,target", metavar="FILE",
                                      needs="!subword")

    @property
    def models(self) -> tuple[str, ...]:
        return self.bpe_codes

    def learn(self, lines: Iterable[str], vocab_size: int) -> Subword:
        from lamina.text.subword import learn_bpe

        return learn_bpe(lines, vocab_size)

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.subword import Bpe

        return Bpe.from_bytes(data, name)

    def is_marked(self, piece: str) -> bool:
        return piece.endswith(JOINER)

    def continues(self, piece: str) -> bool:
        return piece.endswith(JOINER)

    def spell(self, pieces: Sequence[str]) -> str:
        return "".join(piece.removesuffix(JOINER) for piece in pieces)


@register.subword("framed")
@dataclass(frozen=True, kw_only=True)
class FramedLibrary(SubwordLibrary):
    """Any segmentation, with pieces such as a language's in front of each text or behind it; imported models have it."""

    file_ending = "framed.json"

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.framed import Framed

        return Framed.from_bytes(data, name)


@register.subword("tokenizers")
@dataclass(frozen=True, kw_only=True)
class TokenizersLibrary(MarksWordStarts):
    """What a tokenizer.json of the `tokenizers` library describes; imported models have it."""

    file_ending = "tokenizer.json"

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.tokenizer_json import TokenizerJson

        return TokenizerJson.from_bytes(data, name)


@register.subword("byte-level")
@dataclass(frozen=True, kw_only=True)
class ByteLevelLibrary(TokenizersLibrary):
    """The same with GPT-2's pieces, which spell bytes (Radford et al. 2019)."""

    word_start = SPACE_BYTE

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.tokenizer_json import ByteLevelJson

        return ByteLevelJson.from_bytes(data, name)

    def spell(self, pieces: Sequence[str]) -> str:
        spelled = b"".join(_byte_values()[letter] if letter in _byte_values() else letter.encode("utf-8")
                           for letter in "".join(pieces))
        return spelled.decode("utf-8", errors="replace").removeprefix(" ")


@cache
def _byte_values() -> dict[str, bytes]:
    """Bytes that are printed as they are, then the others under the next free letters from 256 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(0x100) if value not in printed]
    return {chr(letter): bytes([value]) for letter, value in
            [*zip(printed, printed, strict=True), *enumerate(others, start=0x100)]}


@register.subword("moses-bpe")
@dataclass(frozen=True, kw_only=True)
class MosesBpeLibrary(SubwordLibrary):
    """Moses's tokenization and byte-pair codes that mark the end of a word; imported models (FSMT) have it."""

    file_ending = "moses-bpe.json"
    shows_words = True

    def load(self, data: bytes, name: str) -> Subword:
        from lamina.text.moses_bpe import MosesBpe

        return MosesBpe.from_bytes(data, name)

    def is_marked(self, piece: str) -> bool:
        return piece.endswith(WORD_END)

    def continues(self, piece: str) -> bool:
        return not piece.endswith(WORD_END)

    def spell(self, pieces: Sequence[str]) -> str:
        return "".join(piece.removesuffix(WORD_END) for piece in pieces)
