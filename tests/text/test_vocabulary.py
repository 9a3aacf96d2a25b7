from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import DataError
from lamina.text.vocabulary import BOS, EOS, FIRST_WORD_ID, PAD, SPECIAL_SYMBOLS, UNK, Vocabulary

words = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), min_size=1).filter(
    lambda word: len(word.split()) == 1 and word.split()[0] == word and word not in SPECIAL_SYMBOLS)


def test_special_symbols_come_first_in_fairseqs_order():
    vocabulary = Vocabulary()
    assert vocabulary.symbols == ["<s>", "<pad>", "</s>", "<unk>"]
    assert (BOS, PAD, EOS, UNK, FIRST_WORD_ID, len(vocabulary)) == (0, 1, 2, 3, 4, 4)
    assert (vocabulary.bos, vocabulary.pad, vocabulary.eos, vocabulary.unk) == (0, 1, 2, 3)


def test_words_are_ordered_by_count_then_code_point():
    vocabulary = Vocabulary.build(Counter({"b": 2, "a": 2, "é": 2, "Z": 2, "often": 9}))
    assert vocabulary.symbols[FIRST_WORD_ID:] == ["often", "Z", "a", "b", "é"]
    assert vocabulary.counts[FIRST_WORD_ID:] == [9, 2, 2, 2, 2]


def test_threshold_keeps_words_that_reach_it():
    assert Vocabulary.build({"a": 3, "b": 2, "c": 1}, threshold=2).symbols[FIRST_WORD_ID:] == ["a", "b"]


def test_max_size_counts_the_special_symbols():
    vocabulary = Vocabulary.build({"a": 3, "b": 2, "c": 1}, max_size=6)
    assert vocabulary.symbols[FIRST_WORD_ID:] == ["a", "b"]
    assert len(Vocabulary.build({"a": 3}, max_size=4)) == 4


def test_padding_fills_up_with_made_up_words():
    vocabulary = Vocabulary.build({"a": 3, "madeupword0001": 2}, padding_factor=8)
    assert vocabulary.symbols[FIRST_WORD_ID:] == ["a", "madeupword0001", "madeupword0000", "madeupword0002"]
    assert vocabulary.counts[-2:] == [0, 0]


def test_special_symbols_in_the_text_keep_their_ids():
    vocabulary = Vocabulary.build({"a": 3, "<unk>": 7, "</s>": 1})
    assert len(vocabulary) == 5
    assert vocabulary.id("<unk>") == UNK


def test_encode_closes_with_eos_and_decode_drops_the_frame():
    vocabulary = Vocabulary(["a", "b"], [2, 1])
    ids = vocabulary.encode(["b", "new", "a"])
    assert isinstance(ids, np.ndarray)
    assert ids.tolist() == [5, UNK, 4, EOS]
    assert vocabulary.decode([BOS, *ids, PAD]) == ["b", "<unk>", "a"]
    assert "a" in vocabulary
    assert "new" not in vocabulary
    assert vocabulary.ids(["a", "new"]) == [4, UNK]


@given(st.dictionaries(words, st.integers(0, 10**9), max_size=30), st.sampled_from([1, 8]))
def test_text_round_trip(counts, padding_factor):
    vocabulary = Vocabulary.build(counts, padding_factor=padding_factor)
    again = Vocabulary.from_text(vocabulary.to_text(), "dict.txt")
    assert again == vocabulary
    assert again.digest == vocabulary.digest
    assert all(again.symbols[again.id(word)] == word for word in counts)


def test_save_and_load(tmp_path):
    vocabulary = Vocabulary(["a", "é"], [2, 1])
    vocabulary.save(tmp_path / "dict.txt")
    assert (tmp_path / "dict.txt").read_bytes() == "a 2\né 1\n".encode()
    assert Vocabulary.load(tmp_path / "dict.txt") == vocabulary
    assert repr(vocabulary) == f"Vocabulary(6 symbols, digest {vocabulary.digest})"


def test_overwrite_mark_moves_a_symbol_and_survives_storage():
    vocabulary = Vocabulary.from_text("a 5\n<unk> 3 #fairseq:overwrite\na 1 #fairseq:overwrite\n")
    assert vocabulary.id("<unk>") == 5
    assert vocabulary.id("a") == 6
    assert len(vocabulary) == 7
    assert Vocabulary.from_text(vocabulary.to_text()) == vocabulary


def test_symbol_may_be_white_space_other_than_a_space():
    assert Vocabulary.from_text("\u3000 5\r\na 1").symbols[FIRST_WORD_ID:] == ["\u3000", "a"]


@pytest.mark.parametrize(("text", "message"), [
    ("a 5\nb\n", "line 2: expected `symbol count`, found 'b'"),
    ("a 5\n\nb 1\n", "line 2: expected"),
    ("a five\n", "line 1: expected"),
    ("a 5 #fairseq:overwritten\n", "line 1: expected"),
    ("a 5\nb 2\na 1\n", "line 3: 'a' already stands in line 1"),
    ("<pad> 5\n", "line 1: '<pad>' is a special symbol"),
])
def test_damaged_dictionary_names_the_line(text, message):
    with pytest.raises(DataError, match=f"^some/dict.txt, {message}"):
        Vocabulary.from_text(text, "some/dict.txt")


def test_load_names_what_is_wrong_with_the_file(tmp_path):
    with pytest.raises(DataError, match="no such dictionary"):
        Vocabulary.load(tmp_path / "dict.txt")
    with pytest.raises(DataError, match="cannot be read"):
        Vocabulary.load(tmp_path)
    (tmp_path / "latin1.txt").write_bytes(b"a 5\nb\xe9 3\n")
    with pytest.raises(DataError, match="line 2: byte 5 is not valid UTF-8"):
        Vocabulary.load(tmp_path / "latin1.txt")


def test_the_mask_comes_last_once():
    vocabulary = Vocabulary(["a", "b"], [2, 1])
    masked = vocabulary.with_mask()
    assert masked.symbols == [*vocabulary.symbols, "<mask>"]
    assert masked.with_mask() is masked
    assert Vocabulary.from_text(masked.to_text()) == masked
    assert len(vocabulary) == 6
