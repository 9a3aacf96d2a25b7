"""One process that sends its gradients to itself (LAMINA_ALWAYS_A_GROUP): what tests and benchmarks measure on one GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.config.ranks_options import RanksConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.distributed.launch import ALWAYS_A_GROUP, Place, joined, num_to_start, own_gpu
from lamina.distributed.replicated import ReplicatedWeights
from lamina.distributed.weights import FlatWeights
from lamina.errors import ConfigError
from lamina.parts.update_rules import Sgd
from lamina.training.update import Updater
from rank_work import RepeatedPasses
from tiny import TINY_FLAGS, batch_of, make_data, tiny_model

SGD = OptimizationConfig(optimizer=Sgd(), lr=(0.1,), clip_norm=0.0)


@pytest.fixture(scope="module")
def ranks():
    before = os.environ.get(ALWAYS_A_GROUP)
    os.environ[ALWAYS_A_GROUP] = "1"
    try:
        with joined(RanksConfig(), is_on_gpu=False) as ranks:
            yield ranks
    finally:
        os.environ.pop(ALWAYS_A_GROUP)
        if before is not None:
            os.environ[ALWAYS_A_GROUP] = before


def lean(ranks, *, is_replicated):
    model = tiny_model(dropout_p=0.2)
    weights = (ReplicatedWeights(model, torch.bfloat16, ranks, 1500, accumulates=False) if is_replicated else
               FlatWeights(model, torch.bfloat16, accumulates=False))
    return Updater(model, SGD, PrecisionConfig(), torch.bfloat16, ranks, weights)


@pytest.mark.parametrize("is_replayed", [True, False])
def test_one_batch_for_an_update_is_the_one_without_a_group(ranks, is_replayed):
    """Its gradient goes straight into what travels, which is float32."""
    assert ranks.talks
    alone, grouped = lean(ranks, is_replicated=False), lean(ranks, is_replicated=True)
    assert grouped.weights.grad.dtype == torch.float32
    if is_replayed:
        for of in (alone, grouped):
            of._captured = RepeatedPasses(of, ranks)
            of.weights.expect_replays_()
    for number in range(4):
        results = [of.update([batch_of(slice(0, 8), seed=number)], 0.1, seed=number) for of in (alone, grouped)]
        assert results[0].numbers.tolist() == results[1].numbers.tolist()
        assert torch.equal(alone.weights.master, grouped.weights.master)
    with pytest.raises(AssertionError, match="gradients of one batch at most"):
        grouped.update([batch_of(slice(0, 4)), batch_of(slice(4, 8))], 0.1, seed=1)


@pytest.mark.parametrize("is_replicated", [True, False])
def test_pieces_of_a_batch_that_was_cut_are_all_counted(ranks, is_replicated):
    """A replay replaces the gradient, where an update is one batch: of several pieces it would keep the last one alone."""
    cut, eager = lean(ranks, is_replicated=is_replicated), lean(ranks, is_replicated=is_replicated)
    for of in (cut, eager):
        of.memory.trying = batch_of(slice(0, 8))
        assert of.memory.can_cut_smaller()
    cut._captured = RepeatedPasses(cut, ranks)
    for number in range(2):
        results = [of.update([batch_of(slice(0, 8), seed=number)], 0.1, seed=number) for of in (cut, eager)]
        assert results[0].numbers.tolist() == results[1].numbers.tolist()
    assert cut._captured.num_replayed == 0


def test_a_run_in_a_group_of_one_is_the_run_alone(tmp_path):
    data = make_data(tmp_path, num_lines=20)
    for name, always in (("alone", "0"), ("group", "1")):
        code = subprocess.run([sys.executable, "-m", "lamina", "train", str(data), *TINY_FLAGS, "--cpu", "--dropout", "0.2",
                               "--max-update", "4", "--save-dir", str(tmp_path / name)], check=False,
                              env={**os.environ, ALWAYS_A_GROUP: always}, capture_output=True, text=True)
        assert code.returncode == 0, code.stderr
    one, other = (load_checkpoint(Path(tmp_path, name, "checkpoint_last.pt")) for name in ("alone", "group"))
    assert all(torch.equal(other.weights[name], value) for name, value in one.weights.items())
    assert "rank_wait" in (tmp_path / "group" / "train.jsonl").read_text()
    assert "rank_wait" not in (tmp_path / "alone" / "train.jsonl").read_text()


def test_ranks_may_share_a_gpu_through_gloo_alone():
    shared = RanksConfig(world_size=4, backend="gloo")
    assert num_to_start(shared, {}, 1) == 4
    assert [own_gpu(Place(rank, 4, rank), {}, 2, "gloo") for rank in range(4)] == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match="this machine shows 1 GPU"):
        num_to_start(RanksConfig(world_size=4), {}, 1)
    assert RanksConfig().backend == "nccl"
