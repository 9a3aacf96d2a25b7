"""The segmentation that a tokenizer.json describes, by the `tokenizers` library: byte-level BPE, Unigram and the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from lamina.errors import ConfigError, DataError


class TokenizerJson:
    """Pieces as the file cuts them; what it puts around a text is left to others.

    Symbols such as </s> that a text spells out are text: writing one neither ends nor pads a sentence.
    """

    kind = "tokenizers"

    def __init__(self, model: bytes, name: str = "the tokenizer.json") -> None:
        self.model = model
        self.name = name

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ConfigError("a tokenizer.json needs the tokenizers package: pip install 'lamina[huggingface]'.") from None
        try:
            tokenizer = Tokenizer.from_str(self.model.decode("utf-8"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode_special_tokens = True
            return tokenizer
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # the library raises Exception itself, and panics that are none
            raise DataError(f"{self.name} cannot be read as a tokenizer.json ({_first_line(error)}). Download it "
                            "again.") from None

    @cached_property
    def _added(self) -> list[dict[str, Any]]:
        return json.loads(self.model).get("added_tokens") or []

    @cached_property
    def special(self) -> frozenset[str]:
        return frozenset(token["content"] for token in self._added if token.get("special"))

    def keeps_space_before(self, symbol: str) -> bool:
        """Whether a space in front of a symbol such as <mask> is a piece of the text; elsewhere it belongs to the symbol."""
        return any(token["content"] == symbol and not token.get("lstrip") for token in self._added)

    def encode(self, line: str) -> list[str]:
        return self._tokenizer.encode(line, add_special_tokens=False).tokens

    def decode(self, pieces: Sequence[str]) -> str:
        tokenizer = self._tokenizer
        # A row of the model's tables for which the file has no piece says nothing.
        spoken = [piece for piece in pieces if piece not in self.special and tokenizer.token_to_id(piece) is not None]
        decoder = tokenizer.decoder
        return " ".join(spoken) if decoder is None else decoder.decode(spoken)

    def ids(self) -> dict[str, int]:
        """Of every piece, symbols included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def to_bytes(self) -> bytes:
        return self.model

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the tokenizer.json") -> TokenizerJson:
        subword = cls(data, name)
        _ = subword._tokenizer, subword.special
        return subword

    def __reduce__(self) -> tuple[type[TokenizerJson], tuple[bytes, str]]:
        return type(self), (self.model, self.name)


class ByteLevelJson(TokenizerJson):
    """One whose pieces spell bytes, as those of GPT-2, RoBERTa and BART."""

    kind = "byte-level"


def tokenizer_of(data: bytes, name: str) -> TokenizerJson:
    """Of a tokenizer.json, by what its pieces spell."""
    found = TokenizerJson.from_bytes(data, name)
    decoder = json.loads(data).get("decoder") or {}
    return ByteLevelJson.from_bytes(data, name) if decoder.get("type") == "ByteLevel" else found


def byte_level_json(ids: dict[str, int], merges: Sequence[tuple[str, str]], special: Sequence[str], *,
                    has_prefix_space: bool) -> bytes:
    """The tokenizer.json of a vocab.json and a merges.txt, which older folders have instead."""
    added = [{"id": ids[piece], "content": piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for piece in special if piece in ids]
    level = {"type": "ByteLevel", "add_prefix_space": has_prefix_space, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": ids,
             "merges": [" ".join(pair) for pair in merges]}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                       "pre_tokenizer": level, "post_processor": None, "decoder": {**level, "add_prefix_space": True},
                       "model": model}).encode("utf-8")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
