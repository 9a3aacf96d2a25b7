"""Tokenizer files of models that came from transformers, given back: the same classes, with the ids that they came with."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.interop.huggingface_classes import cannot_export
from lamina.interop.huggingface_languages import M2M_CODES, MBART_CODE, NLLB_CODE, SENTENCEPIECE_NAME
from lamina.interop.huggingface_texts import TOKENIZER_NAME
from lamina.text.framed import Framed
from lamina.text.moses_bpe import MosesBpe
from lamina.text.subword import SentencePiece, Subword
from lamina.text.tokenizer_json import TokenizerJson
from lamina.text.vocabulary import BOS, EOS, SPECIAL_SYMBOLS, Vocabulary

_BEGIN = SPECIAL_SYMBOLS[BOS]


def imported_files(checkpoint: Checkpoint, settings: dict[str, Any]) -> dict[str, Any] | None:
    """By name, as JSON or bytes; None where the segmentation is Lamina's own."""
    subwords, vocabularies = checkpoint.subword_models(), checkpoint.vocabularies()
    source, target = subwords[0], subwords[-1]
    inner = source.inner if isinstance(source, Framed) else source
    if isinstance(source, MosesBpe) and isinstance(target, MosesBpe):
        return _fsmt(source, target, vocabularies, settings)
    if isinstance(inner, TokenizerJson):
        return _with_json(checkpoint, source, inner, vocabularies[0], settings)
    if isinstance(source, Framed) and isinstance(inner, SentencePiece) and not source.reads_codes:
        return _m2m(checkpoint, source, inner, vocabularies[0], settings)
    return None


def _fsmt(source: MosesBpe, target: MosesBpe, vocabularies: Sequence[Vocabulary], settings: dict[str, Any]) -> dict[str, Any]:
    if source.merges != target.merges or source.lowers != target.lowers:
        raise cannot_export("FSMT's tokenizer has one list of merges, and this model one for each side")
    files: dict[str, Any] = {f"vocab-{name}.json": _ids(vocabulary)
                             for name, vocabulary in zip(("src", "tgt"), vocabularies, strict=True)}
    merges = "".join(f"{one} {two} 1\n" for one, two in source.merges)
    return files | {"merges.txt": merges.encode("utf-8"), "tokenizer_config.json": settings | {
        "tokenizer_class": "FSMTTokenizer", "langs": [source.language, target.language], "do_lower_case": source.lowers,
        "sep_token": SPECIAL_SYMBOLS[EOS]}}


def _with_json(checkpoint: Checkpoint, source: Subword, inner: TokenizerJson, vocabulary: Vocabulary,
               settings: dict[str, Any]) -> dict[str, Any]:
    if len(set(checkpoint.dictionaries)) > 1:
        raise cannot_export("a tokenizer.json has one dictionary, and this model two")
    moved = [piece for piece, number in inner.ids().items() if vocabulary.id(piece) != number]
    if moved:
        raise cannot_export(f"the ids of its tokenizer.json were moved on import, such as that of {moved[0]!r}")
    content = json.loads(inner.model)
    if isinstance(source, Framed) and (found := _languages(checkpoint, source, vocabulary)) is not None:
        begun, code = not source.suffix, found[0]
        if NLLB_CODE.fullmatch(code):
            kind = "NllbTokenizer"
            settings |= {"legacy_behaviour": not begun}
        elif MBART_CODE.fullmatch(code):
            kind = "MBart50Tokenizer" if begun else "MBartTokenizer"
        else:
            raise cannot_export(f"its tokenizers know no language {code}")
        settings |= {"tokenizer_class": kind, "src_lang": code, "tgt_lang": found[1],
                     "extra_special_tokens": [piece for piece in sorted(source.hidden, key=vocabulary.id)
                                              if NLLB_CODE.fullmatch(piece) or MBART_CODE.fullmatch(piece)]}
    else:
        if isinstance(source, Framed) and (source.prefix not in ([], [_BEGIN]) or source.suffix):
            raise cannot_export(f"its sources stand between {' '.join(source.prefix)} and {' '.join(source.suffix)}")
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    return {TOKENIZER_NAME: content, "tokenizer_config.json": settings}


def _m2m(checkpoint: Checkpoint, source: Framed, inner: SentencePiece, vocabulary: Vocabulary,
         settings: dict[str, Any]) -> dict[str, Any]:
    lists = {kind: [f"__{name}__" for name in names.split()] for kind, names in M2M_CODES.items()}
    places = {kind: vocabulary.id(codes[0]) for kind, codes in lists.items()}
    kind = next((kind for kind, codes in lists.items()
                 if vocabulary.symbols[places[kind]:places[kind] + len(codes)] == codes), None)
    if kind is None:
        raise cannot_export("of its tokenizers, only M2M-100's has a sentencepiece model with pieces around a text, and the "
                            "codes of this model's languages are others")
    pair = _languages(checkpoint, source, vocabulary)
    assert pair is not None, source.prefix
    ids = {symbol: number for number, symbol in enumerate(vocabulary.symbols[:places[kind]])}
    return {"vocab.json": ids, SENTENCEPIECE_NAME: inner.to_bytes(), "tokenizer_config.json": settings | {
        "tokenizer_class": "M2M100Tokenizer", "language_codes": kind, "extra_special_tokens": lists[kind],
        "src_lang": pair[0].strip("_"), "tgt_lang": pair[1].strip("_")}}


def _languages(checkpoint: Checkpoint, source: Framed, vocabulary: Vocabulary) -> tuple[str, str] | None:
    """The pieces of both; None if the texts have none."""
    config = checkpoint.model_config()
    ends, starts = dict(config.encoder.reads_ids), dict(config.decoder.reads_ids)
    first = [*config.manners.first, starts.get(EOS, EOS)][0]
    if source.suffix == [_BEGIN] and EOS in ends:
        return vocabulary.symbols[ends[EOS]], vocabulary.symbols[first]
    if source.prefix and re.fullmatch(r"\w+", source.prefix[0]):
        return source.prefix[0], vocabulary.symbols[first]
    return None


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {symbol: vocabulary.id(symbol) for symbol in vocabulary.symbols}
