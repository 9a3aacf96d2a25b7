"""Corpora, batches and their order."""

import json
import threading

import numpy as np
import pytest
import torch

from golden_files import GOLDEN, read_json
from lamina.config.batches import BatchConfig
from lamina.data.batching import batch_by_size, collate
from lamina.data.corpus import Example, Languages, ParallelCorpus, find_languages, load_dictionaries, open_corpus
from lamina.data.feed import Feed
from lamina.errors import DataError
from tiny import make_data

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", read_json("batch_by_size", "cases_fs09.json"), ids=lambda case: json.dumps(case["args"]))
def test_batches_equal_the_references(case):
    arguments = {"max_tokens": case["args"].get("max_tokens"), "max_sentences": case["args"].get("max_sentences"),
                 "multiple": case["args"].get("required_batch_size_multiple", 1)}
    if case["error"]:
        with pytest.raises(DataError, match="example 32 has 31 tokens"):
            batch_by_size(case["order"], np.array(case["lengths"]), **arguments)
    else:
        assert batch_by_size(case["order"], np.array(case["lengths"]), **arguments) == case["batches"]


def test_collate_pads_right_and_shifts_the_target():
    batch = collate([Example(np.array([5, 6, 2]), np.array([7, 2])), Example(np.array([5, 2]), np.array([7, 8, 9, 2]))], [4, 9])
    assert batch.source.tolist() == [[5, 6, 2], [5, 2, 1]]
    assert batch.target_in.tolist() == [[2, 7, 1, 1], [2, 7, 8, 9]]
    assert batch.target_out.tolist() == [[7, 2, 1, 1], [7, 8, 9, 2]]
    assert (batch.num_source_tokens, batch.num_target_tokens, batch.num_sentences) == (5, 6, 2)
    assert batch.indices == (4, 9)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = make_data(tmp_path_factory.mktemp("feed"), num_lines=60)
    sizes = tuple(len(vocabulary) for vocabulary in load_dictionaries(folder, Languages("en", "xx")))
    return open_corpus(folder, "train", Languages("en", "xx"), sizes)


def feed_of(corpus, seed=1, is_shuffled=True, max_positions=(64, 64), **limits):
    return Feed(corpus, seed=seed, limits=BatchConfig(**{"max_tokens": 50, "multiple": 1} | limits), device=CPU,
                max_positions=max_positions, is_shuffled=is_shuffled)


def test_every_sentence_comes_once_an_epoch(corpus):
    feed = feed_of(corpus, multiple=4)
    for epoch in (1, 2):
        seen = [index for batch in feed.batches(epoch) for index in batch.indices]
        assert sorted(seen) == list(range(60))


@pytest.mark.parametrize("has_fillers", [False, True])
@pytest.mark.parametrize(("size", "update_freq", "start"), [(1, 3, 0), (2, 1, 0), (2, 2, 3), (4, 1, 0), (4, 3, 5), (20, 1, 0)])
def test_ranks_share_an_epoch_without_loss_or_duplication(corpus, size, update_freq, start, has_fillers):
    feed = feed_of(corpus)
    plan = list(map(tuple, feed.plan(1)[start:]))
    by_rank = [list(feed.shares(1, start, update_freq, rank, size, has_fillers=has_fillers)) for rank in range(size)]
    updates = list(zip(*by_rank, strict=True))  # as many on every rank
    seen = []
    for shares in updates:
        (total,) = {share.total for share in shares}
        assert total <= update_freq * size
        places = {rank + number * size: batch.indices for rank, share in enumerate(shares)
                  for number, batch in enumerate(share.batches)}
        seen += [places[place] for place in range(total)]
        if has_fillers:
            assert len({len(share.batches) for share in shares}) == 1
        else:
            assert len(places) == total
    assert seen == plan
    assert sum(shares[0].total for shares in updates) == len(plan)


