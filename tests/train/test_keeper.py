"""Which checkpoint files are written and which are removed."""

import os

import pytest

import lamina.train.keeper as keeper_module
from lamina.config.train import SavingConfig
from lamina.train.keeper import Keeper


@pytest.fixture
def written(monkeypatch):
    """Saving writes a line instead of a model."""
    def save(path, content):
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(content))

    monkeypatch.setattr(keeper_module, "save_checkpoint", save)


def save_all(tmp_path, best_at=(), num_epochs=3, updates_an_epoch=4, **config):
    keeper = Keeper(SavingConfig(save_dir=str(tmp_path / "out"), **config))
    updates = 0
    for epoch in range(1, num_epochs + 1):
        for _ in range(updates_an_epoch):
            updates += 1
            if keeper.config.interval_updates and updates % keeper.config.interval_updates == 0:
                keeper.save(f"{updates}", epoch=epoch, updates=updates, is_epoch_end=False, is_best=updates in best_at)
        keeper.save(f"{updates}", epoch=epoch, updates=updates, is_epoch_end=True, is_best=updates in best_at)
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


@pytest.mark.usefixtures("written")
def test_files_that_are_not_ours_stay(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint1.pt.backup").write_text("mine")
    assert "checkpoint1.pt.backup" in save_all(tmp_path, keep_last_epochs=1)
