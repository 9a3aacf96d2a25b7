"""Weights that are sharded from the beginning: the bits of whole ones, on any number of ranks, and nowhere all of them."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import multiprocessing as mp

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.config.ranks_options import RanksConfig
from lamina.distributed.launch import joined
from lamina.distributed.sharded import ShardedWeights
from lamina.errors import ConfigError
from lamina.init.deferred import deferred, tensors_of_model
from lamina.models.build import build_model
from rank_work import PRELOAD, run_commands
from tiny import FUSIONS, TINY_FLAGS, VOCABULARY_SIZE, make_data, tiny_config

FLAGS = (*TINY_FLAGS, "--encoder-layers", "3", "--decoder-layers", "2", "--dropout", "0.1", "--init-type", "admin",
         "--surfacefusion", "att", "--transparent-attention", "--encoder-layerdrop", "0.3", "--max-tokens", "40", "--optimizer",
         "nag", "--lr", "0.05", "--cpu")


def train(data, folder, *flags):
    return ["train", str(data), "--save-dir", str(folder), *FLAGS, *flags]


def first_weights(rank, size, meeting, folder):
    """The weights that a meta model begins with, as a file would hold them; and the most that this rank held at a time."""
    torch.set_num_threads(1)
    config = tiny_config(num_layers=3, **FUSIONS["both"])
    with joined(RanksConfig(world_size=size, rank=rank, init_method=f"file://{meeting}"), is_on_gpu=False) as ranks:
        for shard_size in {size, 2}:
            model, notes = deferred(lambda: build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE))
            held, run = [], notes._run

            def watched(call, real, run=run, held=held):
                run(call, real)
                held.append(sum(tensor.numel() for tensor in real.values()))

            notes._run = watched
            weights = ShardedWeights(model, torch.float32, ranks, notes.weights(tensors_of_model(model), 7), shard_size)
            assert not any(parameter.is_meta for parameter in model.parameters())
            whole = weights.state_dict()
            if ranks.is_first:
                torch.save((whole, max(held)), Path(folder, f"{shard_size}.pt"))


@pytest.mark.parametrize("size", [2, 4])
def test_sharded_from_the_beginning_they_are_the_weights_of_one_process(size, tmp_path):
    multiprocessing.set_forkserver_preload(PRELOAD)
    mp.start_processes(first_weights, (size, str(tmp_path / "meeting"), str(tmp_path)), nprocs=size, start_method="forkserver")
    torch.manual_seed(7)
    config = tiny_config(num_layers=3, **FUSIONS["both"])
    expected = dict(build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE).named_parameters())
    total = sum(value.numel() for value in expected.values())
    for shard_size in {size, 2}:
        found, most = torch.load(tmp_path / f"{shard_size}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        assert most < total / 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Whole runs in groups of two: shared by all four ranks, or by two with a copy each."""
    folder = tmp_path_factory.mktemp("hybrid")
    data = make_data(folder, num_lines=48)
    assert main(train(data, folder / "one", "--max-epoch", "2", "--update-freq", "4")) == 0
    codes = run_commands(4, [
        train(data, folder / "hybrid", "--max-epoch", "2", "--fsdp", "--fsdp-size", "2"),
        train(data, folder / "gathered", "--max-epoch", "2", "--fsdp", "--no-reshard-after-forward"),
        train(data, folder / "begun", "--max-update", "1", "--fsdp"),
        train(data, folder / "begun", "--max-epoch", "2", "--fsdp", "--fsdp-size", "2"),
        train(data, folder / "uneven", "--fsdp", "--fsdp-size", "3"),
        train(data, folder / "matrices", "--fsdp", "--fsdp-size", "2", "--optimizer", "muon"),
    ], folder)
    assert codes == [[0, 0, 0, 0, 2, 2]] * 4, (folder / "0.err").read_text()
    return folder


@pytest.mark.parametrize("name", ["hybrid", "gathered", "begun"])
def test_a_run_is_that_of_one_process(runs, name):
    """Begun by Admin's profile, which all ranks take together; validated and saved in pieces; resumed in other groups."""
    ours, theirs = (load_checkpoint(runs / which / "checkpoint_last.pt") for which in ("one", name))
    for key, weight in ours.weights.items():
        torch.testing.assert_close(theirs.weights[key], weight, rtol=0, atol=1e-6, msg=key)
    assert theirs.metrics == pytest.approx(ours.metrics, rel=1e-6)


def test_groups_that_do_not_divide_the_ranks_are_refused(runs):
    said = "".join((runs / f"{rank}.err").read_text() for rank in range(4))
    assert said.count("--fsdp-size is 3, and 4 ranks cannot be split into groups of that size") == 1
    assert said.count("--optimizer muon puts matrices together among all ranks, and --fsdp-size 2 keeps several copies") == 1


@pytest.mark.parametrize(("options", "reason"), [
    ({"reshards": False}, "--no-reshard-after-forward has no effect without --fsdp"),
    ({"reshards": True}, "--reshard-after-forward has no effect without --fsdp"),
    ({"reshards": False, "fsdp": True, "fsdp_size": 2}, "shares them")])
def test_keeping_weights_whole_wants_shards_among_all(options, reason):
    with pytest.raises(ConfigError, match=reason):
        RanksConfig(**options)


def test_a_size_of_groups_wants_shards():
    with pytest.raises(ConfigError, match="no effect without --fsdp"):
        RanksConfig(fsdp_size=2)
    assert RanksConfig(fsdp=True).num_shards(8) == 8
    assert RanksConfig(fsdp=True, fsdp_size=2).num_shards(8) == 2
    assert RanksConfig().num_shards(8) == 1
