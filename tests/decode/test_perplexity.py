"""Tokens and words of a text that a language model read."""

import math

import numpy as np
import pytest

from lamina.decode.perplexity import ScoredBlock, Tally, WordMarks, marks_named, perplexity_line, words_of
from lamina.parts.subword_libraries import WhitespaceLibrary
from lamina.text.vocabulary import EOS, Vocabulary


def block(vocabulary, text, number=0):
    ids = np.array([*vocabulary.ids(text.split()), EOS] if text else [EOS])
    return ScoredBlock(number, ids, -np.arange(1.0, len(ids) + 1))


def spelled(scored, marks):
    return [(word.text, word.score, word.num_pieces) for word in words_of(scored, marks)]


def test_bpe_words_go_on_after_the_mark():
    vocabulary = Vocabulary(["old@@", "er", "boat"], [1, 1, 1])
    marks = WordMarks(vocabulary, marks_named("@@ "))
    assert spelled(block(vocabulary, "old@@ er boat"), marks) == [("older", -3.0, 2), ("boat", -3.0, 1), ("</s>", -4.0, 1)]


def test_sentencepiece_words_begin_with_the_mark():
    vocabulary = Vocabulary(["▁old", "er", "▁boat"], [1, 1, 1])
    marks = WordMarks(vocabulary, marks_named("sentencepiece"))
    assert spelled(block(vocabulary, "▁old er ▁boat"), marks) == [("older", -3.0, 2), ("boat", -3.0, 1), ("</s>", -4.0, 1)]
    assert marks.num_words(block(vocabulary, "▁old er ▁boat").ids) == 3


def test_without_a_mark_tokens_are_words():
    vocabulary = Vocabulary(["old@@", "er"], [1, 1])
    marks = WordMarks(vocabulary, WhitespaceLibrary())
    assert [text for text, *_ in spelled(block(vocabulary, "old@@ er"), marks)] == ["old@@", "er", "</s>"]


@pytest.mark.parametrize(("words", "mark"), [(["old@@", "er"], "@@ "), (["▁old", "er"], "sentencepiece")])
def test_a_word_that_a_block_cuts_in_two_counts_once(words, mark):
    vocabulary = Vocabulary(words, [1, 1])
    tally = Tally(WordMarks(vocabulary, marks_named(mark) if mark else WhitespaceLibrary()))
    for number, ids in enumerate(([4], [5, EOS])):
        tally.add(ScoredBlock(number, np.array(ids), np.full(len(ids), -1.0)))
    assert (tally.num_tokens, tally.num_words, tally.total) == (3, 2, -3.0)


def test_statistics_of_words_and_of_those_after_them():
    vocabulary = Vocabulary(["a", "b"], [1, 1])
    marks = WordMarks(vocabulary, WhitespaceLibrary())
    tally = Tally(marks)
    tally.add_words(words_of(block(vocabulary, "a b a"), marks))
    assert tally.stats["a"].line() == "a\t2\t-4.0\tFalse\t-6.0\t2"
    assert tally.stats["</s>"].line() == "</s>\t1\t-4.0\tFalse\t0.0\t0"


def test_the_line_that_scripts_read():
    assert perplexity_line(-4.1234 * math.log(2) * 10, 10) == "Loss (base 2): 4.1234, Perplexity: 17.43"
    assert perplexity_line(-math.inf, 10) == "Loss (base 2): inf, Perplexity: inf"
