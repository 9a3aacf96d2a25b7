"""Single texts in a flat row: the same losses and gradients as in padded rows, and every text once."""

import numpy as np
import pytest
import torch

from lamina.config.batches import BatchConfig
from lamina.config.model import LanguageModelConfig
from lamina.data.batching import TokenBatch, pad_rows
from lamina.data.feed import Feed
from lamina.data.flat_texts import FlatMasked, FlatSentences, FlatTokens, end_to_end, flat_row
from lamina.data.labelled_sentences import SentenceBatch
from lamina.data.layer_subsets import LayerSubsets
from lamina.data.masked_blocks import MaskedBatch
from lamina.parts.criteria import CrossEntropy, MaskedLmLoss, SentenceLoss
from lamina.training.loss import batch_loss
from tiny import VOCABULARY_SIZE, tiny_language_model, tiny_masked_model

LENGTHS = (3, 9, 1, 5, 5)
INDICES = tuple(range(len(LENGTHS)))
SUBSETS = LayerSubsets(((0.5, 0.3), (0.5, 0.3)), seed=2)
BANDS = LanguageModelConfig(softmax_cutoff=(10, 20), softmax_factor=2.0)


def texts(seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(4, VOCABULARY_SIZE, length) for length in LENGTHS]


def token_batches():
    inputs, targets = texts(), texts(1)
    padded, flat = pad_rows(targets), np.concatenate(targets)[None]
    return (TokenBatch(torch.from_numpy(pad_rows(inputs)), torch.from_numpy(padded), flat.size, INDICES, target_on_host=padded),
            FlatTokens(**flat_row(end_to_end(inputs)), indices=INDICES, target=torch.from_numpy(flat),
                       num_target_tokens=flat.size, target_on_host=flat))


def masked_batches():
    rows = texts()
    tokens = torch.from_numpy(pad_rows(rows))
    places = np.array([0, 2, 4, 11, 12, 13, 22])  # of the flat row
    starts = np.cumsum([0, *LENGTHS])
    row_of = np.searchsorted(starts, places, side="right") - 1
    in_padded = torch.from_numpy(row_of * tokens.size(1) + places - starts[row_of])
    target = torch.arange(len(places)) + 5
    return (MaskedBatch(tokens, in_padded, target, INDICES),
            FlatMasked(**flat_row(end_to_end(rows)), indices=INDICES, places=torch.from_numpy(places), target=target,
                       num_target_tokens=len(target)))


def sentence_batches():
    target = torch.tensor([0, 1, 2, 1, 0])
    return (SentenceBatch(torch.from_numpy(pad_rows(texts())), target, INDICES),
            FlatSentences(**flat_row(end_to_end(texts())), indices=INDICES, target=target))


KINDS = {"tokens": (token_batches, tiny_language_model, CrossEntropy()),
         "bands": (token_batches, lambda: tiny_language_model(lm=BANDS), CrossEntropy()),
         "masked": (masked_batches, tiny_masked_model, MaskedLmLoss()),
         "sentences": (sentence_batches, lambda: tiny_masked_model(num_classes=3), SentenceLoss())}


def gradients(model, batch, criterion):
    model.zero_grad()
    sums = batch_loss(model, batch, criterion)
    sums.loss.backward()
    return sums, [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("is_drawn", [False, True], ids=["all layers", "LayerDrop"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_padded_rows(kind, is_drawn):
    batches, new_model, criterion = KINDS[kind]
    model, pair = new_model().train(), batches()
    if is_drawn:
        pair = [SUBSETS.given_to(batch, 1, 7, is_static=False, capacities={}) for batch in pair]
    (expected, wanted), (found, own) = (gradients(model, batch, criterion) for batch in pair)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)
    padded, flat = pair
    assert (flat.num_target_tokens, flat.num_sentences) == (padded.num_target_tokens, padded.num_sentences)


@pytest.mark.parametrize("is_drawn", [False, True], ids=["all layers", "LayerDrop"])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_add_up_to_the_whole(kind, is_drawn):
    batches, new_model, criterion = KINDS[kind]
    model, (_, batch) = new_model().train(), batches()
    if is_drawn:
        batch = SUBSETS.given_to(batch, 1, 7, is_static=False, capacities={})
    expected, wanted = gradients(model, batch, criterion)
    parts = [batch.rows(slice(0, 2)), batch.rows(slice(2, 5))]
    assert [part.indices for part in parts] == [(0, 1), (2, 3, 4)]
    sums, found = zip(*(gradients(model, part, criterion) for part in parts), strict=True)
    torch.testing.assert_close(sum(own.loss for own in sums), expected.loss)
    assert sum(part.num_target_tokens for part in parts) == batch.num_target_tokens
    for one, other, whole in zip(*found, wanted, strict=True):
        total = sum((part for part in (one, other) if part is not None), torch.zeros(()))
        torch.testing.assert_close(total, torch.zeros(()) if whole is None else whole, rtol=1e-4, atol=1e-5)


class Texts:
    unit, name = "texts", "texts"

    def __init__(self, lengths):
        self.lengths = np.asarray(lengths)

    def __len__(self):
        return len(self.lengths)

    @property
    def sizes(self):
        return {"input": self.lengths}

    def batch(self, indices, draw):
        return ("padded", list(indices))

    def flat_batch(self, indices, draw):
        return ("flat", list(indices))


def feed_of(lengths, order="mixed"):
    return Feed(Texts(lengths), seed=1, limits=BatchConfig(max_tokens=100, multiple=1, order=order), max_positions=(50,),
                device=torch.device("cpu"), is_shuffled=True)


def test_texts_of_any_length_make_a_batch_each_once():
    lengths = np.random.default_rng(0).integers(1, 40, 500)
    feed = feed_of(lengths)
    assert feed.is_flat
    assert feed.padding_share(1) == 0.0
    plan = feed.plan(1)
    assert sorted(index for batch in plan for index in batch) == list(range(500))
    assert all(lengths[batch].sum() <= 100 for batch in plan)
    mixed, alike = (np.mean([np.ptp(lengths[batch]) for batch in of.plan(1)]) for of in (feed, feed_of(lengths, "length")))
    assert mixed > 20 > 2 > alike
    assert feed._read(plan[0], 1)[0] == "flat"


@pytest.mark.parametrize(("lengths", "order"), [([32] * 40 + [7], "mixed"), ([48, 49, 50] * 10, "mixed"),
                                                (list(range(1, 40)), "length")])
def test_blocks_of_about_one_length_and_sorted_ones_stay_padded(lengths, order):
    feed = feed_of(lengths, order)
    assert not feed.is_flat
    assert feed._read(feed.plan(1)[0], 1)[0] == "padded"
