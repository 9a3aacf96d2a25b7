"""The demonstration corpus: disjoint splits, the same bits for the same seed, clean text, right Romanian."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

import lamina
from lamina.demo_corpus.sentences import MIN_WORD_USES, SLOT, WORD, Corpus, build_corpus, split_off, write_corpus
from lamina.demo_corpus.templates import TEMPLATES
from lamina.errors import ConfigError

pytest.importorskip("babel")
pytest.importorskip("num2words")

SMALL = {"num_train": 3000, "num_valid": 100, "num_test": 100}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_corpus()


def side(pairs, index):
    return {pair[index] for pair in pairs}


def test_default_sizes(corpus):
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (30_000, 500, 500)


@pytest.mark.parametrize("index", [0, 1], ids=["sources", "targets"])
def test_no_sentence_occurs_in_two_lists(corpus, index):
    train, valid, test = (side(pairs, index) for pairs in (corpus.train, corpus.valid, corpus.test))
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert len(train) + len(valid) + len(test) == 31_000


def test_held_out_words_are_in_training(corpus):
    uses = Counter(word for pair in corpus.train for word in set(WORD.findall(" ".join(pair).lower())))
    for pair in corpus.valid + corpus.test:
        assert min(uses[word] for word in WORD.findall(" ".join(pair).lower())) >= MIN_WORD_USES


def test_text_is_clean(corpus):
    for pair in corpus.train + corpus.valid + corpus.test:
        for text in pair:
            assert text == " ".join(text.split())
            assert unicodedata.is_normalized("NFC", text)
            assert text[0] == text[0].upper()
            assert text[-1] in ".?"
            assert not set(text) & set("{}şţŞŢ")


def test_large_corpus_is_possible():
    assert len(build_corpus(num_train=60_000).train) == 60_000


def test_more_than_there_is_fails_in_one_line(monkeypatch):
    few = {"times": (("It is {morning}.", "Este {morning}."),)}
    monkeypatch.setattr("lamina.demo_corpus.sentences.TEMPLATES", few)
    with pytest.raises(ConfigError, match=r"ran out at \d+ of 5000 pairs: ask for fewer"):
        build_corpus(num_train=5000, num_valid=0, num_test=0)


def test_negative_size_fails():
    with pytest.raises(ConfigError, match="none may be negative"):
        build_corpus(num_train=-1)


def test_same_seed_same_corpus():
    assert build_corpus(**SMALL, seed=3) == build_corpus(**SMALL, seed=3)
    assert build_corpus(**SMALL, seed=3) != build_corpus(**SMALL, seed=4)


def test_hash_seed_does_not_matter():
    program = (
        "import hashlib; from lamina.demo_corpus.sentences import build_corpus; "
        "print(hashlib.sha256(repr(build_corpus(2000, 50, 50)).encode()).hexdigest())"
    )
    source_root = str(Path(lamina.__path__[0]).parent)
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source_root},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1


def test_tiny_corpus_still_fills_every_list():
    tiny = build_corpus(num_train=5, num_valid=3, num_test=2)
    assert (len(tiny.train), len(tiny.valid), len(tiny.test)) == (5, 3, 2)


def test_pair_with_a_rare_word_stays_in_training():
    pairs = [("a b", "c")] * (MIN_WORD_USES + 2) + [("a rare", "c")]
    train, held_out = split_off(pairs, 1)
    assert ("a rare", "c") in train
    assert held_out == [("a b", "c")]


def test_write_corpus(tmp_path):
    pairs = [("One apple.", "Un măr."), ("Two pears.", "Două pere.")]
    write_corpus(Corpus(train=pairs, valid=pairs[:1], test=[]), tmp_path / "new")
    files = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert files == ["test.en", "test.ro", "train.en", "train.ro", "valid.en", "valid.ro"]
    assert (tmp_path / "new" / "train.ro").read_bytes() == "Un măr.\nDouă pere.\n".encode()
    assert (tmp_path / "new" / "test.en").read_bytes() == b""


@pytest.mark.parametrize("package", ["babel", "num2words"])
def test_missing_package_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("lamina.demo_corpus.fillings", "lamina.demo_corpus.lexicon"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("lamina.demo_corpus.lexicon", raising=False)
    with pytest.raises(ConfigError, match=re.escape("needs the packages Babel and num2words: pip install")):
        build_corpus(num_train=1, num_valid=0, num_test=0)


def test_templates_use_the_same_known_slots_on_both_sides():
    from lamina.demo_corpus.fillings import build_slots

    slots = build_slots()
    used = set()
    for english, romanian in (pair for pairs in TEMPLATES.values() for pair in pairs):
        assert sorted(SLOT.findall(english)) == sorted(SLOT.findall(romanian)), english
        used |= {kind for kind, _ in SLOT.findall(english)}
    assert used == set(slots)


def test_romanian_counting():
    from lamina.demo_corpus import lexicon
    from lamina.demo_corpus.wordlists import Noun

    book = Noun("book", "books", "carte", "cărți", "f")
    assert lexicon.of_noun(1, book) == ("one book", "o carte")
    assert lexicon.of_noun(2, book) == ("two books", "două cărți")
    assert lexicon.of_noun(21, book) == ("twenty-one books", "douăzeci și una de cărți")
    assert lexicon.of_noun(112, book, in_digits=True) == ("112 books", "112 cărți")
    assert lexicon.of_unit(12, "duration-minute") == ("twelve minutes", "douăsprezece minute")
    assert lexicon.of_unit(22, "length-kilometer") == ("twenty-two kilometres", "douăzeci și doi de kilometri")
    assert lexicon.of_unit(20, "volume-liter", "duration-minute") == (
        "twenty litres per minute",
        "douăzeci de litri pe minut",
    )
    assert lexicon.of_money(32, "GBP") == ("thirty-two British pounds", "treizeci și două de lire sterline")
    assert lexicon.relative(1, "year", is_past=True) == ("one year ago", "acum un an")
    assert lexicon.relative(3, "week", is_past=False) == ("in three weeks", "peste trei săptămâni")
    assert lexicon.ordinal(28).romanian == "al douăzeci și optulea"


def test_in_contracts_with_the_article(corpus):
    romanian = [pair[1] for pair in corpus.train]
    assert any(" într-o oră" in text for text in romanian)
    assert not any(re.search(r"\b[Îî]n (un|o)\b", text) for text in romanian)
