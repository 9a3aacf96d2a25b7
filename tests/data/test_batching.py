"""Some rows of a batch are a batch, whatever the task."""

import numpy as np
import pytest
import torch

from lamina.data.batching import Batch, TokenBatch
from lamina.data.labelled_sentences import SentenceBatch
from lamina.data.masked_blocks import MaskedBatch
from lamina.text.vocabulary import PAD

TOKENS = torch.tensor([[5, 6, 2], [7, 2, PAD], [8, 9, 2], [4, 2, PAD]])
INDICES = (10, 11, 12, 13)
BATCHES = {
    "pairs": Batch(TOKENS, TOKENS, TOKENS, 10, 10, INDICES),
    "tokens": TokenBatch(TOKENS, TOKENS, 10, INDICES, TOKENS.numpy()),
    "masked": MaskedBatch(TOKENS, torch.tensor([1, 3, 4, 10]), torch.tensor([6, 7, 2, 2]), INDICES),
    "sentences": SentenceBatch(TOKENS, torch.tensor([0, 1, 2, 3]), INDICES),
}


@pytest.mark.parametrize("name", BATCHES)
def test_rows(name):
    batch = BATCHES[name]
    first, second = batch.rows(slice(0, 1)), batch.rows(slice(1, 4))
    assert first.indices + second.indices == batch.indices
    assert first.num_target_tokens + second.num_target_tokens == batch.num_target_tokens
    assert first.num_sentences == 1
    assert torch.equal(torch.cat([first.inputs[0], second.inputs[0]]), batch.inputs[0])
    assert torch.equal(torch.cat([first.target, second.target]), batch.target)


def test_places_to_guess_are_counted_from_the_first_row():
    second = BATCHES["masked"].rows(slice(1, 4))
    assert second.places.tolist() == [0, 1, 7]
    assert second.tokens.flatten()[second.places].tolist() == [7, 2, 2]


def test_what_the_host_knows_of_tokens():
    np.testing.assert_array_equal(BATCHES["tokens"].rows(slice(2, 4)).target_on_host, TOKENS[2:].numpy())
