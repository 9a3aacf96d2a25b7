"""Telling tokenized text from text."""

import pytest

from lamina.text.tokenizer import detokenizer, looks_tokenized

TEXT = ["It's red, old and small.", "Mr. Gray sings; the moon, too, sings.", "no mark at all"]
TOKENS = ["It &apos;s red , old and small .", "Mr. Gray sings ; the moon , too , sings .", "no mark at all"]


@pytest.mark.parametrize(("lines", "expected"), [
    (TEXT, False), (TOKENS, True), (["BOAT RED THE"], False), ([], False), (["you &apos;re well @-@ read"], True),
    (["« Bonjour ! », dit-il, et il partit."], False), (["1.5 , 3 ."], True)])
def test_text_and_tokens(lines, expected):
    assert looks_tokenized(lines) == expected


def test_what_the_script_escaped_comes_back():
    pytest.importorskip("sacremoses")
    detokenize = detokenizer("en")
    assert [detokenize(line) for line in TOKENS] == TEXT
