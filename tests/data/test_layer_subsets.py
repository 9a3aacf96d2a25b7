"""LayerDrop per sentence: the rule, what a draw depends on, and the shapes that a GPU replays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lamina.config.batches import BatchConfig
from lamina.data import layer_subsets
from lamina.data.batching import TokenBatch
from lamina.data.feed import Feed
from lamina.data.layer_subsets import OWN_MULTIPLE, LayerSubsets, chosen_sentences, most_chosen
from lamina.data.packing import PackedShape, Sentences, packed
from lamina.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.73])
@pytest.mark.parametrize("number", [1, 3, 40])
def test_each_sentence_runs_with_the_same_probability_and_the_share_is_even(rate, number):
    random = np.random.default_rng(1)
    draws = np.array([chosen_sentences(random, number, rate) for _ in range(20_000 // number)])
    counts = draws.sum(axis=1)
    assert set(counts.tolist()) <= {int(np.floor(number * (1 - rate))), int(np.ceil(number * (1 - rate) - 1e-9))}
    assert counts.max() <= most_chosen(number, rate)
    error = 4 * np.sqrt(rate * (1 - rate) / len(draws))
    assert np.abs(draws.mean(axis=0) - (1 - rate)).max() < error
    if number == 40:  # whom a draw takes says nothing of the neighbours: all pairs alike
        together = (draws[:, :-1] & draws[:, 1:]).mean()
        apart = (draws[:, :20] & draws[:, 20:]).mean()
        assert together == pytest.approx(apart, abs=0.01)


def sentences(sizes):
    return Sentences(np.full(int(np.sum(sizes)), 7), np.asarray(sizes))


def captions(random, number):
    """Lengths as Multi30k's: of both sides, and not independent of each other."""
    source = np.maximum(2, random.gamma(7.0, 2.0, number).astype(int))
    return source, np.maximum(2, (source * random.uniform(0.7, 1.3, number)).astype(int))


class Pairs:
    """A corpus of pairs of these lengths, as far as a feed asks."""

    unit, name = "sentence pairs", "captions"

    def __init__(self, source, target):
        self.sizes = {"source": source, "target": target}
        self.lengths = np.maximum(source, target)

    def __len__(self):
        return len(self.lengths)

    def packed_batch(self, indices, shape):
        return packed(*(sentences(sizes[indices]) for sizes in self.sizes.values()), shape, indices)


def packed_batches(rates, *, max_tokens=2048, number=3000, seed=0):
    random = np.random.default_rng(seed)
    source, target = captions(random, number)
    shape = PackedShape.of([source, target], max_tokens, None)
    subsets = LayerSubsets(rates, seed=1)
    capacities = subsets.capacities(shape, [source, target])
    feed = Feed(Pairs(source, target), seed=1, limits=BatchConfig(max_tokens=max_tokens), max_positions=(1024, 1024),
                device=CPU, is_shuffled=True, is_packed=True)
    for epoch in (1, 2):
        for place, indices in enumerate(feed.plan(epoch)):
            batch = packed(sentences(source[indices]), sentences(target[indices]), shape, indices)
            yield subsets.given_to(batch, epoch, place, is_static=True, capacities=capacities), source[indices], target[indices]


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_every_length_runs_each_layer_as_often(rate, monkeypatch):
    """Also where draws that exceed the capacity of a packed subset are drawn again: the long ones lose nothing by it."""
    tries = []
    monkeypatch.setattr(layer_subsets, "chosen_sentences", lambda *args: tries.append(args) or chosen_sentences(*args))
    lengths, runs = [], []
    for batch, source, target in packed_batches(((rate,) * 12, (rate,) * 12)):
        lengths += [np.maximum(source, target)] * 24
        runs += [own for stack in batch.draw.chosen for own in stack]
        assert batch.recurs
    draws, lengths, runs = len(runs), np.concatenate(lengths), np.concatenate(runs)
    assert len(tries) - draws < max(2, draws / 1000), "drawn again too often"
    assert runs.mean() == pytest.approx(1 - rate, abs=0.002)
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    quartile = np.searchsorted(edges, lengths)
    for number in range(4):
        assert runs[quartile == number].mean() == pytest.approx(1 - rate, abs=0.006)


def test_packed_subsets_have_one_shape_and_a_capacity_near_the_share():
    for rate, most in ((0.2, 0.88), (0.5, 0.57)):
        shapes = {batch.draw.shape for batch, *_ in packed_batches(((rate,) * 2, (rate,) * 2), max_tokens=4096)}
        assert len(shapes) == 1
        (shape,) = shapes
        sides = list(shape.sides())
        assert len(sides) == 2 + 4  # an encoder layer has its own side, a decoder layer also what it reads
        assert len({side.places for side in sides}) == 1
        places = sides[0].places
        assert places % 128 == 0
        assert (1 - rate) * 4096 <= places <= most * 4096


def test_shapes_of_their_own_are_few():
    """Filled up with pads, which are no sentence's: a CPU makes its kernels for each number of places."""
    random, subsets = np.random.default_rng(0), LayerSubsets(((0.2, 0.2), (0.2, 0.2)), seed=1)
    shapes = set()
    for number in range(30):
        source, target = captions(random, 60)
        shape = PackedShape(2048, 60, int(max(source.max(), target.max())))
        batch = subsets.given_to(packed(sentences(source), sentences(target), shape, range(60)), 1, number, is_static=False,
                                 capacities={})
        for stack in batch.draw.subsets(batch.drawn):
            for subset in stack:
                assert subset.own.bounds.shape == subset.memory.bounds.shape
                for side in (subset.own, subset.memory):
                    kept = int((side.taken < side.back.size(0)).sum())
                    assert kept <= len(side.taken) < kept + OWN_MULTIPLE
                    assert side.is_full == (kept == len(side.taken))
                    assert int(side.bounds[-1]) == len(side.taken)
                    shapes.add(len(side.taken))
    assert len(shapes) < 15


