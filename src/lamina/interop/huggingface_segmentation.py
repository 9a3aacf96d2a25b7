"""Which of Hugging Face's tokenizers a folder has, by the name of its class, and what it puts around a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lamina.errors import CheckpointError
from lamina.interop.fairseq_file import NO_LANGUAGE
from lamina.interop.huggingface_ids import pieces_by_id
from lamina.interop.huggingface_languages import (
    m2m_texts,
    mbart50_texts,
    mbart_texts,
    nllb_texts,
    with_language_behind,
)
from lamina.interop.huggingface_texts import (
    TOKENIZER_NAME,
    Texts,
    Wanted,
    content_of,
    fsmt_texts,
    marian_texts,
    tokenizer_json,
    unknown_id,
)
from lamina.text.framed import Framed
from lamina.text.subword import Subword
from lamina.text.vocabulary import BOS, EOS, PAD, SPECIAL_SYMBOLS, UNK

_SINGLE, _PIECE, _TEXT = "single", "SpecialToken", "Sequence"


def texts_of(wanted: Wanted, default: str) -> Texts:
    """`default`: the class of a family's tokenizer, where the folder does not name one."""
    name = wanted.tokenizer_config.get("tokenizer_class") or wanted.config.get("tokenizer_class") or default
    kind = str(name).removesuffix("Fast")
    if kind not in TOKENIZERS:
        raise CheckpointError(f"{wanted.folder} names the tokenizer {str(name)[:60]}, which Lamina does not have; it has "
                              f"{', '.join(TOKENIZERS)}.")
    return TOKENIZERS[kind](wanted)


def framed_texts(wanted: Wanted) -> Texts:
    """A tokenizer.json, or a vocab.json with a merges.txt: pieces, and what its last step puts around them, on both sides."""
    inner = tokenizer_json(wanted.folder)
    pieces = pieces_by_id(inner.ids(), wanted.sizes[0], str(wanted.folder / TOKENIZER_NAME))
    before, behind = _frame(json.loads(inner.model).get("post_processor"), wanted)
    names, sides = _own_names(pieces, wanted.config), len(wanted.sizes)
    ends = [place for place, piece in enumerate(behind) if names.get(piece, piece) == SPECIAL_SYMBOLS[EOS]]
    if not ends or (ends[-1] < len(behind) - (1 if sides == 1 else 2)):
        raise CheckpointError(f"{wanted.folder / TOKENIZER_NAME} does not end a text with the symbol that config.json calls "
                              "eos_token_id, as models here need it.")
    for piece in before + behind:
        if (piece in SPECIAL_SYMBOLS and names.get(piece) != piece) or piece not in pieces:
            raise CheckpointError(f"{wanted.folder / TOKENIZER_NAME} puts {piece} around texts, which config.json does not "
                                  "know as a symbol of its own.")
    frame = [[names.get(piece, piece) for piece in part] for part in (before, behind[:-1])]
    unknown = content_of(wanted.tokenizer_config.get("unk_token", SPECIAL_SYMBOLS[UNK]))
    if sides == 1:
        # Those who ask a masked model put these around a text.
        if frame != [[SPECIAL_SYMBOLS[BOS]], []]:
            raise CheckpointError(f"{wanted.folder / TOKENIZER_NAME} puts {' '.join(before)} and {' '.join(behind)} around a "
                                  "text; a masked model here reads its bos_token_id, the text, and its eos_token_id.")
        frame = [[], []]
    languages = (wanted.source_lang or "source", wanted.target_lang or "target") if sides == 2 else (NO_LANGUAGE,)
    subwords: list[Subword] = [Framed(inner, prefix=frame[0], suffix=frame[1]) if any(frame) else inner] * sides
    source_end: tuple[tuple[str, str], ...] = ()
    if sides == 2:
        # A target begins with what is forced, where that is; what the file puts around a text is meant for sources.
        forced = wanted.settings.get("forced_bos_token_id")
        first = pieces[forced] if type(forced) is int and 0 <= forced < len(pieces) else None
        is_language = ends[-1] < len(behind) - 1
        if first is not None or is_language:
            subwords[1] = inner if first is None else Framed(inner, prefix=[names.get(first, first)])
        if is_language:
            subwords[0], source_end = with_language_behind(inner, frame[0], frame[1][:-1], behind[-1])
    return Texts(languages, (pieces,) * sides, (unknown_id(pieces, unknown),) * sides, tuple(subwords),
                 source_end=source_end)


def _own_names(pieces: Sequence[str | None], config: Mapping[str, Any]) -> dict[str, str]:
    """What the symbols that have a place in every dictionary of ours are called there."""
    found: dict[str, str] = {}
    for name, own in (("unk", UNK), ("pad", PAD), ("bos", BOS), ("eos", EOS)):
        number = config.get(f"{name}_token_id")
        piece = pieces[number] if type(number) is int and 0 <= number < len(pieces) else None
        if piece is not None:
            found[piece] = SPECIAL_SYMBOLS[own]
    return found


def _frame(step: Any, wanted: Wanted) -> tuple[list[str], list[str]]:
    """Pieces in front of a text, and behind it."""
    step = step or {}
    match step.get("type"):
        case "RobertaProcessing" | "BertProcessing":
            return [step["cls"][0]], [step["sep"][0]]
        case "TemplateProcessing":
            places = [_TEXT if _TEXT in place else place[_PIECE]["id"] for place in step[_SINGLE]]
            middle = places.index(_TEXT)
            return places[:middle], places[middle + 1:]
        case None | "ByteLevel":
            # Older folders leave it to the class, which is BART's.
            settings = wanted.tokenizer_config
            return [content_of(settings.get("cls_token", "<s>"))], [content_of(settings.get("sep_token", "</s>"))]
    raise CheckpointError(f"{wanted.folder / TOKENIZER_NAME} has a post_processor of the type {step.get('type')!r}, which "
                          "Lamina does not have.")


TOKENIZERS: dict[str, Callable[[Wanted], Texts]] = {
    "MarianTokenizer": marian_texts,
    "FSMTTokenizer": fsmt_texts,
    **dict.fromkeys(("BartTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
                    framed_texts),
    "MBartTokenizer": mbart_texts,
    "MBart50Tokenizer": mbart50_texts,
    "M2M100Tokenizer": m2m_texts,
    "NllbTokenizer": nllb_texts,
}
