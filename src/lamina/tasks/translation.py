"""Translation and its kin (summarization, correction): one text into another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lamina.config.batches import DataConfig
from lamina.data.corpus import Languages, ParallelCorpus, find_languages, load_dictionaries, open_corpus
from lamina.data.folder import read_manifest
from lamina.errors import DataError
from lamina.text.subword import Subword, Whitespace, load_subwords
from lamina.text.vocabulary import SPECIAL_SYMBOLS, UNK, Vocabulary

# An unknown word in a reference must not match one in a translation: the two were never the same word. The first form is what
# the references print; the second has no brackets that a tokenizer could split off and match.
UNKNOWN_IN_REFERENCE = "<<unk>>"
UNKNOWN_WORD_IN_REFERENCE = "UNKNOWNINREFERENCE"


@dataclass(frozen=True)
class Translation:
    """What a data folder says about its texts, and access to its splits."""

    folders: tuple[Path, ...]
    languages: Languages
    vocabularies: tuple[Vocabulary, Vocabulary]
    subwords: tuple[Subword, Subword]
    config: DataConfig

    @classmethod
    def open(cls, config: DataConfig) -> Translation:
        folders = tuple(Path(name) for name in config.data.split(":") if name)
        if not folders:
            raise DataError("the data folder has an empty name; give the folder that `lamina preprocess` made.")
        languages = find_languages(folders[0], config.train_subset, config.source_lang, config.target_lang)
        vocabularies = load_dictionaries(folders[0], languages)
        stored = load_subwords(folders[0]) if read_manifest(folders[0]) is not None else {}
        subwords = (stored.get(languages.source, Whitespace()), stored.get(languages.target, Whitespace()))
        return cls(folders, languages, vocabularies, subwords, config)

    def train_corpus(self, epoch: int, max_source_positions: int) -> ParallelCorpus:
        """Several folders are read in turn, one an epoch."""
        return self._open(self.folders[(epoch - 1) % len(self.folders)], self.config.train_subset, max_source_positions,
                          is_training=True)

    def corpus(self, split: str, max_source_positions: int) -> ParallelCorpus:
        return self._open(self.folders[0], split, max_source_positions, is_training=False)

    def _open(self, folder: Path, split: str, max_source_positions: int, *, is_training: bool) -> ParallelCorpus:
        source, target = self.vocabularies
        return open_corpus(folder, split, self.languages, (len(source), len(target)), adds_numbered=is_training,
                           upsample_primary=self.config.upsample_primary if is_training else 1,
                           max_source_length=max_source_positions if self.config.truncate_source else None)

    @property
    def valid_splits(self) -> tuple[str, ...]:
        return tuple(name for name in self.config.valid_subset.split(",") if name)

    def target_text(self, ids: Iterable[int], joiner: str | None = None, *, is_reference: bool = False) -> str:
        """A translation as a reader wants it: subwords joined by their model, or at `joiner`."""
        pieces = self.vocabularies[1].decode(ids)
        if is_reference:
            pieces = hide_unknown(pieces, UNKNOWN_WORD_IN_REFERENCE)
        return join_pieces(pieces, self.subwords[1], joiner)


def hide_unknown(pieces: list[str], mark: str) -> list[str]:
    """A reference's pieces with `mark` for <unk>; before joining, since a subword model may write <unk> in its own way."""
    return [mark if piece == SPECIAL_SYMBOLS[UNK] else piece for piece in pieces]


def join_pieces(pieces: list[str], subword: Subword, joiner: str | None) -> str:
    """`joiner` is what --remove-bpe takes: a mark such as '@@ ', or 'sentencepiece'."""
    if joiner is None:
        return subword.decode(pieces)
    if joiner == "sentencepiece":
        return "".join(pieces).replace("▁", " ").strip()
    mark = joiner.rstrip()
    return (" ".join(pieces) + " ").replace(f"{mark} ", "").rstrip()
