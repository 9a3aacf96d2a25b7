"""Single texts in rows of one shape, as a GPU captures them: losses and gradients are those of rows without a pad."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lamina.config.batches import BatchConfig
from lamina.config.model import LanguageModelConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.cuda_graphs.capture_contract import NoQuestions
from lamina.cuda_graphs.static_batches import shape_of
from lamina.cuda_graphs.train_pass import CapturedPasses
from lamina.data.feed import Feed
from lamina.data.flat_texts import FlatMasked, FlatSentences, FlatTokens, TextShape, end_to_end, flat_row, room_for_count
from lamina.data.layer_subsets import LayerSubsets
from lamina.nn.stack import ALL_LAYERS
from lamina.parts.criteria import CrossEntropy, MaskedLmLoss, SentenceLoss
from lamina.parts.update_rules import Sgd
from lamina.training.loss import batch_loss
from lamina.training.update import Updater
from replayed import Rerunning, sums_and_gradients, without_a_device
from tiny import VOCABULARY_SIZE, tiny_language_model, tiny_masked_model

SHAPE = TextShape(places=64, num_texts=12, longest=16, num_masked=30)
SUBSETS = LayerSubsets(((0.5, 0.3), (0.5, 0.3)), seed=2)
CAPACITIES = {0.5: 64, 0.3: 64}
BANDS = LanguageModelConfig(softmax_cutoff=(10, 20), softmax_factor=2.0)


def texts(seed):
    random = np.random.default_rng(seed)
    return [random.integers(4, VOCABULARY_SIZE, length) for length in random.integers(1, 10, random.integers(4, 8))]


def row_of(rows):
    return {**flat_row(end_to_end(rows)), "indices": tuple(range(len(rows)))}


def tokens(seed):
    rows = texts(seed)
    target = np.random.default_rng([seed, 1]).integers(4, VOCABULARY_SIZE, (1, sum(map(len, rows))))
    return FlatTokens(**row_of(rows), target=torch.from_numpy(target), num_target_tokens=target.size, target_on_host=target)


def masked(seed):
    rows, random = texts(seed), np.random.default_rng([seed, 1])
    places = np.flatnonzero(random.random(sum(map(len, rows))) < 0.3)
    target = torch.from_numpy(random.integers(4, VOCABULARY_SIZE, len(places)))
    return FlatMasked(**row_of(rows), places=torch.from_numpy(places), target=target, num_target_tokens=len(target))


def sentences(seed):
    rows = texts(seed)
    return FlatSentences(**row_of(rows), target=torch.from_numpy(np.random.default_rng(seed).integers(0, 3, len(rows))))


def numbers(seed):
    rows = texts(seed)
    return FlatSentences(**row_of(rows), target=torch.randn(len(rows), generator=torch.Generator().manual_seed(seed)))


KINDS = {"tokens": (tokens, tiny_language_model, CrossEntropy()),
         "bands": (tokens, lambda: tiny_language_model(lm=BANDS), CrossEntropy()),
         "masked": (masked, tiny_masked_model, MaskedLmLoss()),
         "sentences": (sentences, lambda: tiny_masked_model(num_classes=3), SentenceLoss()),
         "numbers": (numbers, lambda: tiny_masked_model(num_classes=1), SentenceLoss())}


def gradients(model, batch, criterion):
    model.zero_grad()
    sums = batch_loss(model, batch, criterion)
    sums.loss.backward()
    return sums, [torch.zeros(()) if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("is_drawn", [False, True], ids=["all layers", "LayerDrop"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_rows_without_pads(kind, is_drawn):
    new_batch, new_model, criterion = KINDS[kind]
    model = new_model()
    for seed in range(3):
        flat = new_batch(seed)
        static = flat.in_shape(SHAPE)
        assert static.recurs
        assert not flat.recurs
        assert (static.num_target_tokens, static.num_sentences) == (flat.num_target_tokens, flat.num_sentences)
        if is_drawn:
            flat = SUBSETS.given_to(flat, 1, seed, is_static=False, capacities={})
            static = SUBSETS.given_to(static, 1, seed, is_static=True, capacities=CAPACITIES)
        (expected, wanted), (found, own) = (gradients(model, batch, criterion) for batch in (flat, static))
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=0)
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_them_have_one_shape_and_ask_the_device_nothing(kind, attention_of_a_gpu):
    new_batch, new_model, criterion = KINDS[kind]
    model = new_model().train()
    batches = [SUBSETS.given_to(new_batch(seed).in_shape(SHAPE), 1, seed, is_static=True, capacities=CAPACITIES)
               for seed in range(4)]
    assert len(set(map(shape_of, batches))) == 1
    with NoQuestions(), model.head.with_room((40, 40) if kind == "bands" else ()):
        batch_loss(model, batches[0], criterion).loss.backward()


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_add_up_to_the_whole(kind):
    new_batch, new_model, criterion = KINDS[kind]
    model, batch = new_model(), new_batch(0).in_shape(SHAPE)
    expected, wanted = gradients(model, batch, criterion)
    parts = [batch.rows(slice(0, 2)), batch.rows(slice(2, batch.num_sentences))]
    assert not any(part.recurs for part in parts)
    sums, found = zip(*(gradients(model, part, criterion) for part in parts), strict=True)
    torch.testing.assert_close(sum(own.loss for own in sums), expected.loss)
    assert sum(part.num_target_tokens for part in parts) == batch.num_target_tokens
    for one, other, whole in zip(*found, wanted, strict=True):
        torch.testing.assert_close(one + other, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_pass_is_that_of_the_batch_at_hand(kind, dtype, monkeypatch, attention_of_a_gpu):
    without_a_device(monkeypatch)
    new_batch, new_model, criterion = KINDS[kind]
    model = new_model()
    updater = Updater(model, OptimizationConfig(optimizer=Sgd(), criterion=criterion, clip_norm=0.0), PrecisionConfig(), dtype)
    passes = CapturedPasses(model, updater.weights, updater.forward_backward, lambda note: None, lambda seconds: None,
                            is_compiled=False)
    passes.recorder = Rerunning()
    for seed in range(3):
        batch = new_batch(seed).in_shape(SHAPE)
        replay = passes.find(batch, ALL_LAYERS, updater.sums)
        assert replay is not None
        torch.testing.assert_close(*sums_and_gradients(updater, batch, replay), rtol=1e-6 if dtype == torch.float32 else 0.02,
                                   atol=1e-6 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize(("kind", "shape"), [("tokens", SHAPE._replace(places=16)), ("tokens", SHAPE._replace(num_texts=3)),
                                             ("masked", SHAPE._replace(num_masked=2))])
def test_what_does_not_fit_stays_as_long_as_it_is(kind, shape):
    batch = KINDS[kind][0](0)
    assert batch.in_shape(shape) is batch


class Texts:
    unit, name, masked_share = "texts", "texts", 0.15

    def __init__(self, lengths, padded_batches_recur=True):
        self.lengths, self.padded_batches_recur = np.asarray(lengths), padded_batches_recur

    def __len__(self):
        return len(self.lengths)

    @property
    def sizes(self):
        return {"input": self.lengths}

    def batch(self, indices, draw):
        return "padded"

    def flat_batch(self, indices, draw):
        rows = [np.full(self.lengths[index], 5) for index in indices]
        return FlatSentences(**flat_row(end_to_end(rows)), indices=tuple(indices), target=torch.zeros(len(rows)).long())


def feed_of(lengths, *, recur=True, subsets=None, **limits):
    return Feed(Texts(lengths, recur), seed=1, limits=BatchConfig(**{"max_tokens": 512, "order": "mixed"} | limits),
                max_positions=(64,), device=torch.device("cpu"), is_shuffled=True, is_packed=True, subsets=subsets)


LENGTHS = np.random.default_rng(0).integers(2, 40, 600)


def test_a_feed_of_texts_has_one_shape_and_the_plan_of_flat_rows():
    feed = feed_of(LENGTHS)
    batches = list(feed.batches(1))
    assert len(set(map(shape_of, batches))) == 1
    assert all(batch.recurs for batch in batches)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(600))
    limits = replace(feed.limits, multiple=1)  # which no row of one shape is filled by
    flat = Feed(feed.corpus, seed=1, limits=limits, max_positions=(64,), device=feed.device, is_shuffled=True)
    assert flat.plan(1) == feed.plan(1)
    assert 0.0 < feed.padding_share(1) < 0.05
    assert flat.padding_share(1) == 0.0
    assert feed.text_shape.num_masked == room_for_count(0.15 * 512)


def test_with_a_limit_on_sentences_rows_are_as_long_as_those_need():
    feed = feed_of(LENGTHS, max_tokens=None, max_sentences=16)
    batches = list(feed.batches(1))
    assert {len(batch.indices) for batch in batches} == {16, 600 % 16}
    assert feed.text_shape.places == 512  # of 16 times 20.5, and room for chance
    assert np.mean([batch.recurs for batch in batches]) > 0.95


def test_draws_of_layers_have_one_shape():
    feed = feed_of(LENGTHS, subsets=LayerSubsets(((0.3, 0.5), (0.0,)), seed=1))
    batches = list(feed.batches(1))
    shapes = {shape_of(batch) for batch in batches if batch.recurs}
    assert len(shapes) == 1
    assert np.mean([batch.recurs for batch in batches]) > 0.9


@pytest.mark.parametrize(("lengths", "recur", "is_packed"), [([32] * 199 + [7], True, False), ([32] * 200, False, True),
                                                             ([31, 32] * 100, True, True)])
def test_blocks_are_packed_where_padded_ones_would_not_recur(lengths, recur, is_packed):
    feed = feed_of(lengths, recur=recur)
    assert feed.is_flat == (feed.text_shape is not None) == is_packed
