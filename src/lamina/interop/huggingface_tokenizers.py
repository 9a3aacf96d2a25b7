"""Tokenizer files for transformers: the ids and pieces of our dictionaries, under a class of theirs that cuts texts as ours do.

Sentencepiece models travel as they are, under MarianTokenizer; byte-pair codes under FSMTTokenizer, which brings Moses's
tokenization; the rest as a tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.errors import CheckpointError
from lamina.interop.huggingface_classes import ModelClass, cannot_export, num_positions
from lamina.interop.huggingface_languages import M2M_CODES
from lamina.interop.sentencepiece_model import unigram_pieces
from lamina.parts.subword_libraries import JOINER, WORD_END
from lamina.text.framed import Framed
from lamina.text.moses_bpe import MosesBpe
from lamina.text.subword import Bpe, SentencePiece, Subword, Whitespace
from lamina.text.tokenizer import Moses
from lamina.text.tokenizer_json import TokenizerJson
from lamina.text.vocabulary import BOS, EOS, FIRST_WORD_ID, MASK_SYMBOL, PAD, SPECIAL_SYMBOLS, UNK, Vocabulary

Notice = Callable[[str], object]
SETTINGS_NAME, JSON_NAME = "tokenizer_config.json", "tokenizer.json"
Frame = tuple[Sequence[str], Sequence[str]]  # the pieces in front of a text, and behind it
# Of a symbol that the segmentation never gives, in a model that takes the likeliest pieces.
NEVER = -1e5
_OTHER_MOSES = ("FSMT's tokenizer also spells punctuation alike, splits words at dashes (@-@) and escapes quotes and brackets "
                "(&apos;): texts with these are cut in other ways than here")


@dataclass(frozen=True)
class TokenizerFiles:
    """By name, and the pieces that have to get ids behind those of the dictionary, to be read as <unk>."""

    files: dict[str, bytes]
    unread: tuple[str, ...] = ()


def tokenizer_files(checkpoint: Checkpoint, own: ModelClass, notice: Notice) -> TokenizerFiles:
    """What AutoTokenizer loads beside the model, or a refusal by name."""
    subwords, vocabularies = checkpoint.subword_models(), checkpoint.vocabularies()
    settings: dict[str, Any] = {
        "bos_token": SPECIAL_SYMBOLS[BOS], "eos_token": SPECIAL_SYMBOLS[EOS], "unk_token": SPECIAL_SYMBOLS[UNK],
        "pad_token": SPECIAL_SYMBOLS[PAD], "model_max_length": num_positions(checkpoint),
        "model_input_names": ["input_ids", "attention_mask"], "clean_up_tokenization_spaces": False}
    if own.is_masked:
        return _of_encoder(subwords[0], vocabularies[0], settings)
    return _of_pair(checkpoint, subwords, vocabularies, settings, notice)


def _of_encoder(subword: Subword, vocabulary: Vocabulary, settings: dict[str, Any]) -> TokenizerFiles:
    settings |= {"mask_token": MASK_SYMBOL, "cls_token": SPECIAL_SYMBOLS[BOS], "sep_token": SPECIAL_SYMBOLS[EOS]}
    frame = [SPECIAL_SYMBOLS[BOS]], [SPECIAL_SYMBOLS[EOS]]
    match subword:
        case Whitespace():
            return _json(word_level(vocabulary, frame), settings)
        case TokenizerJson():
            return _json(renumbered(subword, vocabulary, frame), settings)
        case SentencePiece():
            pieces = _unigram_pieces(subword)
            unread = tuple(piece for piece in pieces if piece not in vocabulary)
            return _json(unigram(vocabulary, pieces, unread, frame), settings, unread)
    raise _no_class(subword)


def _of_pair(checkpoint: Checkpoint, subwords: Sequence[Subword], vocabularies: Sequence[Vocabulary], settings: dict[str, Any],
             notice: Notice) -> TokenizerFiles:
    is_joined = checkpoint.dictionaries[0] == checkpoint.dictionaries[1]
    source, target = subwords
    if isinstance(source, Framed) and source.reads_codes and not source.suffix:
        if source.prefix:
            notice(f"a text has to begin with its target language: the tokenizer of transformers puts no {source.prefix[0]} "
                   "in front")
        source = source.inner
    frame, is_bare = _frame(source, checkpoint, vocabularies[0])
    inner, other = (subword.inner if isinstance(subword, Framed) else subword for subword in (source, target))
    if is_joined and isinstance(inner, TokenizerJson) and isinstance(other, TokenizerJson):
        return _json(renumbered(inner, vocabularies[0], frame), settings)
    if is_joined and not is_bare and isinstance(inner, SentencePiece) and isinstance(other, SentencePiece):
        return _many_languages(inner, source, target, vocabularies[0], frame, settings)
    if not is_bare:
        raise _no_class(source)
    match source, target:
        case SentencePiece(), SentencePiece():
            return _marian(checkpoint, source, target, vocabularies, settings, is_joined=is_joined)
        case (Bpe() | Moses(inner=Bpe())), (Bpe() | Moses(inner=Bpe())):
            notice(_OTHER_MOSES)
            languages = [subword.language if isinstance(subword, Moses) else language
                         for subword, language in zip(subwords, checkpoint.languages, strict=True)]
            bpe = source.inner if isinstance(source, Moses) else source
            assert isinstance(bpe, Bpe)
            return _fsmt([_with_word_ends(vocabulary) for vocabulary in vocabularies], _merges(bpe), languages, settings)
        case MosesBpe(), MosesBpe():
            merges, languages = [" ".join(pair) for pair in source.merges], [source.language, target.language]
            settings |= {"do_lower_case": source.lowers}
            return _fsmt([_ids(vocabulary) for vocabulary in vocabularies], merges, languages, settings)
        case Whitespace(), Whitespace() if is_joined:
            return _json(word_level(vocabularies[0], frame), settings)
        case Whitespace(), Whitespace():
            raise cannot_export("its text was cut into pieces before, and no tokenizer of transformers takes such text with a "
                                "dictionary for each side")
    raise _no_class(source if not isinstance(source, (SentencePiece, Bpe, Whitespace, MosesBpe)) else target)


def _frame(source: Subword, checkpoint: Checkpoint, vocabulary: Vocabulary) -> tuple[Frame, bool]:
    """What stands around a source, as the encoder reads it; and whether that is </s> behind it alone."""
    reads = dict(checkpoint.model_config().encoder.reads_ids)
    before, behind = (source.prefix, source.suffix) if isinstance(source, Framed) else ([], [])
    read = [[vocabulary.symbols[reads.get(number, number)] for number in vocabulary.ids(part)]
            for part in (before, [*behind, SPECIAL_SYMBOLS[EOS]])]
    return (read[0], read[1]), read == [[], [SPECIAL_SYMBOLS[EOS]]]


def _unigram_pieces(subword: SentencePiece) -> dict[str, float]:
    pieces = unigram_pieces(subword.model)
    if pieces is None:
        raise cannot_export("its sentencepiece model is no unigram model without normalization, and only such have a "
                            "tokenizer.json")
    return pieces


def _no_class(subword: Subword) -> CheckpointError:
    inner = subword.inner if isinstance(subword, (Moses, Framed)) else subword
    kind = subword.kind if inner is subword else f"{subword.kind} around {inner.kind}"
    return cannot_export(f"its tokenizers do not cut texts as this one's subwords do ({kind})")


def _encoded(content: Any) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", errors="backslashreplace")


# -- MarianTokenizer: two sentencepiece models, and ids of their own


def _marian(checkpoint: Checkpoint, source: SentencePiece, target: SentencePiece, vocabularies: Sequence[Vocabulary],
            settings: dict[str, Any], *, is_joined: bool) -> TokenizerFiles:
    languages = dict(zip(("source_lang", "target_lang"), checkpoint.languages, strict=True))
    settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not is_joined, **languages}
    files = {"source.spm": source.to_bytes(), "target.spm": target.to_bytes(), "vocab.json": _encoded(_ids(vocabularies[0])),
             SETTINGS_NAME: _encoded(settings)}
    if not is_joined:
        files["target_vocab.json"] = _encoded(_ids(vocabularies[1]))
    return TokenizerFiles(files)


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {symbol: vocabulary.id(symbol) for symbol in vocabulary.symbols}


# -- FSMTTokenizer: Moses's tokenization, and byte-pair codes that mark the ends of words


def _fsmt(ids: Sequence[dict[str, int]], merges: Sequence[str], languages: Sequence[str],
          settings: dict[str, Any]) -> TokenizerFiles:
    settings |= {"tokenizer_class": "FSMTTokenizer", "langs": list(languages), "sep_token": SPECIAL_SYMBOLS[EOS]}
    return TokenizerFiles({"vocab-src.json": _encoded(ids[0]), "vocab-tgt.json": _encoded(ids[1]),
                           "merges.txt": "".join(f"{merge}\n" for merge in merges).encode("utf-8"),
                           SETTINGS_NAME: _encoded(settings)})


def _with_word_ends(vocabulary: Vocabulary) -> dict[str, int]:
    """Pieces marked where a word ends, instead of where it continues."""
    ids = {symbol: number for number, symbol in enumerate(SPECIAL_SYMBOLS)}
    for symbol in vocabulary.symbols[FIRST_WORD_ID:]:
        marked = symbol.removesuffix(JOINER) if symbol.endswith(JOINER) else symbol + WORD_END
        ids.setdefault(marked, vocabulary.id(symbol))
    return ids


def _merges(bpe: Bpe) -> list[str]:
    header, *lines = bpe.codes.decode("utf-8").rstrip("\n").split("\n")
    if header.split(":", 1)[-1].strip() != "0.2":
        raise cannot_export("its byte-pair codes are of version 0.1, where the end of a word is a symbol of its own, and "
                            "FSMT's tokenizer has it in the last piece")
    return list(dict.fromkeys(line.strip("\r\n ") for line in lines))


# -- M2M100Tokenizer: the language in front of a text


def _many_languages(inner: SentencePiece, source: Subword, target: Subword, vocabulary: Vocabulary, frame: Frame,
                    settings: dict[str, Any]) -> TokenizerFiles:
    """With the codes of M2M-100 behind the words, its own tokenizer; a tokenizer.json otherwise."""
    for kind, codes in M2M_CODES.items():
        names = [f"__{code}__" for code in codes.split()]
        first = vocabulary.id(names[0])
        chosen = [subword.prefix for subword in (source, target) if isinstance(subword, Framed)]
        if vocabulary.symbols[first : first + len(names)] != names or not all(
                len(prefix) == 1 and prefix[0] in names for prefix in chosen) or len(chosen) < 2:
            continue
        languages = dict(zip(("src_lang", "tgt_lang"), (prefix[0].strip("_") for prefix in chosen), strict=True))
        settings |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": kind, "sep_token": SPECIAL_SYMBOLS[EOS],
                     "additional_special_tokens": names, **languages}
        ids = {symbol: number for number, symbol in enumerate(vocabulary.symbols[:first])}
        return TokenizerFiles({"vocab.json": _encoded(ids), "sentencepiece.bpe.model": inner.to_bytes(),
                               SETTINGS_NAME: _encoded(settings)})
    pieces = _unigram_pieces(inner)
    if missing := [piece for piece in pieces if piece not in vocabulary]:
        raise cannot_export(f"its dictionary lacks {len(missing)} pieces of its sentencepiece model, such as {missing[0]}")
    return _json(unigram(vocabulary, pieces, (), frame), settings)


# -- tokenizer.json


def renumbered(subword: TokenizerJson, vocabulary: Vocabulary, frame: Frame) -> dict[str, Any]:
    """The file of an imported model, with the ids of our dictionary."""
    content = json.loads(subword.model)
    missing = [piece for piece in subword.ids() if piece not in vocabulary and piece not in subword.special]
    if missing:
        raise cannot_export(f"its dictionary lacks {len(missing)} pieces of its tokenizer.json, such as {missing[0]}")
    model, old = content["model"], subword.ids()
    if isinstance(model["vocab"], dict):
        model["vocab"] = {piece: vocabulary.id(piece) for piece in model["vocab"]}
    elif any(piece in vocabulary and vocabulary.id(piece) != number for piece, number in old.items()):
        scores = dict(model["vocab"])
        model["vocab"] = [[symbol, scores.get(symbol, NEVER)] for symbol in vocabulary.symbols]
        model["unk_id"] = UNK
    added = [{**token, "id": vocabulary.id(token["content"])} for token in content.get("added_tokens") or []
             if token["content"] in vocabulary]
    return content | {"added_tokens": sorted(added, key=lambda token: token["id"]), "truncation": None, "padding": None,
                      "post_processor": template(vocabulary, frame)}


def word_level(vocabulary: Vocabulary, frame: Frame) -> dict[str, Any]:
    """Words are what white space separates."""
    model = {"type": "WordLevel", "vocab": _ids(vocabulary), "unk_token": SPECIAL_SYMBOLS[UNK]}
    return _layout(vocabulary, frame, model, {"type": "WhitespaceSplit"})


def unigram(vocabulary: Vocabulary, pieces: dict[str, float], unread: Sequence[str], frame: Frame) -> dict[str, Any]:
    """The likeliest pieces, as sentencepiece finds them; `pieces`: with their scores."""
    scored = [[symbol, 0.0 if number < FIRST_WORD_ID else pieces.get(symbol, NEVER)]
              for number, symbol in enumerate(vocabulary.symbols)]
    model = {"type": "Unigram", "unk_id": UNK, "byte_fallback": False,
             "vocab": scored + [[piece, pieces[piece]] for piece in unread]}
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Strip", "strip_left": False, "strip_right": True}]}
    return _layout(vocabulary, frame, model, spaces, normalizer=normalizer, decoder=spaces)


def _layout(vocabulary: Vocabulary, frame: Frame, model: dict[str, Any], pre_tokenizer: dict[str, Any], *,
            normalizer: dict[str, Any] | None = None, decoder: dict[str, Any] | None = None) -> dict[str, Any]:
    symbols = [*SPECIAL_SYMBOLS, *([MASK_SYMBOL] if MASK_SYMBOL in vocabulary else [])]
    # The space in front of a gap belongs to it.
    added = [{"id": vocabulary.id(symbol), "content": symbol, "single_word": False, "lstrip": symbol == MASK_SYMBOL,
              "rstrip": False, "normalized": False, "special": True} for symbol in symbols]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": template(vocabulary, frame), "decoder": decoder, "model": model}


def template(vocabulary: Vocabulary, frame: Frame) -> dict[str, Any]:
    """What stands around a text."""
    def pieces(symbols: Sequence[str]) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": symbol, "type_id": 0}} for symbol in symbols]

    before, after = frame
    single = [*pieces(before), {"Sequence": {"id": "A", "type_id": 0}}, *pieces(after)]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}, *pieces(after)]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {
        symbol: {"id": symbol, "ids": [vocabulary.id(symbol)], "tokens": [symbol]} for symbol in {*before, *after}}}


def _json(content: dict[str, Any], settings: dict[str, Any], unread: tuple[str, ...] = ()) -> TokenizerFiles:
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    return TokenizerFiles({JSON_NAME: _encoded(content), SETTINGS_NAME: _encoded(settings)}, unread)
