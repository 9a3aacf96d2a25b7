"""Masked blocks: <s> in front, the places to guess, and masks that depend on seed, epoch and block alone."""

import numpy as np
import pytest
import torch

from lamina.data.binary import BinaryReader, BinaryWriter
from lamina.data.blocks import TokenBlocks
from lamina.data.masked_blocks import MaskedBlocks
from lamina.data.masking import Masker
from lamina.errors import DataError
from lamina.text.vocabulary import BOS, EOS, FIRST_WORD_ID, PAD, Vocabulary

WORDS = 50


@pytest.fixture
def corpus(tmp_path):
    generator = np.random.default_rng(0)
    with BinaryWriter(tmp_path / "train", WORDS + FIRST_WORD_ID) as writer:
        for length in generator.integers(1, 30, 40):
            writer.write(np.append(generator.integers(FIRST_WORD_ID, WORDS + FIRST_WORD_ID, length), EOS))
    return make(tmp_path)


def make(folder, mask_p=0.3):
    vocabulary = Vocabulary([f"w{number}" for number in range(WORDS)], [1] * WORDS).with_mask()
    blocks = TokenBlocks([BinaryReader(folder / "train")], len(vocabulary), "text", block_size=31, break_mode="complete")
    return MaskedBlocks(blocks, Masker(vocabulary, mask_p=mask_p, keep_p=0.1, random_p=0.1))


def test_a_batch(corpus):
    indices = [3, 0, 5]
    batch = corpus.batch(indices, (1, 1))
    assert batch.tokens.shape == (3, corpus.lengths[indices].max())
    assert (batch.tokens[:, 0] == BOS).all()
    assert ((batch.tokens != PAD).sum(dim=1).numpy() == corpus.lengths[indices]).all()
    assert batch.num_target_tokens == len(batch.places) == len(batch.target)
    assert batch.num_sentences == 3
    original = batch.tokens.flatten().clone()
    original[batch.places] = batch.target
    for row, index in zip(original.view(3, -1), indices, strict=True):
        assert row[1 : corpus.lengths[index]].tolist() == corpus._blocks[index].tolist()
    assert (batch.target >= FIRST_WORD_ID).all()


def test_a_mask_depends_on_seed_epoch_and_block_alone(corpus):
    alone, together = corpus.batch([4], (1, 2)), corpus.batch([0, 4, 7], (1, 2))
    length = corpus.lengths[4]
    assert torch.equal(alone.tokens[0, :length], together.tokens[1, :length])
    for draw in ((1, 3), (2, 2)):
        assert not torch.equal(alone.tokens, corpus.batch([4], draw).tokens)


def test_all_epochs_together_mask_everything(corpus):
    seen = np.zeros(corpus.lengths[2], dtype=bool)
    for epoch in range(60):
        seen[corpus.batch([2], (1, epoch)).places.numpy()] = True
    assert seen[1:-1].mean() > 0.95
    assert not seen[0]


def test_nothing_to_guess(tmp_path):
    with BinaryWriter(tmp_path / "train", 9) as writer:
        writer.write(np.array([EOS]))
    batch = make(tmp_path).batch([0], (1, 1))
    assert batch.tokens.tolist() == [[BOS, EOS]]
    assert batch.num_target_tokens == 0


def test_a_mask_in_the_text(tmp_path):
    with BinaryWriter(tmp_path / "train", WORDS + 9) as writer:
        writer.write(np.array([5, WORDS + FIRST_WORD_ID, EOS]))
    with pytest.raises(DataError, match="holds <mask> already"):
        make(tmp_path).batch([0], (1, 1))
