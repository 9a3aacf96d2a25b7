"""Which checkpoint files are written and which are removed."""

import os
import socket
import threading
import time
from dataclasses import replace

import pytest
import torch

import lamina.training.keeper as keeper_module
from lamina.checkpoint.format import Checkpoint, load_checkpoint, save_checkpoint
from lamina.config.train_options import SavingConfig
from lamina.errors import CheckpointError
from lamina.training.host_copy import HostCopier
from lamina.training.keeper import MAX_FAILURES_IN_A_ROW, MAX_WAITING, Keeper, earlier_checkpoints


@pytest.fixture
def written(monkeypatch):
    """Saving writes a line instead of a model, at once."""
    def save(path, content):
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(content))

    monkeypatch.setattr(keeper_module, "save_checkpoint", save)


def save(keeper, epoch, updates, is_epoch_end, best_at=()):
    names = keeper.names_due(epoch=epoch, updates=updates, is_epoch_end=is_epoch_end, is_best=updates in best_at)
    keeper.save(f"{updates}", names)


def save_all(tmp_path, best_at=(), num_epochs=3, updates_an_epoch=4, **config):
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path / "out"), is_async=False, **config))
    updates = 0
    for epoch in range(1, num_epochs + 1):
        for _ in range(updates_an_epoch):
            updates += 1
            if keeper.config.interval_updates and updates % keeper.config.interval_updates == 0:
                save(keeper, epoch, updates, False, best_at)
        save(keeper, epoch, updates, True, best_at)
    folder = tmp_path / "out"
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder))} if folder.exists() else {}


@pytest.mark.usefixtures("written")
def test_default_names(tmp_path):
    assert save_all(tmp_path, best_at=[8]) == {"checkpoint1.pt": "4", "checkpoint2.pt": "8", "checkpoint3.pt": "12",
                                               "checkpoint_best.pt": "8", "checkpoint_last.pt": "12"}


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(("config", "names"), [
    ({"keep_last_epochs": 1}, {"checkpoint3.pt", "checkpoint_last.pt"}),
    ({"has_epochs": False}, {"checkpoint_last.pt"}),
    ({"has_last": False, "interval": 2}, {"checkpoint2.pt"}),
    ({"is_on": False}, set()),
    ({"interval_updates": 3, "keep_interval_updates": 2, "has_epochs": False},
     {"checkpoint_3_12.pt", "checkpoint_3_9.pt", "checkpoint_last.pt"}),
])
def test_names_and_removal(tmp_path, config, names):
    assert save_all(tmp_path, **config).keys() == names


@pytest.mark.parametrize(("config", "names"), [
    ({}, ["checkpoint2.pt", "checkpoint_last.pt"]), ({"has_epochs": False}, ["checkpoint_2_6.pt", "checkpoint_last.pt"]),
    ({"interval": 3}, ["checkpoint_2_6.pt", "checkpoint_last.pt"]),
])
def test_an_update_to_save_after_that_ends_an_epoch(tmp_path, config, names):
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path), interval_updates=3, **config))
    assert keeper.names_due(epoch=2, updates=6, is_epoch_end=True, is_best=False) == names


@pytest.mark.usefixtures("written")
def test_files_that_are_not_ours_stay(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint1.pt.backup").write_text("mine")
    assert "checkpoint1.pt.backup" in save_all(tmp_path, keep_last_epochs=1)


def test_what_killed_runs_left_is_cleared_away(tmp_path):
    mine, dead, other = (tmp_path / f".checkpoint_last.pt.{mark}.part" for mark in (
        f"{socket.gethostname()}-{os.getppid()}", f"{socket.gethostname()}-{2**22 + 1}", "elsewhere-77"))
    for path in (mine, dead, other):
        path.write_text("half")
    Keeper(SavingConfig(save_dir=str(tmp_path)))
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])  # one is being written, one is another machine's


def test_a_failure_is_noted_and_the_third_in_a_row_is_an_error(tmp_path, monkeypatch):
    notes, is_full = [], True

    def save_or_fail(path, content):
        if is_full:
            raise CheckpointError(f"{path} could not be written: No space left on device.")
        path.write_text(content)

    monkeypatch.setattr(keeper_module, "save_checkpoint", save_or_fail)
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path), is_async=False), notes.append)
    keeper.save("1", ["checkpoint_last.pt"])
    assert len(notes) == 1
    assert "No space left on device. Training continues" in notes[0]
    with pytest.raises(CheckpointError, match="latest state of this run is not saved"):
        keeper.finish()
    is_full = False
    keeper.save("2", ["checkpoint_last.pt"])
    keeper.finish()
    is_full = True
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        keeper.save("3", ["checkpoint_last.pt"])
    with pytest.raises(CheckpointError, match="the last of 3 attempts in a row"):
        keeper.save("3", ["checkpoint_last.pt"])
    assert (tmp_path / "checkpoint_last.pt").read_text() == "2"


