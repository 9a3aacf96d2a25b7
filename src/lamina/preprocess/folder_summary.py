"""What a person is told of a new data folder."""

from __future__ import annotations

from lamina.config.preprocess_options import PreprocessConfig
from lamina.preprocess.pipeline import FolderReport, SideReport
from lamina.preprocess.segmentation import subword_kind
from lamina.text.framed import Framed
from lamina.text.subword import Subword
from lamina.text.vocabulary import SPECIAL_SYMBOLS

# Above this share of <unk> a model learns holes; subwords bring it to nearly nothing.
UNKNOWN_SHARE_TO_WARN = 0.01


def summary(report: FolderReport) -> list[str]:
    dictionaries = [f"| [{language or 'text'}] dictionary: {len(vocabulary)} symbols; segmentation: "
                    + subword_kind(report.subwords[language]) for language, vocabulary in report.vocabularies.items()]
    return dictionaries + [_side(side) for side in report.sides]


def _side(side: SideReport) -> str:
    counts = side.counts
    empty = f", {counts.num_empty} empty" if counts.num_empty else ""
    return (f"| [{side.language or 'text'}] {side.split}: {counts.num_sentences} sentences, "
            f"{counts.num_tokens} tokens, {100 * unknown_share(side):.2f} % unknown{empty}")


def unknown_share(side: SideReport) -> float:
    return side.counts.num_unknown / side.counts.num_tokens


def warnings(report: FolderReport, config: PreprocessConfig) -> list[str]:
    lines = []
    for side in report.sides:
        name = f"[{side.language or 'text'}] {side.split}"
        if unknown_share(side) > UNKNOWN_SHARE_TO_WARN:
            lines.append(f"{name}: {100 * unknown_share(side):.1f} % of the tokens became <unk>. "
                         + _advice(side, config))
        if side.counts.num_reserved and not _writes_symbols(report.subwords.get(side.language)):
            lines.append(f"{name}: {side.counts.num_reserved} tokens are spelled <s>, <pad> or </s>, and the model "
                         "will take them for these symbols. Remove or escape them.")
    return lines


def _writes_symbols(subword: Subword | None) -> bool:
    """Whether the segmentation puts them there itself, around every text."""
    return isinstance(subword, Framed) and bool({*subword.prefix, *subword.suffix} & set(SPECIAL_SYMBOLS))


def _advice(side: SideReport, config: PreprocessConfig) -> str:
    chosen = config.segmentation
    if chosen.subword:
        return "It has characters that the training text lacks: check its language and encoding."
    if chosen.given is not None:
        return "The subword model and the dictionary may belong to different texts."
    if config.dictionary.source_dict or config.dictionary.target_dict:
        return "The dictionary that was given may belong to another text, or to one with other subwords."
    if side.split == "train":
        return "Learn subwords with --subword sentencepiece, or keep more words (--thresholdsrc, --nwordssrc, ...)."
    return ("Learn subwords with --subword sentencepiece; if the training text has BPE already, apply the same codes "
            "to this file.")
