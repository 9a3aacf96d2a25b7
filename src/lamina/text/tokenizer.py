"""Moses tokenization around any subword model: punctuation apart on the way in, glued again on the way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lamina.errors import ConfigError

_APART = re.compile(r"(?<!\S)[.,](?!\S)|&(?:apos|quot|#91|#93|#124);|(?<!\S)@-@(?!\S)")
_ATTACHED = re.compile(r"\w[.,](?!\S)")

if TYPE_CHECKING:
    from lamina.text.subword import Subword


class Moses:
    """Tokenize, then `inner`; `inner`, then detokenize.

    Unlike the Moses scripts by default, nothing is escaped (& stays &), so that raw text comes out as it went in.
    """

    kind = "moses"

    def __init__(self, inner: Subword, language: str) -> None:
        self.inner = inner
        self.language = language

    def tokenize(self, line: str) -> str:
        return " ".join(self._tokenizers[0].tokenize(line, escape=False))

    def encode(self, line: str) -> list[str]:
        return self.inner.encode(self.tokenize(line))

    def decode(self, pieces: Sequence[str]) -> str:
        return self._tokenizers[1].detokenize(self.inner.decode(pieces).split(), unescape=False)

    def to_bytes(self) -> bytes:
        return self.inner.to_bytes()

    def __reduce__(self) -> tuple[type[Moses], tuple[Subword, str]]:
        return Moses, (self.inner, self.language)

    @cached_property
    def _tokenizers(self) -> tuple[Any, Any]:
        return moses_tokenizers(self.language)


def detokenizer(language: str) -> Callable[[str], str]:
    """Text that Moses's own script tokenized, escapes included, as a reader wants it."""
    moses = _sacremoses().MosesDetokenizer(lang=language)
    return lambda line: str(moses.detokenize(line.split()))


def looks_tokenized(lines: Iterable[str]) -> bool:
    """Whether full stops and commas mostly stand alone, as no language writes them but tokenizers do."""
    apart = attached = 0
    for line in lines:
        apart += len(_APART.findall(line))
        attached += len(_ATTACHED.findall(line))
    return apart > attached


def punctuation_normalizer(language: str) -> Any:
    """Its `normalize` spells quotes, dashes and spaces alike, as the Moses script of that name does."""
    return _sacremoses().MosesPunctNormalizer(lang=language)


def moses_tokenizers(language: str) -> tuple[Any, Any]:
    """Its tokenizer and its detokenizer."""
    moses = _sacremoses()
    return moses.MosesTokenizer(lang=language), moses.MosesDetokenizer(lang=language)


def _sacremoses() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise ConfigError("Moses tokenization needs the sacremoses package: pip install 'lamina[moses]'.") from None
    return sacremoses