def tensors(value):
    return Checkpoint(config={}, languages=(), dictionaries=(), subwords=(), weights={"w": torch.full((3,), value)},
                      training={"optimizer": {"exp_avg": {"w": torch.full((3,), -value)}}})


@pytest.fixture
def slow_disk(monkeypatch):
    """Nothing is written before somebody says so; then files are, and listed."""
    real, may_write = keeper_module.save_checkpoint, threading.Event()
    may_write.written, may_write.threads = [], set()

    def wait_and_save(path, checkpoint):
        may_write.threads.add(threading.current_thread())
        assert may_write.wait(10)
        real(path, checkpoint)
        may_write.written.append((path.name, checkpoint.weights["w"][0].item()))

    monkeypatch.setattr(keeper_module, "save_checkpoint", wait_and_save)
    yield may_write
    may_write.set()


def held(keeper):
    """Until the thread has taken up the first state, so that the next ones wait."""
    while keeper._waiting:
        time.sleep(0.001)


def test_saving_in_the_background_is_the_default_and_writes_the_state_as_it_was(tmp_path, slow_disk):
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path), keep_last_epochs=1))
    save_checkpoint(tmp_path / "checkpoint1.pt", tensors(0.0))
    state = tensors(1.0)
    keeper.save(state, ["checkpoint2.pt", "checkpoint_last.pt"])
    state.weights["w"].fill_(9.0)  # training goes on
    state.training["optimizer"]["exp_avg"]["w"].fill_(9.0)
    assert os.listdir(tmp_path) == ["checkpoint1.pt"]  # nothing goes before the new one is there
    slow_disk.set()
    keeper.save(tensors(2.0), ["checkpoint_last.pt"])
    keeper.finish()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint2.pt", "checkpoint_last.pt"]
    assert load_checkpoint(tmp_path / "checkpoint2.pt").weights["w"].tolist() == [1.0] * 3
    assert load_checkpoint(tmp_path / "checkpoint2.pt").training["optimizer"]["exp_avg"]["w"].tolist() == [-1.0] * 3
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").weights["w"].tolist() == [2.0] * 3
    assert threading.main_thread() not in slow_disk.threads
    assert len(slow_disk.threads) == 1  # never two at once


def test_a_state_that_waits_gives_its_names_to_a_newer_one_and_numbered_ones_stay(tmp_path, slow_disk):
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path)))
    keeper.save(tensors(1.0), ["checkpoint_best.pt", "checkpoint_last.pt"])
    held(keeper)
    keeper.save(tensors(2.0), ["checkpoint_best.pt", "checkpoint_last.pt"])
    keeper.save(tensors(3.0), ["checkpoint_last.pt"])
    keeper.save(tensors(4.0), ["checkpoint_last.pt"])
    keeper.save(tensors(5.0), ["checkpoint_best.pt", "checkpoint_last.pt"])
    keeper.save(tensors(6.0), ["checkpoint2.pt", "checkpoint_last.pt"])
    slow_disk.set()
    keeper.finish()
    keeper.save(tensors(7.0), ["checkpoint3.pt", "checkpoint_last.pt"])
    keeper.finish()
    assert slow_disk.written == [("checkpoint_best.pt", 1.0), ("checkpoint_best.pt", 5.0), ("checkpoint2.pt", 6.0),
                                 ("checkpoint3.pt", 7.0)]
    found = {name: load_checkpoint(tmp_path / name).weights["w"][0].item() for name in sorted(os.listdir(tmp_path))}
    assert found == {"checkpoint2.pt": 6.0, "checkpoint3.pt": 7.0, "checkpoint_best.pt": 5.0, "checkpoint_last.pt": 7.0}


def test_numbered_states_that_come_faster_than_the_disk_takes_them_wait_and_the_memory_has_an_end(tmp_path, slow_disk):
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path)))
    copies = keeper._copier.copy
    addresses = set()

    def copy(checkpoint):
        made = copies(checkpoint)
        addresses.add(made.buffers[0].data_ptr())
        return made

    keeper._copier.copy = copy
    threading.Timer(0.2, slow_disk.set).start()
    for epoch in range(1, 10):
        if epoch == MAX_WAITING + 3:
            assert slow_disk.is_set()  # until then, nobody has waited
        keeper.save(tensors(float(epoch)), [f"checkpoint{epoch}.pt", "checkpoint_last.pt"])
    keeper.finish()
    assert len(os.listdir(tmp_path)) == 10
    assert {load_checkpoint(tmp_path / f"checkpoint{epoch}.pt").weights["w"][0].item() for epoch in range(1, 10)} == \
        set(map(float, range(1, 10)))
    assert len(addresses) <= 2 + MAX_WAITING


