"""Running text in blocks."""

import numpy as np
import pytest

from lamina.data.binary import BinaryReader, BinaryWriter
from lamina.data.blocks import TokenBlocks, cut_blocks, find_language
from lamina.errors import DataError
from lamina.text.vocabulary import EOS, PAD

SENTENCES = [[5, 6, 7, EOS], [8, EOS], [EOS], [9, 10, 11, 12, 13, EOS], [14, EOS], [15, 16, EOS]]
SIZES = np.array([len(sentence) for sentence in SENTENCES])
STREAM = [token for sentence in SENTENCES for token in sentence]


def blocks_by_hand(sizes, block_size, is_by_document):
    """Sentence by sentence, as the references count them."""
    found, start, size = [], 0, 0
    for own in sizes.tolist():
        is_end = is_by_document and own == 1
        if size and (is_end or size + own > block_size):
            found.append((start, start + size))
            start, size = start + size, 0
        if is_end:
            start += own
        else:
            size += own
    return [*found, (start, start + size)] if size else found


@pytest.mark.parametrize("block_size", [1, 3, 5, 6, 8, 100])
@pytest.mark.parametrize("mode", ["complete", "complete_doc"])
def test_whole_sentences_to_a_block(mode, block_size):
    generator = np.random.default_rng(block_size)
    for sizes in (SIZES, generator.integers(1, 9, 200)):
        expected = blocks_by_hand(sizes, block_size, mode == "complete_doc")
        assert np.stack(cut_blocks(sizes, block_size, mode), axis=1).tolist() == [list(cut) for cut in expected]


def test_blocks_of_one_size_and_of_one_sentence():
    starts, ends = cut_blocks(SIZES, 5, "none")
    assert starts.tolist() == [0, 5, 10, 15]
    assert ends.tolist() == [5, 10, 15, 18]
    starts, ends = cut_blocks(SIZES, 5, "eos")
    assert (ends - starts).tolist() == SIZES.tolist()


@pytest.fixture
def reader(tmp_path):
    with BinaryWriter(tmp_path / "train", 20) as writer:
        for sentence in SENTENCES:
            writer.write(np.array(sentence))
    return BinaryReader(tmp_path / "train")


def test_a_block_is_read_after_the_token_before_it(reader):
    corpus = TokenBlocks([reader], 20, "train", block_size=5, break_mode="none")
    batch = corpus.batch([0, 1, 3])
    assert batch.target.tolist() == [STREAM[:5], STREAM[5:10], [*STREAM[15:], PAD, PAD]]
    assert batch.tokens.tolist() == [[EOS, *STREAM[:4]], STREAM[4:9], [*STREAM[14:17], PAD, PAD]]
    assert batch.num_target_tokens == 13
    assert batch.inputs == (batch.tokens,)
    assert corpus[1].tolist() == STREAM[5:10]


def test_context_is_read_and_not_predicted(reader):
    corpus = TokenBlocks([reader], 20, "train", block_size=5, break_mode="none")
    batch = corpus.batch_in_context([1, 2], [3, 10])
    assert batch.tokens.tolist() == [[*STREAM[1:9], *[PAD] * 7], [EOS, *STREAM[:14]]]
    assert batch.target.tolist() == [[PAD, PAD, PAD, *STREAM[5:10], *[PAD] * 7], [*[PAD] * 10, *STREAM[10:15]]]
    assert batch.num_target_tokens == 10


def test_texts_do_not_run_into_each_other(reader):
    corpus = TokenBlocks([reader, reader], 20, "train", block_size=16, break_mode="none")
    assert len(corpus) == 4
    assert corpus.batch([2]).tokens[0, 0] == EOS
    assert corpus.batch([2]).tokens.tolist() == corpus.batch([0]).tokens.tolist()


def test_ids_beyond_the_dictionary(reader):
    with pytest.raises(DataError, match="dictionary of 10 symbols does not have"):
        TokenBlocks([reader], 10, "train", block_size=8, break_mode="none").batch([0, 1])


def test_which_text_a_folder_holds(tmp_path):
    with pytest.raises(DataError, match="there is no data folder"):
        find_language(tmp_path / "nowhere", "train")
    with pytest.raises(DataError, match="has no text 'train'"):
        find_language(tmp_path, "train")
    (tmp_path / "train.en-ro.en.idx").touch()
    with pytest.raises(DataError, match="one side of a pair"):
        find_language(tmp_path, "train")
    (tmp_path / "train.en-None.en.idx").touch()
    assert find_language(tmp_path, "train") == "en"
    (tmp_path / "train.ro-None.ro.idx").touch()
    with pytest.raises(DataError, match=r"several languages \(en, ro\)"):
        find_language(tmp_path, "train")
    (tmp_path / "train.idx").touch()
    assert find_language(tmp_path, "train") is None
