"""Tokenizer files of Hugging Face's folders: the pieces by id, and what cuts a text into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.errors import CheckpointError, DataError
from lamina.files import is_plain_name
from lamina.interop.huggingface_folder import read_bytes, read_described
from lamina.interop.huggingface_ids import pieces_by_id
from lamina.text.framed import Framed
from lamina.text.moses_bpe import MosesBpe
from lamina.text.subword import SentencePiece, Subword
from lamina.text.tokenizer_json import TokenizerJson, byte_level_json, tokenizer_of
from lamina.text.vocabulary import MASK_SYMBOL, SPECIAL_SYMBOLS

TOKENIZER_CONFIG, TOKENIZER_NAME = "tokenizer_config.json", "tokenizer.json"


@dataclass(frozen=True)
class Wanted:
    """What is known before the tokenizer's files are read."""

    folder: Path
    sizes: tuple[int, ...]  # rows of the tables of source and target, or of the only one
    source_lang: str | None
    target_lang: str | None
    config: Mapping[str, Any]  # config.json
    settings: Mapping[str, Any]  # generation_config.json

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        return read_described(self.folder, TOKENIZER_CONFIG, is_needed=False)


@dataclass(frozen=True)
class Texts:
    """One of each for every dictionary."""

    languages: tuple[str, ...]
    pieces: tuple[list[str | None], ...]  # by id, None where no file names one
    unknown: tuple[int | None, ...]  # their ids
    subwords: tuple[Subword, ...]
    first: str | None = None  # the piece that every target begins with
    starts: str | None = None  # the piece that the decoder reads first, where the language says so
    source_end: tuple[tuple[str, str], ...] = ()  # pieces of a source that are read as others


def unknown_id(pieces: list[str | None], name: str = "<unk>") -> int | None:
    return pieces.index(name) if name in pieces else None


def read_model(folder: Path, name: str, what: str) -> SentencePiece:
    try:
        return SentencePiece.from_bytes(read_bytes(folder, name, what), f"{folder / name}")
    except DataError as error:
        raise CheckpointError(str(error)) from None


def language_codes(pieces: list[str | None]) -> list[str]:
    """Marian's: >>fr<< for French."""
    return [piece for piece in pieces if piece is not None and piece.startswith(">>") and piece.endswith("<<")]


def marian_texts(wanted: Wanted) -> Texts:
    """source.spm and target.spm, and vocab.json, which says the ids of their pieces: one for both sides, or one for each."""
    folder, settings = wanted.folder, wanted.tokenizer_config
    is_separate = bool(settings.get("separate_vocabs"))
    names = ("vocab.json", "target_vocab.json") if is_separate else ("vocab.json",) * 2
    pieces = tuple(pieces_by_id(read_described(folder, name), size, str(folder / name))
                   for name, size in zip(names, wanted.sizes, strict=True))
    source, target = (read_model(folder, f"{side}.spm", f"the sentencepiece model of the {side} side")
                      for side in ("source", "target"))
    languages = (wanted.source_lang or settings.get("source_lang") or "source",
                 wanted.target_lang or settings.get("target_lang") or "target")
    subwords: tuple[Subword, Subword] = (source, target)
    if codes := language_codes(pieces[0]):
        chosen = f">>{wanted.target_lang}<<"
        if wanted.target_lang is not None and chosen not in codes and len(codes) > 1:
            raise CheckpointError(f"{folder} translates into {len(codes)} languages, and {wanted.target_lang} is none of them: "
                                  f"--target-lang must be one of {some_of([code[2:-2] for code in codes])}.")
        prefix = [chosen] if chosen in codes else []
        subwords = (Framed(source, prefix=prefix, reads_codes=True), target)
    return Texts(languages, pieces, tuple(map(unknown_id, pieces)), subwords)


def tokenizer_json(folder: Path) -> TokenizerJson:
    """Its tokenizer.json, or where it has none what vocab.json and merges.txt say."""
    if (folder / TOKENIZER_NAME).exists() or not (folder / "merges.txt").exists():
        data = read_bytes(folder, TOKENIZER_NAME, "what cuts texts into pieces")
    else:
        settings = read_described(folder, TOKENIZER_CONFIG, is_needed=False)
        ids = read_described(folder, "vocab.json")
        data = byte_level_json(ids, read_merges(folder), (*SPECIAL_SYMBOLS, MASK_SYMBOL),
                               has_prefix_space=settings.get("add_prefix_space") is True)
    try:
        return tokenizer_of(data, str(folder / TOKENIZER_NAME))
    except DataError as error:
        raise CheckpointError(str(error)) from None


def read_merges(folder: Path) -> list[tuple[str, str]]:
    """merges.txt: two pieces a line, and perhaps how often they were seen."""
    data = read_bytes(folder, "merges.txt", "the merges of its byte-pair codes")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{folder / 'merges.txt'} is not valid UTF-8. Download it again.") from None
    merges = []
    for number, line in enumerate(lines, start=1):
        halves = line.split()
        if not halves or (number == 1 and line.startswith("#version")):
            continue
        if len(halves) < 2:
            raise CheckpointError(f"{folder / 'merges.txt'}, line {number}: expected two pieces, found {line[:40]!r}.")
        merges.append((halves[0], halves[1]))
    return merges


def fsmt_texts(wanted: Wanted) -> Texts:
    """A dictionary for each side, merges that both share, and Moses's tokenization in between."""
    folder, settings = wanted.folder, wanted.tokenizer_config
    found = settings.get("langs") or wanted.config.get("langs")
    if not (isinstance(found, list) and len(found) == 2 and all(map(is_plain_name, found))):
        raise CheckpointError(f"{folder} does not say its two languages: {TOKENIZER_CONFIG} has langs={found!r}.")
    languages = (wanted.source_lang or found[0], wanted.target_lang or found[1])
    pieces = tuple(pieces_by_id(read_described(folder, name), size, str(folder / name))
                   for name, size in zip(("vocab-src.json", "vocab-tgt.json"), wanted.sizes, strict=True))
    merges, lowers = read_merges(folder), settings.get("do_lower_case") is True
    source, target = (MosesBpe(merges, language, lowers=lowers) for language in found)
    return Texts(languages, pieces, tuple(map(unknown_id, pieces)), (source, target))


def content_of(token: Any) -> str:
    """In older files a piece stands in an object with its properties."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def some_of(names: list[str], number: int = 20) -> str:
    return ", ".join(names[:number]) + (f" and {len(names) - number} more" if len(names) > number else "")
