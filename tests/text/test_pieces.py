"""Pieces as text."""

import pytest

from lamina.text.pieces import join_pieces, warn_of_joiner
from lamina.text.subword import Whitespace
from lamina.text.vocabulary import Vocabulary


@pytest.mark.parametrize(("pieces", "joiner", "text"), [
    ("an@@ other on@@ e", "@@ ", "another one"),
    ("an@@ other on@@ e", "subword_nmt", "another one"),
    ("an@@ other", "@@", "another"),
    ("cut@@", "@@ ", "cut"),
    ("▁an other ▁one", "sentencepiece", "another one"),
    ("_an other _one", "wordpiece", "another one"),
    ("a n | o n e |", "letter", "an one"),
    ("an@@ other", "none", "an@@ other"),
    ("an@@ other", "", "an@@ other"),
    ("a b", None, "a b"),
])
def test_join_pieces(pieces, joiner, text):
    assert join_pieces(pieces.split(), Whitespace(), joiner) == text


@pytest.mark.parametrize(("words", "joiner", "message"), [
    ("boat bo@@ at", "@@ ", ""),
    ("boat bo@@ at", "subword_nmt", ""),
    ("boat @at", "@@ ", "--remove-bpe @@: no symbol of the dictionary has the mark @@, so it joins nothing"),
    ("boat bo@@ at", "sentencepiece", "--remove-bpe sentencepiece: no symbol of the dictionary has the mark ▁, so it"),
    ("▁boat s", "sentencepiece", ""),
    ("boat", "none", ""),
    ("boat", None, ""),
])
def test_a_mark_that_no_text_can_hold(words, joiner, message):
    said = []
    warn_of_joiner(joiner, Vocabulary(words.split(), [1] * len(words.split())), said.append)
    assert len(said) == bool(message)
    assert not said or said[0].startswith(message)
