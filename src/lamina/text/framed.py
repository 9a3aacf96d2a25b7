"""Pieces around a text, such as its language: what multilingual models of Hugging Face's expect in front of it or behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lamina.errors import DataError

if TYPE_CHECKING:
    from lamina.text.subword import Subword

_CODE = re.compile(r">>[^<>\s]*<<")  # of a target language, which Marian's texts may begin with


class Framed:
    """`prefix`, what `inner` makes of the text, `suffix`; on the way out, pieces that are no text are left out.

    With `reads_codes` a text may begin with a code such as >>fr<<, which then takes the place of the prefix.
    """

    kind = "framed"

    def __init__(self, inner: Subword, *, prefix: Sequence[str] = (), suffix: Sequence[str] = (), hidden: Sequence[str] = (),
                 reads_codes: bool = False) -> None:
        self.inner = inner
        self.prefix = list(prefix)
        self.suffix = list(suffix)
        self.hidden = frozenset(hidden) | frozenset(prefix) | frozenset(suffix)
        self.reads_codes = reads_codes

    def encode(self, line: str) -> list[str]:
        code = _CODE.match(line) if self.reads_codes else None
        if code is not None:
            return [code[0], *self.inner.encode(line[code.end():]), *self.suffix]
        return [*self.prefix, *self.inner.encode(line), *self.suffix]

    def decode(self, pieces: Sequence[str]) -> str:
        return self.inner.decode([piece for piece in pieces if piece not in self.hidden])

    def to_bytes(self) -> bytes:
        from lamina.text.subword import subword_to_dict

        return json.dumps({"prefix": self.prefix, "suffix": self.suffix, "hidden": sorted(self.hidden),
                           "reads_codes": self.reads_codes, "inner": subword_to_dict(self.inner)}).encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the framed subword model") -> Framed:
        from lamina.text.subword import subword_from_dict

        try:
            plain = json.loads(data)
            frame = {what: plain[what] for what in ("prefix", "suffix", "hidden")}
            if not all(isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces)
                       for pieces in frame.values()) or not isinstance(plain["inner"], Mapping):
                raise TypeError
            return cls(subword_from_dict(plain["inner"], name), **frame, reads_codes=plain["reads_codes"] is True)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{name} does not hold what stands around a text, and its subword model.") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Framed.from_bytes, (self.to_bytes(),)
