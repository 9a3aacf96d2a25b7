"""Tokenizers of models for many languages: one language pair of them, with its codes around the texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lamina.errors import CheckpointError
from lamina.interop.huggingface_folder import read_described
from lamina.interop.huggingface_ids import nameless, pieces_by_id
from lamina.interop.huggingface_texts import (
    TOKENIZER_CONFIG,
    TOKENIZER_NAME,
    Texts,
    Wanted,
    content_of,
    read_model,
    some_of,
    tokenizer_json,
    unknown_id,
)
from lamina.text.framed import Framed
from lamina.text.subword import Subword
from lamina.text.vocabulary import BOS, EOS, MASK_SYMBOL, SPECIAL_SYMBOLS

_SPM_NAME = "sentencepiece.bpe.model"
_BEGIN, _END = SPECIAL_SYMBOLS[BOS], SPECIAL_SYMBOLS[EOS]
# Of the 100 languages of M2M-100, and of the models of WMT 2021, in the order of their ids behind those of vocab.json.
M2M_CODES = {
    "m2m100": ("af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
               "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
               "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"),
    "wmt21": "en ha is ja cs ru zh de",
}
_MBART_CODE = re.compile(r"[a-z]{2}_[A-Z]{2}")
_NLLB_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


def with_language_behind(inner: Subword, before: Sequence[str], behind: Sequence[str], language: str,
                         hidden: Sequence[str] = ()) -> tuple[Framed, tuple[tuple[str, str], ...]]:
    """A source with </s> and its language behind it, and what of it is read as something else.

    Dictionaries append one symbol, </s>, which is read as the language, behind <s>, which is read as </s>: sources have no
    other <s>.
    """
    source = Framed(inner, prefix=before, suffix=[*behind, _BEGIN], hidden=hidden)
    return source, ((_BEGIN, _END), (_END, language))


class _Many(NamedTuple):
    """The pieces by id, what cuts texts into them, the piece of each language, and the two that are chosen."""

    pieces: list[str | None]
    inner: Subword
    codes: dict[str, str]
    source: str
    target: str

    def begun(self, language: str) -> Framed:
        return self.framed(prefix=[self.codes[language]])

    def framed(self, **around: Any) -> Framed:
        """With these pieces around each text: `prefix` and `suffix`, lists of them."""
        return Framed(self.inner, hidden=self.silent, **around)

    @property
    def silent(self) -> list[str]:
        """Pieces that are no text."""
        nobody = [nameless(number) for number, piece in enumerate(self.pieces) if piece is None]
        return [*self.codes.values(), MASK_SYMBOL, *nobody]

    def texts(self, wanted: Wanted, source: Subword, target: Subword, **more: Any) -> Texts:
        return Texts((wanted.source_lang or self.source, wanted.target_lang or self.target), (self.pieces,) * 2,
                     (unknown_id(self.pieces),) * 2, (source, target), **more)

    def suffixed_texts(self, wanted: Wanted, target: Subword, **more: Any) -> Texts:
        """A source has </s> and its language behind it."""
        source, ends = with_language_behind(self.inner, [], [], self.codes[self.source], self.silent)
        return self.texts(wanted, source, target, source_end=ends, **more)


def m2m_texts(wanted: Wanted) -> Texts:
    """vocab.json and a sentencepiece model; a text begins with its language, __fr__ for French."""
    folder, settings = wanted.folder, wanted.tokenizer_config
    ids = read_described(folder, "vocab.json")
    kind = settings.get("language_codes") or "m2m100"
    if kind not in M2M_CODES:
        raise CheckpointError(f"{folder / TOKENIZER_CONFIG} has language_codes={kind!r}; it must be {' or '.join(M2M_CODES)}.")
    codes = {code: f"__{code}__" for code in M2M_CODES[kind].split()}
    ids |= {piece: len(ids) + number for number, piece in enumerate(codes.values())}
    pieces = pieces_by_id(ids, wanted.sizes[0], str(folder / "vocab.json"))
    many = _many(wanted, pieces, read_model(folder, _SPM_NAME, "what cuts texts into pieces"), codes, "en")
    return many.texts(wanted, many.begun(many.source), many.begun(many.target), first=many.codes[many.target])


def nllb_texts(wanted: Wanted) -> Texts:
    """A text begins with its language, fra_Latn for French; in legacy folders a source has it behind </s>."""
    many = _of_files(wanted, _NLLB_CODE, "eng_Latn")
    target, first = many.begun(many.target), many.codes[many.target]
    if wanted.tokenizer_config.get("legacy_behaviour") is True:
        return many.suffixed_texts(wanted, target, first=first)
    return many.texts(wanted, many.begun(many.source), target, first=first)


def mbart50_texts(wanted: Wanted) -> Texts:
    """A text begins with its language, ro_RO for Romanian."""
    many = _of_files(wanted, _MBART_CODE, "en_XX")
    return many.texts(wanted, many.begun(many.source), many.begun(many.target), first=many.codes[many.target])


def mbart_texts(wanted: Wanted) -> Texts:
    """A source has its language behind </s>, and the decoder starts from that of the target."""
    many = _of_files(wanted, _MBART_CODE, "en_XX")
    return many.suffixed_texts(wanted, many.framed(), starts=many.codes[many.target])


def _of_files(wanted: Wanted, pattern: re.Pattern[str], usual: str) -> _Many:
    """A tokenizer.json, or a sentencepiece model, behind whose pieces stand the codes that other files list, and <mask>."""
    folder = wanted.folder
    inner: Subword
    if (folder / TOKENIZER_NAME).exists() or not (folder / _SPM_NAME).exists():
        own = tokenizer_json(folder)
        ids, inner = own.ids(), own
        listed = [piece for piece in sorted(ids, key=ids.__getitem__) if piece in own.special]
    else:
        inner = read_model(folder, _SPM_NAME, "what cuts texts into pieces")
        listed = _listed(wanted)
        words = [piece for piece in inner.pieces() if piece not in SPECIAL_SYMBOLS]
        ids = {piece: number for number, piece in enumerate((*SPECIAL_SYMBOLS, *words, *listed, MASK_SYMBOL))}
    codes = {piece: piece for piece in listed if pattern.fullmatch(piece)}
    return _many(wanted, pieces_by_id(ids, wanted.sizes[0], str(folder / TOKENIZER_NAME)), inner, codes, usual)


def _listed(wanted: Wanted) -> list[str]:
    """The symbols that an older folder adds to a sentencepiece model."""
    for described in (read_described(wanted.folder, "special_tokens_map.json", is_needed=False), wanted.tokenizer_config):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if isinstance(found := described.get(key), list) and found:
                return [piece for piece in map(content_of, found) if piece not in (*SPECIAL_SYMBOLS, MASK_SYMBOL)]
    raise CheckpointError(f"{wanted.folder} lists its languages nowhere: it lacks {TOKENIZER_NAME}, and "
                          "special_tokens_map.json with additional_special_tokens. Download the whole folder.")


def _many(wanted: Wanted, pieces: list[str | None], inner: Subword, codes: dict[str, str], usual: str) -> _Many:
    """`usual`: the source language where nothing says another one."""
    codes = {code: piece for code, piece in codes.items() if piece in pieces}
    settings = wanted.tokenizer_config
    source, target = wanted.source_lang or settings.get("src_lang") or usual, wanted.target_lang
    if target is None:
        by_piece = {piece: code for code, piece in codes.items()}
        starts = [wanted.settings.get(f"{name}_token_id") for name in ("forced_bos", "decoder_start")]
        stated = [by_piece.get(pieces[number] or "") for number in starts
                  if type(number) is int and 0 <= number < len(pieces)]
        target = next(filter(None, [*stated, settings.get("tgt_lang")]), None)
    if target is None:
        raise CheckpointError(f"{wanted.folder} translates into {len(codes)} languages: choose one with --target-lang, which "
                              f"must be one of {some_of(list(codes))}. For commands without that option, `lamina convert` "
                              "writes a checkpoint of the pair.")
    return _Many(pieces, inner, codes, *(_code(codes, name, side, wanted.folder)
                                         for name, side in ((source, "source"), (target, "target"))))


def _code(codes: Mapping[str, str], name: str, side: str, folder: Path) -> str:
    """A language by its code, or by what stands in front of its _ if there is one such."""
    found = [code for code in codes if name in (code, code.partition("_")[0])]
    if len(found) != 1:
        which = "none of its languages" if not found else f"any of {', '.join(found)}"
        raise CheckpointError(f"{folder} has {len(codes)} languages, and {name} is {which}: --{side}-lang must be one of "
                              f"{some_of(list(codes))}.")
    return found[0]
