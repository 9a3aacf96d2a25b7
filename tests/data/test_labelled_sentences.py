"""Sentences, pairs and labels."""

import numpy as np
import pytest

from lamina.data.binary import BinaryWriter
from lamina.data.labelled_sentences import Frame, SentenceCorpus, SentencePart, read_classes, read_numbers
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, Vocabulary

VOCABULARY = Vocabulary([f"w{number}" for number in range(16)], [1] * 16)
LABELS = Vocabulary(["no", "yes"], [2, 1])


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with BinaryWriter(path, 20) as writer:
        for row in rows:
            writer.write(np.array(row))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "input0" / "train", [[5, 6, EOS], [7, EOS], [8, 9, 10, EOS]])
    write(tmp_path / "input1" / "train", [[11, EOS], [12, 13, EOS], [14, EOS]])
    write(tmp_path / "label" / "train", [[4, EOS], [5, EOS], [4, EOS]])
    return tmp_path


@pytest.mark.parametrize(("frame", "expected"), [
    (Frame(0, 2), [0, 5, 6, EOS, 2, 11, EOS]), (Frame(-1, -1), [5, 6, EOS, 11, EOS]), (Frame(0, -1), [0, 5, 6, EOS, 11, EOS])])
def test_pairs_in_their_frame(folder, frame, expected):
    targets = read_classes(folder, "train", LABELS, 2)
    corpus = SentenceCorpus([SentencePart(folder, "train", targets)], VOCABULARY, frame, max_length=None)
    assert corpus[0].tolist() == expected
    assert corpus.lengths[0] == len(expected)
    batch = corpus.batch([0, 1], (1, 1))
    assert batch.target.tolist() == [0, 1]
    assert batch.num_target_tokens == batch.num_sentences == 2
    assert (batch.tokens[0, : len(expected)].numpy() == expected).all()


def test_cut_to_a_length(folder):
    part = SentencePart(folder, "train", np.zeros(3, dtype=np.int64))
    corpus = SentenceCorpus([part], VOCABULARY, Frame(0, 2), max_length=5)
    assert corpus[0].tolist() == [0, 5, 6, EOS, EOS]
    assert corpus.lengths.tolist() == [5, 5, 5]


def test_parts_follow_each_other(folder):
    part = SentencePart(folder, "train", np.arange(3))
    corpus = SentenceCorpus([part, part], VOCABULARY, Frame(0, 2), max_length=None)
    assert len(corpus) == 6
    assert corpus[4].tolist() == corpus[1].tolist()
    assert corpus.batch([4], (1, 1)).target.tolist() == [1]


def test_ids_of_another_dictionary(folder):
    part = SentencePart(folder, "train", np.arange(3))
    with pytest.raises(DataError, match="belongs to other data"):
        SentenceCorpus([part], Vocabulary(["w"], [1]), Frame(0, 2), max_length=None)[0]


@pytest.mark.parametrize(("rows", "num_classes", "message"), [
    ([[4, 5, EOS]], 2, "has 2 words; a label is one word"),
    ([[4, EOS], [3, EOS]], 2, "label 1 of .* is one that the training labels lack"),
    ([[4, EOS], [5, EOS]], 1, "is 'yes', number 2 of its dictionary, but --num-classes is 1"),
])
def test_labels_that_make_no_sense(tmp_path, rows, num_classes, message):
    write(tmp_path / "label" / "train", rows)
    with pytest.raises(DataError, match=message):
        read_classes(tmp_path, "train", LABELS, num_classes)


def test_numbers(tmp_path):
    (tmp_path / "label").mkdir()
    (tmp_path / "label" / "train.label").write_text("1.5\n-2\n")
    assert read_numbers(tmp_path, "train").tolist() == [1.5, -2.0]
    with pytest.raises(DataError, match="cannot be read"):
        read_numbers(tmp_path, "valid")


def test_sides_of_different_length(folder):
    with pytest.raises(DataError, match="3 inputs and 2 labels"):
        SentencePart(folder, "train", np.arange(2))
