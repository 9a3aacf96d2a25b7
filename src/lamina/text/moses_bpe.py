"""Moses's tokenization and byte-pair codes whose last piece of a word ends in </w>: how FSMT's models read and write text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from lamina.errors import DataError
from lamina.parts.subword_libraries import WORD_END
from lamina.text.tokenizer import moses_tokenizers, punctuation_normalizer

CACHED_WORDS = 500_000
# As Moses's replace-unicode-punctuation.perl.
_PUNCTUATION = str.maketrans({
    "，": ",", "、": ",", "”": '"', "“": '"', "∶": ":", "：": ":", "？": "?", "《": '"', "》": '"', "）": ")", "！": "!",
    "（": "(", "；": ";", "１": "1", "」": '"', "「": '"', "０": "0", "３": "3", "２": "2", "５": "5", "６": "6", "９": "9",
    "７": "7", "８": "8", "４": "4", "～": "~", "’": "'", "…": "...", "━": "-", "〈": "<", "〉": ">", "【": "[", "】": "]",
    "％": "%"})
_STOPS = re.compile(r"[。．]\s*")


class MosesBpe:
    """Normalize, tokenize, then merge; join, then detokenize. `merges`: pairs of pieces, the first to be merged first."""

    kind = "moses-bpe"

    def __init__(self, merges: Sequence[tuple[str, str]], language: str, *, lowers: bool = False) -> None:
        self.merges = list(merges)
        self.language = language
        self.lowers = lowers
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._known: dict[str, list[str]] = {}

    @cached_property
    def _tools(self) -> tuple[Any, Any, Any]:
        return punctuation_normalizer(self.language), *moses_tokenizers(self.language)

    def encode(self, line: str) -> list[str]:
        normalizer, tokenizer, _ = self._tools
        text = line.lower() if self.lowers else line
        text = normalizer.normalize(_STOPS.sub(". ", text.translate(_PUNCTUATION)))
        text = "".join(character for character in text if not unicodedata.category(character).startswith("C"))
        words = tokenizer.tokenize(text, aggressive_dash_splits=True, escape=True)
        return [piece for word in words if word for piece in self._pieces(word)]

    def decode(self, pieces: Sequence[str]) -> str:
        words = "".join(piece.replace(" ", "").replace(WORD_END, " ") for piece in pieces).split()
        return self._tools[2].detokenize(words)

    def _pieces(self, word: str) -> list[str]:
        if (found := self._known.get(word)) is None:
            if len(self._known) >= CACHED_WORDS:
                self._known.clear()
            found = self._known[word] = self._merged([*word[:-1], word[-1] + WORD_END])
        return found

    def _merged(self, pieces: list[str]) -> list[str]:
        while len(pieces) > 1:
            pair = min(pairwise(pieces), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if pair not in self._ranks:
                break
            merged, place = [], 0
            while place < len(pieces):
                is_pair = tuple(pieces[place : place + 2]) == pair
                merged.append("".join(pair) if is_pair else pieces[place])
                place += 2 if is_pair else 1
            pieces = merged
        return pieces

    def to_bytes(self) -> bytes:
        return json.dumps({"language": self.language, "lowers": self.lowers, "merges": self.merges},
                          ensure_ascii=False).encode("utf-8", errors="surrogatepass")

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the merges") -> MosesBpe:
        try:
            plain = json.loads(data.decode("utf-8", errors="surrogatepass"))
            merges = [(first, second) for first, second in plain["merges"]]
            if not isinstance(plain["language"], str) or not all(isinstance(half, str) for pair in merges for half in pair):
                raise TypeError
            return cls(merges, plain["language"], lowers=plain["lowers"] is True)
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{name} does not hold merges and a language.") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return MosesBpe.from_bytes, (self.to_bytes(),)
