"""Subword libraries: what they say of words, and one that nobody has heard of."""

from dataclasses import dataclass

import numpy as np
import pytest

from lamina import registry
from lamina.cli import main
from lamina.data.masking import WordMarks
from lamina.decode import perplexity
from lamina.errors import ConfigError, DataError
from lamina.fields import flag
from lamina.parts import SubwordLibrary
from lamina.parts.subword_libraries import BpeLibrary, SentencePieceLibrary, WhitespaceLibrary
from lamina.registry import register
from lamina.text.subword import learn_subword, library_behind, library_of, load_subwords, subword_from_dict, subword_to_dict
from lamina.text.tokenizer import Moses
from lamina.text.vocabulary import Vocabulary
from tiny import make_data, write_text

INSIDE = "##"


class Characters:
    """All characters, but for a word's first with a mark in front."""

    kind = "characters"

    def encode(self, line):
        return [INSIDE * (place > 0) + character for word in line.split() for place, character in enumerate(word)]

    def decode(self, pieces):
        return " ".join(pieces).replace(f" {INSIDE}", "")

    def to_bytes(self):
        return b"characters"


@pytest.fixture
def characters():
    @register.subword("characters")
    @dataclass(frozen=True, kw_only=True)
    class CharacterLibrary(SubwordLibrary):
        file_ending = "chars"
        model_option = "character-model"
        shows_words = True

        character_model: tuple[str, ...] = flag((), "apply these", metavar="FILE", needs="!subword")

        @property
        def models(self):
            return self.character_model

        def learn(self, lines, vocab_size):
            list(lines)
            return Characters()

        def load(self, data, name):
            if data != b"characters":
                raise DataError(f"{name} holds no characters.")
            return Characters()

        def is_marked(self, piece):
            return piece.startswith(INSIDE)

        def begins_word(self, piece):
            return not piece.startswith(INSIDE)

        def spell(self, pieces):
            return "".join(piece.removeprefix(INSIDE) for piece in pieces)

    yield
    del register.subword._parts["characters"]
    registry._state["version"] += 1


@pytest.mark.parametrize(("kind", "pieces", "starts", "words"), [
    (WhitespaceLibrary, ["a", "b"], [True, True], ["a", "b"]),
    (SentencePieceLibrary, ["▁ho", "use", "▁a"], [True, False, True], ["house", "a"]),
    (BpeLibrary, ["ho@@", "use", "a"], [True, False, True], ["house", "a"])])
def test_words_of_pieces(kind, pieces, starts, words):
    library, vocabulary = kind(), Vocabulary(pieces, [1] * len(pieces))
    ids = np.array(vocabulary.ids(pieces))
    assert library_behind(vocabulary.symbols) == library
    assert np.diff(WordMarks.of(vocabulary).word_numbers(ids), prepend=-1).tolist() == starts
    marks = perplexity.WordMarks(vocabulary, library)
    found = perplexity.words_of(perplexity.ScoredBlock(0, ids, np.zeros(len(ids))), marks)
    assert [word.text for word in found] == words
    assert marks.num_words(ids) == len(words)


def test_a_library_from_outside_is_a_library_like_others(characters, tmp_path, capsys):
    data = make_data(tmp_path, flags=("--subword", "characters", "--joined-dictionary"))
    model = load_subwords(data)["en"]
    assert (data / "subword.en.chars").read_bytes() == b"characters"
    assert model.encode("the cat") == ["t", "##h", "##e", "c", "##a", "##t"]
    again = subword_from_dict(subword_to_dict(model))
    assert again.decode(again.encode("the cat")) == "the cat"
    assert library_of(Moses(model, "en")).name == "characters"
    vocabulary = Vocabulary.load(data / "dict.en.txt")
    text = write_text(tmp_path / "text", 20)
    words = (text / "train.en").read_text(encoding="utf-8").split()[:3]
    ids = np.array(vocabulary.ids(model.encode(" ".join(words))))
    assert WordMarks.of(vocabulary).word_numbers(ids).tolist() == [n for n, word in enumerate(words) for _ in word]
    flags = ["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--workers", "1", "--destdir",
             str(tmp_path / "applied"), "--joined-dictionary"]
    assert main([*flags, "--character-model", str(data / "subword.en.chars")]) == 0
    assert (tmp_path / "applied" / "dict.en.txt").exists()
    assert main([*flags, "--character-model", "a", "--bpe-codes", "b"]) == 2
    assert "--bpe-codes and --character-model are segmentations of the same text" in capsys.readouterr().err


def test_a_library_that_is_not_there_is_refused():
    with pytest.raises(DataError, match=r"of the kind 'characters', .* known kinds are whitespace, sente.*moses"):
        subword_from_dict({"kind": "characters", "model": ""}, "the model")
    with pytest.raises(ConfigError, match="'characters'; it must be sentencepiece or bpe"):
        learn_subword("characters", [], 10)
