"""Saving from a GPU: the copy that is written is of the state as it was, and neither host nor passes wait for it."""

import time

import pytest
import torch

from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.cli import main
from lamina.config.train_options import SavingConfig
from lamina.training.host_copy import HostCopier
from lamina.training.keeper import Keeper
from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIZE = 2**26  # 256 MiB of float32


def state(flat):
    return Checkpoint(config={}, languages=(), dictionaries=(), subwords=(),
                      weights={"a": flat[:64].view(8, 8), "b": flat[64:]},
                      training={"optimizer": {"step": torch.zeros((), dtype=torch.int64, device="cuda")}})


def test_a_copy_is_of_the_state_as_it_was_and_the_host_does_not_wait_for_it():
    flat = torch.ones(SIZE, device="cuda")
    copier = HostCopier()
    copier.give_back(copier.copy(state(flat)))  # pins the memory
    shares = []
    for _ in range(5):  # other work on the machine may stop the host at any time, but hardly at all times
        flat.fill_(1.0)
        torch.cuda.synchronize()
        started = time.perf_counter()
        copy = copier.copy(state(flat))
        copier.before_change()
        flat.fill_(2.0)  # the next step
        seconds = time.perf_counter() - started
        copy.wait()
        shares.append(seconds / (time.perf_counter() - started))
        assert copy.buffers[0].is_pinned()
        assert all((tensor == 1.0).all() for tensor in copy.checkpoint.weights.values())
        torch.cuda.synchronize()
        assert (flat == 2.0).all()
        copier.give_back(copy)
    assert min(shares) < 0.5


def test_passes_over_the_state_do_not_wait_for_its_copy():
    flat = torch.ones(SIZE, device="cuda")
    copier = HostCopier()
    copier.give_back(copier.copy(state(flat)))
    torch.cuda.synchronize()
    copy = copier.copy(state(flat))
    read = flat[:1024].sum()
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    assert not copy.arrival.query()  # 256 MiB are under way for milliseconds yet
    copy.wait()
    assert read.item() == 1024.0


def test_a_state_saved_in_the_background_is_whole(tmp_path):
    flat = torch.zeros(2**20, device="cuda")
    with Keeper(SavingConfig(save_dir=str(tmp_path))) as keeper:
        for epoch in range(1, 9):
            keeper.before_change()
            flat.fill_(float(epoch))
            keeper.save(state(flat), [f"checkpoint{epoch}.pt", "checkpoint_last.pt"])
    for epoch in range(1, 9):
        weights = load_checkpoint(tmp_path / f"checkpoint{epoch}.pt").weights
        assert all((tensor == float(epoch)).all() for tensor in weights.values())
        assert not weights["b"].is_cuda


def test_checkpoints_in_the_background_are_those_of_training_that_waits(tmp_path):
    data = make_data(tmp_path / "data")
    flags = ["train", str(data), *TINY_FLAGS, "--dropout", "0.2", "--bf16", "--save-interval-updates", "1", "--max-epoch", "3"]
    for name, how in (("waits", ["--no-async-save"]), ("background", [])):
        assert main([*flags, "--save-dir", str(tmp_path / name), *how]) == 0
    names = sorted(path.name for path in (tmp_path / "waits").glob("*.pt"))
    assert len(names) > 3
    assert names == sorted(path.name for path in (tmp_path / "background").glob("*.pt"))
    for name in names:
        one, other = (load_checkpoint(tmp_path / folder / name) for folder in ("waits", "background"))
        assert one.training["progress"]["updates"] == other.training["progress"]["updates"]
        torch.testing.assert_close(one.weights, other.weights, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(one.training["optimizer"], other.training["optimizer"], rtol=1e-2, atol=1e-4)
