"""Which tokens a masked language model must guess, and what it sees in their place (Devlin et al. 2019, §3.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from lamina.errors import DataError
from lamina.text.subword import library_behind
from lamina.text.vocabulary import FIRST_WORD_ID, MASK_SYMBOL, Vocabulary

# What becomes of a word.
NOT_CHOSEN, MASKED, RANDOM, KEPT = range(4)


@dataclass(frozen=True)
class WordMarks:
    """How a dictionary's pieces show where words begin, as tables over its ids."""

    begins: np.ndarray  # (V,) a word may begin with this piece
    continues: np.ndarray  # (V,) into the next piece

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> WordMarks:
        words = [symbol for symbol in vocabulary.symbols[FIRST_WORD_ID:]
                 if symbol != MASK_SYMBOL and not symbol.startswith("madeupword")]
        if words and all(re.fullmatch(r"\d+", word) for word in words):
            raise DataError("--mask-whole-words cannot tell the words of this dictionary: its symbols are all numbers, as "
                            "GPT-2's byte-level pieces are. Leave it out, or segment the text with sentencepiece or BPE.")
        library = library_behind(vocabulary.symbols)
        return cls(np.array([library.begins_word(symbol) for symbol in vocabulary.symbols]),
                   np.array([library.continues(symbol) for symbol in vocabulary.symbols]))

    def word_numbers(self, ids: np.ndarray) -> np.ndarray:
        """The number of each token's word, from 0 on; a special symbol is a word of its own. (T,)"""
        is_special = ids < FIRST_WORD_ID
        is_start = self.begins[ids] & ~np.append(False, self.continues[ids][:-1])
        is_start = is_start | is_special | np.append(True, is_special[:-1])
        return np.cumsum(is_start) - 1


class Masker:
    """Draws masks: `mask_p` of the words, of which some become <mask>, some a random word, and some stay as they are.

    Special symbols are never masked. Deviates from fairseq, which masks <s> and </s> like any word and may put
    <mask> itself in a random word's place.
    """

    def __init__(self, vocabulary: Vocabulary, *, mask_p: float, keep_p: float, random_p: float, is_whole_words: bool = False,
                 is_frequency_weighted: bool = False) -> None:
        self.mask_id = vocabulary.id(MASK_SYMBOL)
        self.mask_p, self.keep_p, self.random_p = mask_p, keep_p, random_p
        self.marks = WordMarks.of(vocabulary) if is_whole_words else None
        ids = np.arange(FIRST_WORD_ID, len(vocabulary))
        self.replacements = ids[ids != self.mask_id]
        weights = (np.asarray(vocabulary.counts, dtype=np.float64)[self.replacements] if is_frequency_weighted
                   else np.ones(len(self.replacements)))
        if random_p and not weights.sum():
            raise DataError("there is no word to put in a masked word's place: the dictionary "
                            + ("counts none. Leave out --freq-weighted-replacement." if is_frequency_weighted else "is empty."))
        self.cumulative = np.cumsum(weights / max(weights.sum(), 1.0))

    def __call__(self, ids: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """What the model sees, and where it must guess: both in the order of the tokens. (T,), (N,)"""
        is_word, words = ids >= FIRST_WORD_ID, None
        if self.marks is not None:
            words = self.marks.word_numbers(ids)
            is_special, is_word = ~is_word, np.ones(words[-1] + 1 if len(words) else 0, dtype=bool)
            is_word[words[is_special]] = False
        candidates = is_word.nonzero()[0]
        # A share that is no whole number is rounded by chance, so that short sentences are masked as often as long ones.
        number = int(self.mask_p * len(candidates) + generator.random())
        chosen = generator.permutation(candidates)[:number]
        draws = generator.random(len(chosen))
        fate = np.zeros(len(is_word), dtype=np.int8)  # NOT_CHOSEN
        fate[chosen] = np.where(draws < self.keep_p, KEPT, np.where(draws < self.keep_p + self.random_p, RANDOM, MASKED))
        if words is not None:
            fate = fate[words]  # of each token: the pieces of a word share theirs
        seen = ids.copy()
        seen[fate == MASKED] = self.mask_id
        random = (fate == RANDOM).nonzero()[0]
        if len(random):
            places = np.searchsorted(self.cumulative, generator.random(len(random)), side="right")
            seen[random] = self.replacements[np.minimum(places, len(self.replacements) - 1)]
        return seen, fate.nonzero()[0]
