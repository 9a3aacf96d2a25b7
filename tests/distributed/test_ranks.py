"""Several processes do what one does: sums, gradients, masks and updates."""

import threading

import pytest
import torch
from torch import distributed as dist

from lamina.distributed.matrix_exchange import owners_of
from lamina.distributed.ranks import ALONE, Ranks
from lamina.distributed.replicated import buckets, is_skipped
from lamina.nn.stack import ActiveLayers
from rank_work import CASES, COMPILED, PAIRS, REPLAYED, WITHOUT_DROPOUT, alone, muon_steps, read, reference, run_on


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request, tmp_path_factory):
    """Started once for each number of ranks: most of the time goes into importing torch."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    run_on(request.param, folder)
    return request.param, folder


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_ranks_with_a_batch_each_equal_one_rank_that_accumulates(outcomes, name, kind):
    size, folder = outcomes
    expected = reference(CASES[name])
    for rank in range(size):
        found = read(folder, name, kind, rank)
        assert found.masks == expected.masks  # all ranks know what all skip
        assert found.counts == expected.counts
        torch.testing.assert_close(found.numbers, expected.numbers, rtol=1e-5, atol=1e-6)
        assert found.weights.keys() == (expected.weights.keys() if rank == 0 or kind == "replicated" else set())
        for parameter in found.weights:
            value = expected.weights[parameter]
            torch.testing.assert_close(found.weights[parameter], value, rtol=0, atol=1e-6, msg=parameter)


@pytest.mark.parametrize("kind", ["replayed", "replayed, gathered"])
@pytest.mark.parametrize(("name", "dtype"), REPLAYED)
def test_ranks_that_replay_equal_one_rank_that_replays(outcomes, name, dtype, kind):
    """Whatever is replayed where: ranks that do not replay send the same pieces in the same order."""
    size, folder = outcomes
    expected = reference(CASES[name], dtype, is_replayed=True)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for rank in range(size):
        found = read(folder, name, f"{kind} {dtype}", rank)
        assert found.counts == expected.counts
        torch.testing.assert_close(found.numbers, expected.numbers, **tolerance)
        for parameter in found.weights:
            torch.testing.assert_close(found.weights[parameter], expected.weights[parameter], msg=parameter, **tolerance)


@pytest.mark.parametrize("name", COMPILED)
def test_ranks_that_compile_layers_of_sharded_weights_equal_one_that_does_not(outcomes, name):
    size, folder = outcomes
    expected = reference(COMPILED[name])
    for rank in range(size):
        found = read(folder, name, "compiled", rank)
        assert found.counts == expected.counts
        torch.testing.assert_close(found.numbers, expected.numbers, rtol=1e-5, atol=1e-6)
        for parameter in found.weights:
            torch.testing.assert_close(found.weights[parameter], expected.weights[parameter], rtol=0, atol=1e-6, msg=parameter)


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_have_the_same_bits(outcomes, name):
    size, folder = outcomes
    first = read(folder, name, "replicated", 0)
    for rank in range(1, size):
        other = read(folder, name, "replicated", rank)
        assert other.numbers == first.numbers
        assert all(torch.equal(other.weights[parameter], value) for parameter, value in first.weights.items())


def test_a_rank_that_is_short_of_memory_keeps_up(outcomes):
    """It computes its batches row by row while the others wait for its gradients."""
    size, folder = outcomes
    expected = reference(WITHOUT_DROPOUT)
    for rank in range(size):
        found = read(folder, "short", "replicated", rank)
        assert found.counts == expected.counts
        torch.testing.assert_close(found.numbers, expected.numbers, rtol=1e-5, atol=1e-6)
        for parameter, value in expected.weights.items():
            torch.testing.assert_close(found.weights[parameter], value, rtol=0, atol=1e-6, msg=parameter)


def test_muon_on_shards_gives_the_bits_of_one_rank_and_resumes_on_another_number_of_them(outcomes):
    _, folder = outcomes
    begun = muon_steps(ALONE, alone)
    done = muon_steps(ALONE, alone, begun)
    whole = muon_steps(ALONE, alone, num_steps=6)
    same_state(done, whole)
    found = torch.load(folder / "muon-0.pt", weights_only=True)
    same_state(found, begun)
    for resumed in torch.load(folder / "muon-resumed-0.pt", weights_only=True):
        same_state(resumed, whole)
    same_state(muon_steps(ALONE, alone, found), whole)
    assert torch.load(folder / "muon-1.pt", weights_only=True)[0] == {}  # the first rank alone writes files


def same_state(one, other):
    assert one[1].keys() == other[1].keys() == {"step", "momentum_buffer", "exp_avg", "exp_avg_sq"}
    assert one[1]["step"] == other[1]["step"]
    for ours, theirs in [(one[0], other[0]), *((one[1][name], other[1][name]) for name in one[1] if name != "step")]:
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name


def test_owners_share_the_work():
    shapes = [(64, 64)] * 8 + [(64, 256)] * 3
    owners = owners_of(shapes, 4)
    loads = [sum(min(shape) ** 2 * max(shape) for shape, owner in zip(shapes, owners, strict=True) if owner == rank)
             for rank in range(4)]
    assert max(loads) <= 1.34 * min(loads)
    assert owners_of([(2, 2)], 4) == [0]


def test_alone_nothing_travels():
    assert ALONE.sum(3, 4) == (3, 4)
    assert ALONE.gather([1, 2]) == ALONE.share([1, 2]) == [1, 2]
    assert ALONE.is_first
    assert ALONE.is_first_to_fail()


def test_the_first_rank_stays_for_those_that_fail_with_it():
    store = dist.HashStore()
    other = threading.Timer(0.2, Ranks(1, 2, store=store).is_first_to_fail)
    other.start()
    assert Ranks(0, 2, store=store).is_first_to_fail()
    assert store.add("failures", 0) == 2
    other.join()
    assert not Ranks(1, 2, store=store).is_first_to_fail()


def test_who_finds_the_count_gone_tells_its_own_error():
    class Gone:
        def add(self, key, number):
            raise dist.DistNetworkError("Connection reset by peer")

    assert Ranks(1, 2, store=Gone()).is_first_to_fail()


def test_shares_are_dealt_in_turn():
    assert [Ranks(rank, 3).share(list(range(7))) for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_parameters_of_skipped_layers():
    active = ActiveLayers(encoder=(True, False), decoder=None)
    assert is_skipped("encoder.layers.1.ffn.up.weight", active)
    assert not is_skipped("encoder.layers.0.ffn.up.weight", active)
    assert not is_skipped("decoder.layers.1.ffn.up.weight", active)
    assert not is_skipped("encoder.norm.weight", active)


def test_buckets_leave_out_what_is_skipped():
    starts, size = [0, 10, 20, 30, 40], 50
    assert list(buckets(starts, size, [True] * 5, 20)) == [range(3, 5), range(1, 3), range(1)]
    assert list(buckets(starts, size, [True, True, False, True, True], 100)) == [range(3, 5), range(2)]
    assert list(buckets(starts, size, [True] * 5, 1)) == [range(number, number + 1) for number in (4, 3, 2, 1, 0)]
    assert list(buckets(starts, size, [False] * 5, 20)) == []