def test_rates_of_their_own_share_a_few_capacities():
    rates = tuple(0.5 * (layer + 1) / 18 for layer in range(18))
    sizes = captions(np.random.default_rng(0), 5000)
    shape = PackedShape.of(sizes, 16384, None)
    capacities = LayerSubsets((rates, rates), seed=1).capacities(shape, sizes)
    assert len(capacities) == 18
    assert len(set(capacities.values())) <= 10
    assert all((1 - rate) * 16384 <= places <= 16384 for rate, places in capacities.items())


def test_a_draw_depends_on_seed_epoch_number_stack_and_layer_alone():
    def draw(rates=((0.5,) * 4, (0.5,) * 4), seed=1, epoch=1, number=3):
        return LayerSubsets(rates, seed).draw(epoch, number, 40, lambda *_: True).chosen

    def text(stacks):
        return [[None if own is None else own.tolist() for own in stack] if stack else None for stack in stacks]

    first = text(draw())
    assert text(draw()) == first
    assert all(text(draw(**other)) != first for other in ({"seed": 2}, {"epoch": 2}, {"number": 4}))
    masks = [own for stack in first for own in stack]
    assert len({str(own) for own in masks}) == 8  # encoder and decoder, and layers, draw separately
    alone = text(draw(rates=((0.0,) * 4, (0.0, 0.5, 0.2, 0.5))))
    assert alone[0] is None
    assert alone[1][0] is None
    assert alone[1][1] == first[1][1]
    assert alone[1][3] == first[1][3]


def test_a_batch_of_very_different_lengths_is_not_made_to_fit():
    """Or its longest sentence would hardly ever run a layer: it has a shape of its own, and runs eagerly."""
    shape = PackedShape(places=512, max_sentences=40, longest=512)
    sizes = np.array([450, *[4] * 15])
    subsets = LayerSubsets(((0.4,), ()), seed=1)
    runs = []
    for number in range(400):
        batch = subsets.given_to(packed(sentences(sizes), sentences(sizes), shape, range(16)), 1, number, is_static=True,
                                 capacities={0.4: 384})
        assert not batch.recurs
        runs.append(batch.draw.chosen[0][0][0])
    assert np.mean(runs) == pytest.approx(0.6, abs=0.08)


def test_parts_of_a_batch_keep_their_part_of_the_draw():
    for batch, source, _ in list(packed_batches(((0.5,) * 3, (0.5, 0.0, 0.5)), max_tokens=512, number=200))[:3]:
        middle = len(source) // 2
        for rows in (slice(0, middle), slice(middle, len(source))):
            part = batch.rows(rows)
            for whole, own in zip(batch.draw.chosen, part.draw.chosen, strict=True):
                for one, other in zip(whole, own, strict=True):
                    assert other is None if one is None else one[rows].tolist() == other.tolist()
            assert part.drawn is not None
            assert not part.recurs
    tokens = torch.arange(12).view(4, 3)
    given = LayerSubsets(((), (0.5,)), 1).given_to(TokenBatch(tokens, tokens, 12, (0, 1, 2, 3)), 1, 0, is_static=False,
                                                   capacities={})
    assert given.rows(slice(2, 4)).draw.chosen[1][0].tolist() == given.draw.chosen[1][0][2:].tolist()


def test_a_batch_that_cannot_carry_a_draw_is_refused():
    class Other:
        num_sentences = 3

    with pytest.raises(ConfigError, match="Other has no fields `drawn` and `draw`"):
        LayerSubsets(((0.5,), ()), 1).given_to(Other(), 1, 0, is_static=False, capacities={})


def test_a_feed_draws_by_the_number_in_the_plan_wherever_it_begins():
    class Blocks:
        unit, name = "blocks", "text"
        lengths = np.full(64, 4)
        sizes = {"target": lengths}  # noqa: RUF012

        def __len__(self):
            return 64

        def batch(self, indices, draw):
            tokens = torch.ones(len(indices), 4, dtype=torch.long)
            return TokenBatch(tokens, tokens, 4 * len(indices), tuple(indices))

    feed = Feed(Blocks(), seed=3, limits=BatchConfig(max_tokens=32, multiple=1), max_positions=(64,), device=CPU,
                is_shuffled=True, subsets=LayerSubsets(((), (0.5, 0.5)), 3))

    def draws(batches):
        return [[own.tolist() for own in batch.draw.chosen[1]] for batch in batches]

    whole = draws(feed.batches(2))
    assert len(whole) == 8
    assert draws(feed.batches(2, 3)) == whole[3:]
    assert draws(feed.batches(2, 1, rank=1, size=2)) == whole[2::2]
    shares = list(feed.shares(2, 2, 2, rank=0, size=2))
    assert [draws(share.batches) for share in shares] == [[whole[2], whole[4]], [whole[6]]]
    assert draws(replace_workers(feed).batches(2)) == whole


def replace_workers(feed):
    feed.limits = replace(feed.limits, num_workers=0)
    return feed