def test_whatever_ends_a_run_waits_for_what_is_to_be_written(tmp_path, slow_disk):
    def run():
        with Keeper(SavingConfig(save_dir=str(tmp_path))) as keeper:
            keeper.save(tensors(1.0), ["checkpoint1.pt", "checkpoint_last.pt"])
            keeper.save(tensors(2.0), ["checkpoint_last.pt"])
            raise ValueError("the run fails")

    threading.Timer(0.1, slow_disk.set).start()
    with pytest.raises(ValueError, match="the run fails"):
        run()
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").weights["w"].tolist() == [2.0] * 3


def test_copies_keep_what_is_shared_and_use_their_memory_again():
    flat = torch.arange(6.0)
    state = replace(tensors(0.0), weights={"a": flat[:4].view(2, 2), "b": flat[4:]}, training={"step": torch.tensor(3)})
    copier = HostCopier()
    first = copier.copy(state)
    assert first.checkpoint.weights["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert first.checkpoint.weights["b"].tolist() == [4.0, 5.0]
    assert first.checkpoint.training["step"].item() == 3
    assert len(first.buffers) == 2
    addresses = [buffer.data_ptr() for buffer in first.buffers]
    second = copier.copy(state)
    assert [buffer.data_ptr() for buffer in second.buffers] != addresses
    copier.give_back(first)
    flat.fill_(7.0)
    third = copier.copy(state)
    assert [buffer.data_ptr() for buffer in third.buffers] == addresses
    assert third.checkpoint.weights["b"].tolist() == [7.0, 7.0]
    assert second.checkpoint.weights["b"].tolist() == [4.0, 5.0]


def test_failures_in_the_background_surface(tmp_path, monkeypatch):
    def fail(path, checkpoint):
        raise CheckpointError("No space left on device.")

    monkeypatch.setattr(keeper_module, "save_checkpoint", fail)
    notes = []
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path)), notes.append)
    keeper.save(tensors(1.0), ["checkpoint_last.pt"])
    with pytest.raises(CheckpointError, match=r"No space left .* not saved"):
        keeper.finish()
    keeper.save(tensors(2.0), ["checkpoint_last.pt"])
    keeper.settle()
    assert len(notes) == 2
    keeper.save(tensors(3.0), ["checkpoint_last.pt"])
    with pytest.raises(CheckpointError, match=f"the last of {MAX_FAILURES_IN_A_ROW} attempts in a row"):
        keeper.settle()


def test_earlier_checkpoints_of_a_run(tmp_path):
    """Files that say nothing of their run, fairseq's for one, go by the numbers in their names."""
    for age, name in enumerate(("checkpoint_last.pt", "checkpoint2.pt", "checkpoint_best.pt", "checkpoint_1_7.pt", "mine.pt")):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    os.link(tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint3.pt")
    names = [found.path.name for found in earlier_checkpoints(tmp_path / "checkpoint_last.pt")]
    assert names == ["checkpoint_1_7.pt", "checkpoint2.pt", "checkpoint_best.pt"]


def test_another_runs_checkpoints_stay(tmp_path):
    one, other = "0" * 12, "f" * 12

    def write(run, updates):
        return replace(tensors(float(updates)), training={"run": run, "progress": {"updates": updates}})

    flags = {"save_dir": str(tmp_path), "interval_updates": 5, "keep_interval_updates": 2, "has_epochs": False,
             "is_async": False}
    for run, last in ((one, 40), (other, 20)):
        notes = []
        keeper = Keeper(SavingConfig(**flags), notes.append, run)
        for updates in range(5, last + 1, 5):
            keeper.save(write(run, updates), keeper.names_due(epoch=1, updates=updates, is_epoch_end=False, is_best=False))
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint_1_15.pt", "checkpoint_1_20.pt", "checkpoint_1_35.pt", "checkpoint_1_40.pt", "checkpoint_last.pt",
        "checkpoint_last.run-000000000000.pt"]
    assert "checkpoint_last.pt in" in notes[0]
    assert "is of another run: it is now checkpoint_last.run-000000000000.pt" in notes[0]
    # A process that continues a run knows its files.
    keeper = Keeper(SavingConfig(**flags), run=other)
    keeper.save(write(other, 25), ["checkpoint_1_25.pt", "checkpoint_last.pt"])
    keeper.save(write(other, 35), ["checkpoint_1_35.pt", "checkpoint_last.pt"])
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint_1_25.pt", "checkpoint_1_35.pt", "checkpoint_1_35.run-000000000000.pt", "checkpoint_1_40.pt",
        "checkpoint_last.pt", "checkpoint_last.run-000000000000.pt"]
    assert load_checkpoint(tmp_path / "checkpoint_1_35.run-000000000000.pt").weights["w"].tolist() == [35.0] * 3