def test_batches_stay_within_their_limit(corpus):
    for batch in feed_of(corpus).batches():
        assert max(batch.source.numel(), batch.target_out.numel()) <= 50
    assert max(batch.num_sentences for batch in feed_of(corpus, max_tokens=None, max_sentences=7).batches()) == 7


def test_order_is_decided_by_seed_and_epoch(corpus):
    def indices(**options):
        epoch = options.pop("epoch", 1)
        return [batch.indices for batch in feed_of(corpus, **options).batches(epoch)]

    assert indices() == indices()
    assert indices() != indices(epoch=2)
    assert indices() != indices(seed=2)
    in_order = indices(is_shuffled=False)
    assert in_order == indices(is_shuffled=False, epoch=2)
    lengths = [max(corpus.source_sizes[list(batch)]) for batch in in_order]
    assert lengths == sorted(lengths)
    early = [max(corpus.source_sizes[list(batch)]) for batch in indices(curriculum=1)]
    assert early == sorted(early)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_preparing_ahead_changes_nothing(corpus, num_workers):
    reference = [batch.source.tolist() for batch in feed_of(corpus, num_workers=0).batches(1)]
    assert [batch.source.tolist() for batch in feed_of(corpus, num_workers=num_workers).batches(1)] == reference
    # From the middle on: what resuming asks for.
    assert [batch.source.tolist() for batch in feed_of(corpus, num_workers=num_workers).batches(1, start=3)] == reference[3:]


def test_batches_are_prepared_off_the_main_thread(corpus, monkeypatch):
    threads = set()
    load = Feed._load
    monkeypatch.setattr(Feed, "_load", lambda *given: threads.add(threading.current_thread()) or load(*given))
    list(feed_of(corpus, num_workers=1).batches())
    assert threads
    assert threading.main_thread() not in threads


def test_leaving_early_ends_the_threads(corpus):
    before = threading.active_count()
    batches = feed_of(corpus, num_workers=2).batches()
    next(batches)
    batches.close()
    for thread in threading.enumerate():
        if thread.name.startswith("batches"):
            thread.join(timeout=5)
    assert threading.active_count() == before


def test_too_long_pairs_are_counted_and_named(corpus):
    feed = feed_of(corpus, max_positions=(6, 64))
    too_long = np.flatnonzero(corpus.source_sizes > 6)
    assert len(too_long) > 10
    text = feed.describe_too_long()
    assert f"{len(too_long)} of 60 pairs" in text
    assert f": {too_long[0]}, {too_long[1]}" in text
    assert "6 source or 64 target positions" in text
    seen = {index for batch in feed.batches() for index in batch.indices}
    assert seen == set(range(60)) - set(too_long.tolist())
    # The limit on tokens counts too: such a pair would fit into no batch.
    assert len(feed_of(corpus, max_tokens=6).too_long.indices) == len(np.flatnonzero(corpus.lengths > 6))


def test_mixed_batches_are_those_of_packed_rows(corpus):
    """Flat rows: the plan of a GPU, without its pads."""
    mixed, limits = feed_of(corpus, order="mixed"), BatchConfig(max_tokens=50, order="mixed")
    on_gpu = Feed(corpus, seed=1, limits=limits, device=CPU, max_positions=(64, 64), is_shuffled=True, is_packed=True)
    assert mixed.plan(2) == on_gpu.plan(2)
    assert mixed.padding_share(2) == 0.0
    for batch, indices in zip(mixed.batches(2), mixed.plan(2), strict=True):
        assert batch.indices == tuple(indices)
        assert [rows.ids.numel() for rows in batch.inputs] == [batch.num_source_tokens, batch.num_target_tokens]
        assert batch.target.eq(1).sum() == 0
        assert max(rows.ids.numel() for rows in batch.inputs) <= 50


def packed_feed_of(corpus, **limits):
    own = BatchConfig(**{"order": "mixed", "max_tokens": None, "multiple": 1} | limits)
    return Feed(corpus, seed=1, limits=own, device=CPU, max_positions=(64, 64), is_shuffled=True, is_packed=True)


