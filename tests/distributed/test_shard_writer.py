"""A checkpoint that several ranks write together: whole or not there, whatever happens to one of them."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch import multiprocessing as mp

import lamina.distributed.shard_writer as writer_module
from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.checkpoint.runs import new_run
from lamina.config.train_options import SavingConfig
from lamina.distributed.matrix_exchange import rows_of_rank
from lamina.distributed.ranks import Ranks
from lamina.distributed.shard_writer import OwnRows, ShardWriter
from lamina.errors import CheckpointError
from lamina.training.keeper import LAST_NAME, At, Keeper
from rank_work import PRELOAD

RUN = "0123456789ab"  # the same in processes that are started
SHAPES = {"weights/table": (10, 3), "weights/bias": (7,), "weights/one": (1, 2), "optimizer/first/table": (10, 3),
          "optimizer/first/bias": (7,), "optimizer/first/one": (1, 2)}


@dataclass(frozen=True)
class RanksOfThreads(Ranks):
    """What ranks agree on at the beginning is the same for all threads of a test."""

    agreed: tuple = ()

    def gather(self, own):
        return [list(self.agreed)] if self.agreed else own


def writers(size, num_shards=None, patience=20.0, store=None):
    store = store or dist.HashStore()
    part = writer_module.part_of(writer_module.Path("folder")).name
    agreed = RUN, "abc123", part
    return [ShardWriter(RanksOfThreads(rank, size, store=store, agreed=agreed), num_shards or size, RUN, patience)
            for rank in range(size)]


def tensors(updates):
    return {name: torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) * 0.1 + updates
            for name, shape in SHAPES.items()}


def state(rank, size, updates):
    rows = {name: whole[own.start : own.stop] for name, whole in tensors(updates).items()
            for own in [rows_of_rank(len(whole), rank, size)]}
    return OwnRows(config={}, languages=(), dictionaries=(), subwords=(), weights=rows,
                   training={"run": RUN, "progress": {"updates": updates}, "optimizer": {"step": torch.tensor(updates)},
                             "scale": {"value": torch.tensor(8.0)}},
                   metrics={"loss": 1.5}, origin={"time": f"2026-01-01T00:00:{updates:02}"},
                   shapes={name: torch.Size(shape) for name, shape in SHAPES.items()})


def keepers(folder, size, notes=None, *, is_async=True, patience=20.0, **config):
    notes = [] if notes is None else notes
    saving = SavingConfig(save_dir=str(folder), is_async=is_async, **config)
    return [Keeper(saving, notes.append if rank == 0 else lambda note: None, RUN, writer)
            for rank, writer in enumerate(writers(size, patience=patience))]


def on_all(keepers, work):
    """What each rank does at the same time."""
    with ThreadPoolExecutor(len(keepers)) as pool:
        return [future.result(60) for future in [pool.submit(work, rank, keeper) for rank, keeper in enumerate(keepers)]]


def save(keepers, updates, names=(LAST_NAME,)):
    on_all(keepers, lambda rank, keeper: keeper.save(state(rank, len(keepers), updates), list(names), At(1, updates)))


def finish(keepers):
    on_all(keepers, lambda rank, keeper: keeper.finish())


def check(found, updates):
    expected = tensors(updates)
    assert {f"weights/{name}" for name in found.weights} == {name for name in SHAPES if name.startswith("weights/")}
    for name, value in found.weights.items():
        assert torch.equal(value, expected[f"weights/{name}"])
    assert found.training["optimizer"]["step"] == updates
    for name, value in found.training["optimizer"]["first"].items():
        assert torch.equal(value, expected[f"optimizer/first/{name}"])


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_ranks_write_together_is_read_whole(tmp_path, size, is_async):
    notes = []
    own = keepers(tmp_path, size, notes, is_async=is_async)
    save(own, 3, ["checkpoint_best.pt", LAST_NAME])
    save(own, 5)
    finish(own)
    check(load_checkpoint(tmp_path / "checkpoint_best.pt"), 3)
    check(load_checkpoint(tmp_path / LAST_NAME), 5)
    assert [note.split(" in ")[0] for note in notes] == ["saved checkpoint_best.pt, checkpoint_last.pt",
                                                         "saved checkpoint_last.pt"]
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert folders == [f"shards-{RUN}-3-abc1231", f"shards-{RUN}-5-abc1232"]
    files = sorted(path.name for path in (tmp_path / folders[0]).iterdir())
    assert files == [".metadata", *(f"__{rank}_0.distcp" for rank in range(size)), "checkpoint.pt"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_it_too(tmp_path):
    own = keepers(tmp_path, 4)
    save(own, 3)
    finish(own)
    (folder,) = tmp_path.glob("shards-*")
    found = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(found[name], value) for name, value in tensors(3).items())


def test_only_the_ranks_of_the_first_copy_write(tmp_path):
    own = writers(4, num_shards=2)
    assert [writer.takes_part for writer in own] == [True, True, False, False]
    with ThreadPoolExecutor(2) as pool:
        path, _ = [pool.submit(own[rank].write, tmp_path, state(rank, 2, 7), 7).result(30) for rank in (1, 0)][::-1]
    check(load_checkpoint(path), 7)


def test_a_state_without_a_name_goes_and_one_of_another_run_stays(tmp_path):
    other = tmp_path / f"shards-{new_run()}-1-aaaaaa1"
    other.mkdir()
    own = keepers(tmp_path, 2, keep_interval_updates=2, interval_updates=1)
    for updates in range(1, 6):
        save(own, updates, [f"checkpoint_1_{updates}.pt", LAST_NAME])
    finish(own)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["checkpoint_1_4.pt", "checkpoint_1_5.pt", LAST_NAME]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted(
        [other.name, f"shards-{RUN}-4-abc1234", f"shards-{RUN}-5-abc1235"])


def test_a_rank_that_cannot_write_costs_nothing_that_was_there(tmp_path, monkeypatch):
    """The third failure in a row ends the run, as with one file."""
    notes = []
    own = keepers(tmp_path, 2, notes)
    save(own, 1)
    finish(own)
    whole = writer_module._Writer.write_data

    def full(self, plan, planner):
        if any(item.index.offset[0] for item in plan.items):  # not the first rank's
            raise OSError(28, "No space left on device")
        return whole(self, plan, planner)

    monkeypatch.setattr(writer_module._Writer, "write_data", full)
    save(own, 2)
    on_all(own, lambda rank, keeper: keeper.settle())
    check(load_checkpoint(tmp_path / LAST_NAME), 1)
    assert notes[-1].startswith("warning: rank 1: the sharded checkpoint ")
    assert "No space left on device" in notes[-1]
    assert not list(tmp_path.glob(".*"))
    monkeypatch.setattr(writer_module._Writer, "write_data", whole)
    save(own, 3)
    finish(own)
    check(load_checkpoint(tmp_path / LAST_NAME), 3)


def test_a_rank_that_is_gone_is_named_and_not_waited_for_when_the_run_has_failed(tmp_path):
    (first, _) = keepers(tmp_path, 2, patience=600.0)
    first.save(state(0, 2, 1), [LAST_NAME])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "SECONDS_OF_GRACE", 0.1)
        notes = []
        first.note = notes.append
        assert first.__exit__(RuntimeError, RuntimeError("lost contact"), None) is None
    assert notes == ["warning: a sharded checkpoint was not written: rank 1 has not told that its part is on disk. Earlier "
                     "checkpoints are untouched."]
    assert not list(tmp_path.iterdir())


def test_a_rank_that_does_not_answer_is_given_up_in_time(tmp_path):
    (first, _) = keepers(tmp_path, 2, is_async=False, patience=0.1)
    notes = []
    first.note = notes.append
    first.save(state(0, 2, 1), [LAST_NAME])
    assert "rank 1 has not told" in notes[0]


def test_ranks_that_see_different_folders_are_told_so(tmp_path):
    first, second = writers(2)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(second.write, tmp_path / "other", state(1, 2, 1), 1).result(30)
        with pytest.raises(CheckpointError, match=r"__1_0\.distcp, which another rank wrote, is not in .* must be one folder"):
            pool.submit(first.write, tmp_path / "own", state(0, 2, 1), 1).result(30)
    assert not list((tmp_path / "own").iterdir())


STAGES = {"rows": "_finish", "index": "save_checkpoint", "description": "replace_durably", "name": "_publish"}


def killed_while_saving(rank, folder, stage):
    """Saves a first state, and is killed in the middle of a second."""
    import lamina.training.keeper as keeper_module

    def kill(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    own = keepers(folder, 2, is_async=False)
    save(own, 1)
    owner = {"_finish": ShardWriter, "_publish": keeper_module}.get(STAGES[stage], writer_module)
    setattr(owner, STAGES[stage], kill)
    save(own, 2)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_save_leaves_the_checkpoint_before(tmp_path, stage):
    multiprocessing.set_forkserver_preload([*PRELOAD, "lamina.distributed.shard_writer"])
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        mp.start_processes(killed_while_saving, (str(tmp_path), stage), nprocs=1, start_method="forkserver")
    check(load_checkpoint(tmp_path / LAST_NAME), 1)
    left = [path for path in tmp_path.iterdir() if path.name != LAST_NAME and "-1-" not in path.name]
    assert len(left) == 1
    resumed = keepers(tmp_path, 2)
    save(resumed, 3)
    finish(resumed)
    check(load_checkpoint(tmp_path / LAST_NAME), 3)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [f"shards-{RUN}-3-abc1231"]


def test_a_state_is_that_of_when_it_was_saved(tmp_path, monkeypatch):
    """Training changes it while a thread writes."""
    is_free = threading.Event()
    whole = ShardWriter.write

    def wait_and_write(self, *arguments):
        assert is_free.wait(60)
        return whole(self, *arguments)

    monkeypatch.setattr(ShardWriter, "write", wait_and_write)
    own = keepers(tmp_path, 2)
    states = [state(rank, 2, 4) for rank in range(2)]
    for keeper, one in zip(own, states, strict=True):
        keeper.save(one, [LAST_NAME], At(1, 4))
    for one in states:
        for rows in one.weights.values():
            rows.fill_(-1.0)
    is_free.set()
    finish(own)
    check(load_checkpoint(tmp_path / LAST_NAME), 4)


def test_the_state_of_a_rank_is_a_checkpoint_in_all_else():
    assert {item.name for item in fields(OwnRows)} == {item.name for item in fields(Checkpoint)} | {"shapes"}
    assert replace(state(0, 2, 1), metrics={}).shapes == state(0, 2, 1).shapes
