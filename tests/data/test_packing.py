"""Packed batches say to a model what padded ones say."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from lamina.config.batches import BatchConfig
from lamina.data.batching import collate
from lamina.data.corpus import Example, Languages, ParallelCorpus, open_corpus
from lamina.data.feed import Feed
from lamina.data.packing import PackedShape, Sentences, flat, packed, plan_packed
from lamina.errors import DataError
from lamina.nn.layout import PackedLayout, lay_out
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.text.vocabulary import EOS, PAD
from lamina.training.loss import batch_loss
from tiny import FUSIONS, VOCABULARY_SIZE, make_data, tiny_model

CRITERION = LabelSmoothedCrossEntropy(smoothing=0.1)
SHAPE = PackedShape(places=160, max_sentences=12, longest=128)


def examples(seed: int = 0, number: int = 9) -> list[Example]:
    random = np.random.default_rng(seed)

    def side() -> np.ndarray:
        return np.append(random.integers(4, VOCABULARY_SIZE, random.integers(1, 15)), EOS)

    return [Example(side(), side()) for _ in range(number)]


def end_to_end(sides: list[np.ndarray]) -> Sentences:
    return Sentences(np.concatenate(sides), np.array([len(side) for side in sides]))


def packed_of(pairs: list[Example], shape: PackedShape = SHAPE):
    return packed(end_to_end([pair.source for pair in pairs]), end_to_end([pair.target for pair in pairs]), shape,
                  range(len(pairs)))


def loss_and_gradients(model, batch):
    model.zero_grad()
    sums = batch_loss(model, batch, CRITERION)
    sums.loss.backward()
    return sums, {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("parts", [{}, *FUSIONS.values()], ids=["plain", *FUSIONS])
def test_loss_and_gradients_are_those_of_padded_rows(parts):
    model = tiny_model(**parts).double()
    pairs = examples()
    sums, gradients = loss_and_gradients(model, collate(pairs, range(len(pairs))))
    other_sums, other_gradients = loss_and_gradients(model, packed_of(pairs))
    torch.testing.assert_close(other_sums.loss, sums.loss, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(other_sums.nll, sums.nll, rtol=1e-5, atol=1e-4)
    assert other_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max() + 1e-3),
                                   msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("parts", [{}, *FUSIONS.values()], ids=["plain", *FUSIONS])
def test_flat_rows_say_the_same_without_a_pad(parts):
    model = tiny_model(**parts).double()
    pairs = examples(seed=1, number=14)
    batch = flat(*(end_to_end([pair[side] for pair in pairs]) for side in range(2)), range(len(pairs)))
    assert [rows.ids.numel() for rows in batch.inputs] == [batch.num_source_tokens, batch.num_target_tokens]
    sums, gradients = loss_and_gradients(model, collate(pairs, range(len(pairs))))
    other_sums, other_gradients = loss_and_gradients(model, batch)
    torch.testing.assert_close(other_sums.loss, sums.loss, rtol=1e-5, atol=1e-4)
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max() + 1e-3),
                                   msg=lambda text, name=name: f"{name}: {text}")
    halves = [batch.rows(rows) for rows in (slice(0, 5), slice(5, 14))]
    assert sum((half.indices for half in halves), ()) == batch.indices
    total = sum(batch_loss(model, half, CRITERION).loss for half in halves)
    torch.testing.assert_close(total, sums.loss, rtol=1e-5, atol=1e-4)
    assert all(not rows.is_pad.any() for half in halves for rows in half.inputs)


def test_what_lies_where():
    batch = packed_of([Example(np.array([5, 6, 2]), np.array([7, 2])), Example(np.array([5, 2]), np.array([7, 8, 9, 2]))])
    source, target_in = batch.inputs
    assert source.ids[0, :6].tolist() == [5, 6, 2, 5, 2, PAD]
    assert source.positions[0, :6].tolist() == [2, 3, 4, 2, 3, 1]
    assert target_in.ids[0, :7].tolist() == [2, 7, 2, 7, 8, 9, PAD]
    assert batch.target[0, :7].tolist() == [7, 2, 7, 8, 9, 2, PAD]
    # Pads form sentences of at most the longest length, so that no place belongs to none.
    assert source.bounds.tolist()[:5] == [0, 3, 5, 133, 160]
    assert target_in.bounds.tolist()[:5] == [0, 2, 6, 134, 160]
    assert (source.bounds[4:] == 160).all()
    assert len(source.bounds) == SHAPE.num_bounds
    assert (batch.num_source_tokens, batch.num_target_tokens, source.longest) == (5, 6, 128)


def test_all_sides_lie_in_the_one_buffer_and_nothing_else_does():
    batch = packed_of(examples())
    sides = batch.sides
    parts = [*sides.source[:4], *sides.target[:4], sides.target_in.ids]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), batch.buffer)
    assert all(part.untyped_storage().data_ptr() == batch.buffer.data_ptr() for part in parts)
    assert all(own is of_target for own, of_target in zip(sides.target_in[1:], sides.target[1:], strict=True))


def test_a_layout_has_the_fields_of_the_packed_row():
    source, _ = packed_of(examples()).inputs
    ids, layout = lay_out(source, PAD)
    assert isinstance(layout, PackedLayout)
    assert layout._fields == source._fields
    assert torch.equal(layout.is_pad, ids.eq(PAD))
    assert torch.equal(layout.position_ids(), source.positions)


@pytest.mark.parametrize("rows", [slice(0, 4), slice(4, 9), slice(8, 9)])
def test_some_sentences_as_a_batch_of_their_own(rows):
    model, pairs = tiny_model(), examples()
    cut = packed_of(pairs).rows(rows)
    expected = batch_loss(model, collate(pairs[rows], range(len(pairs[rows]))), CRITERION)
    torch.testing.assert_close(batch_loss(model, cut, CRITERION).loss, expected.loss, rtol=1e-5, atol=1e-4)
    assert cut.indices == tuple(range(9))[rows]
    assert cut.shape.places % 128 == 0


def test_every_sentence_is_planned_once_and_fits():
    random = np.random.default_rng(0)
    sizes = [random.integers(1, 60, 1000), random.integers(1, 90, 1000)]
    shape = PackedShape.of(sizes, 512, None)
    order = random.permutation(1000)
    batches = plan_packed(order, sizes, shape)
    assert list(chain.from_iterable(batches)) == order.tolist()
    for batch in batches:
        assert len(batch) <= shape.max_sentences
        assert all(side[batch].sum() <= 512 for side in sizes)
    for batch, following in pairwise(batches):  # none ends early without need
        assert len(batch) == shape.max_sentences or any(side[batch].sum() + side[following[0]] > 512 for side in sizes)


def test_a_limit_on_sentences_counts_too():
    sizes = [np.full(100, 4), np.full(100, 4)]
    shape = PackedShape.of(sizes, 4096, 30)
    assert [len(batch) for batch in plan_packed(np.arange(100), sizes, shape)] == [30, 30, 30, 10]


def test_a_feed_of_packed_batches_holds_the_corpus(tmp_path):
    make_data(tmp_path)
    corpus = open_corpus(tmp_path / "data", "train", Languages("en", "xx"), (48, 48), upsample_primary=2)
    feed = Feed(corpus, seed=1, limits=BatchConfig(max_tokens=128), max_positions=(64, 64), device=torch.device("cpu"),
                is_shuffled=True, is_packed=True)
    seen: list[int] = []
    for batch in feed.batches(1):
        seen += batch.indices
        source, _ = batch.inputs
        for place, index in enumerate(batch.indices):
            first, stop = source.bounds[place : place + 2].tolist()
            assert source.ids[0, first:stop].tolist() == corpus[index].source.tolist()
    assert sorted(seen) == list(range(len(corpus)))
    tokens = sum(int(sizes.sum()) for sizes in corpus.sizes.values())
    assert feed.padding_share(1) == pytest.approx(1 - tokens / (2 * 128 * len(feed.plan(1))))
    assert feed.plan(1) != feed.plan(2)


def test_cut_sources_and_foreign_ids_are_seen_in_one_go(tmp_path):
    make_data(tmp_path)
    readers = open_corpus(tmp_path / "data", "train", Languages("en", "xx"), (48, 48))._parts
    corpus = ParallelCorpus(readers, (48, 48), "short", max_source_length=3)
    indices = list(range(8))
    source = corpus.packed_batch(indices, SHAPE).inputs[0]
    expected = np.concatenate([corpus[index].source for index in indices])
    assert source.ids[0, : len(expected)].tolist() == expected.tolist()
    with pytest.raises(DataError, match="holds ids that its dictionary of 5 symbols does not have"):
        ParallelCorpus(readers, (5, 5), "foreign").packed_batch(indices, SHAPE)