def test_rows_of_so_many_sentences_have_one_shape_too(corpus):
    feed = packed_feed_of(corpus, max_sentences=12)
    batches = list(feed.batches(1))
    assert sorted(index for batch in batches for index in batch.indices) == list(range(60))
    assert {batch.shape for batch in batches} == {feed.packed_shape}
    assert max(batch.num_sentences for batch in batches) == 12
    assert len(batches) <= 6  # of 5, if chance makes none longer
    most = packed_feed_of(corpus, max_sentences=4, max_tokens=2048).packed_shape
    assert most.places < 512  # where four sentences never fill 2048 places
    assert packed_feed_of(corpus, max_tokens=512).packed_shape.places == 512


@pytest.mark.parametrize("limits", [{"order": "length"}, {"curriculum": 1}])
def test_so_many_sentences_in_order_of_length_have_rows_of_their_own(corpus, limits):
    feed = packed_feed_of(corpus, max_sentences=12, **limits)
    assert feed.packed_shape is None
    assert [len(batch.indices) for batch in feed.batches(1)] == [12] * 5
    assert packed_feed_of(corpus, max_sentences=12, max_tokens=128, **limits).packed_shape.places == 128


def test_mixed_batches_keep_their_limits(corpus):
    plan = feed_of(corpus, order="mixed", max_tokens=None, max_sentences=7).plan(1)
    assert list(map(len, plan)) == [7] * 8 + [4]
    plan = feed_of(corpus, order="mixed", max_tokens=200, multiple=4).plan(1)
    assert all(len(batch) % 4 == 0 for batch in plan[:-1])
    assert sorted(index for batch in plan for index in batch) == list(range(60))
    lengths = corpus.source_sizes
    early = feed_of(corpus, order="mixed", curriculum=1)
    assert [lengths[index] for batch in early.plan(1) for index in batch] == sorted(lengths)
    spread = [np.ptp(lengths[batch]) for batch in early.plan(2)]
    assert np.mean(spread) > 2 * np.mean([np.ptp(lengths[batch]) for batch in feed_of(corpus, order="length").plan(2)])


def test_packed_rows_of_one_length_if_asked_for(corpus):
    limits = BatchConfig(max_tokens=50, order="length")
    feed = Feed(corpus, seed=1, limits=limits, device=CPU, max_positions=(64, 64), is_shuffled=True, is_packed=True)
    firsts = [corpus.source_sizes[batch[0]] for batch in feed.plan(1)]
    assert firsts != sorted(firsts)
    assert all((np.diff(corpus.source_sizes[batch]) >= 0).all() for batch in feed.plan(1))
    assert sorted(index for batch in feed.plan(1) for index in batch) == list(range(60))


def test_padding_share(corpus):
    feed = feed_of(corpus)
    tokens = sum(batch.num_source_tokens + batch.num_target_tokens for batch in feed.batches())
    cells = sum(batch.source.numel() + batch.target_out.numel() for batch in feed.batches())
    assert feed.padding_share(1) == pytest.approx(1 - tokens / cells)


def test_nothing_fits(corpus):
    with pytest.raises(DataError, match="nothing that fits"):
        feed_of(corpus, max_positions=(1, 1))


def test_an_error_while_preparing_reaches_the_reader(corpus, monkeypatch):
    def fail(self, indices, epoch, number):
        raise DataError("broken")

    monkeypatch.setattr(Feed, "_load", fail)
    with pytest.raises(DataError, match="broken"):
        list(feed_of(corpus).batches())


# -- folders

FAIRSEQ_FOLDER = GOLDEN / "databin_mmap" / "joined"


def test_a_folder_of_fairseq_opens():
    languages = find_languages(FAIRSEQ_FOLDER, "train", None, None)
    assert languages == ("en", "fr")
    source, target = load_dictionaries(FAIRSEQ_FOLDER, languages)
    corpus = open_corpus(FAIRSEQ_FOLDER, "train", languages, (len(source), len(target)))
    ids = read_json("databin_mmap", "ids.json")["joined"]
    assert [example.source.tolist() for example in map(corpus.__getitem__, range(len(corpus)))] == ids["train.en"]["ids"]


def test_a_folder_serves_both_directions():
    assert find_languages(FAIRSEQ_FOLDER, "train", "fr", None) == ("fr", "en")
    forward = open_corpus(FAIRSEQ_FOLDER, "valid", Languages("en", "fr"), (256, 256))
    backward = open_corpus(FAIRSEQ_FOLDER, "valid", Languages("fr", "en"), (256, 256))
    assert forward[1].source.tolist() == backward[1].target.tolist()


def test_missing_things_are_named(tmp_path):
    with pytest.raises(DataError, match="there is no data folder"):
        find_languages(tmp_path / "nowhere", "train", None, None)
    with pytest.raises(DataError, match="there are none"):
        find_languages(tmp_path, "train", None, None)
    with pytest.raises(DataError, match="no split 'test'"):
        open_corpus(FAIRSEQ_FOLDER, "test", Languages("en", "fr"), (256, 256))


def test_a_dictionary_that_does_not_match_is_noticed():
    corpus = open_corpus(FAIRSEQ_FOLDER, "train", Languages("en", "fr"), (20, 256))
    with pytest.raises(DataError, match="its dictionary of 20 symbols does not have"):
        [corpus[index] for index in range(len(corpus))]


class Rows(list):
    @property
    def sizes(self):
        return np.array([len(row) for row in self], dtype=np.int32)


def rows(*lengths):
    return Rows(np.array([5] * (length - 1) + [2]) for length in lengths)


def test_parts_are_joined_and_sources_truncated():
    corpus = ParallelCorpus([(rows(3, 4), rows(2, 2)), (rows(9), rows(5))], (6, 6), "x", max_source_length=6)
    assert len(corpus) == 3
    assert corpus.source_sizes.tolist() == [3, 4, 6]
    assert corpus[2].source.tolist() == [5, 5, 5, 5, 5, 2]
    assert len(corpus[1].source) == 4


def test_sides_must_be_aligned():
    with pytest.raises(DataError, match="2 source and 1 target"):
        ParallelCorpus([(rows(3, 4), rows(2))], (6, 6), "x")


def test_a_place_in_an_epoch_is_found_again_in_other_batches(corpus, tmp_path):
    def feed(own=corpus, seed=1, max_tokens=40):
        return Feed(own, seed=seed, limits=BatchConfig(max_tokens=max_tokens, num_workers=0), max_positions=(1024, 1024),
                    device=CPU, is_shuffled=True)

    place = feed().place(2, 5)
    done = [index for batch in feed().plan(2)[:5] for index in batch]
    assert place.sentences == len(done)
    assert feed().is_planned_as(2, place)
    assert feed().find(2, place) == 5
    assert feed().place(2, 0) == ("", "", 0)
    for other in (feed(seed=2), feed(max_tokens=80)):
        assert not other.is_planned_as(2, place)
        found = other.find(2, place)
        sizes = [len(batch) for batch in other.plan(2)]
        assert sum(sizes[: found - 1]) < len(done) <= sum(sizes[:found])
    assert not feed().is_planned_as(3, place)
    # Fewer sentences fit than were done: the epoch is over, not beyond its end.
    short = feed(max_tokens=int(np.sort(corpus.lengths)[3]))
    assert short.find(2, place) == len(short.plan(2))
    folder = make_data(tmp_path, num_lines=61)
    sizes = tuple(len(vocabulary) for vocabulary in load_dictionaries(folder, Languages("en", "xx")))
    assert feed(open_corpus(folder, "train", Languages("en", "xx"), sizes)).find(2, place) is None
