"""Files that change, disappear or are replaced while a run reads them."""

import os

import pytest

import lamina.data.file_guard as watch_module
from lamina.data.file_guard import FileGuard
from lamina.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_module, "SECONDS_BETWEEN_LOOKS", 0.0)
    for name in ("train.en-xx.en.idx", "train.en-xx.en.bin", "train1.en-xx.en.bin", "valid.en-xx.en.bin", "test.en-xx.en.bin"):
        (tmp_path / name).write_bytes(b"0123")
    return tmp_path


def new(folder):
    return FileGuard([folder], ["train", "valid"])


def test_nothing_happens_to_others(folder):
    watch = new(folder)
    (folder / "test.en-xx.en.bin").write_bytes(b"other")
    (folder / "train.new").write_bytes(b"")
    watch.look()
    watch.check()


@pytest.mark.parametrize("name", ["train.en-xx.en.bin", "train1.en-xx.en.bin", "valid.en-xx.en.bin"])
def test_a_file_that_is_written_to_is_noticed_at_once(folder, name):
    watch = new(folder)
    with (folder / name).open("r+b") as file:
        file.truncate(2)
    with pytest.raises(DataError, match="was written to while it was read"):
        watch.look()
    with pytest.raises(DataError, match="has changed"):
        watch.check()


def test_a_file_that_disappears_or_is_replaced_is_noticed_at_the_next_epoch(folder):
    watch, path = new(folder), folder / "train.en-xx.en.bin"
    (folder / "new").write_bytes(b"012345")
    os.replace(folder / "new", path)
    watch.look()
    with pytest.raises(DataError, match="has changed"):
        watch.check()
    path.unlink()
    watch.look()
    with pytest.raises(DataError, match="has disappeared"):
        watch.check()


def test_the_file_system_is_not_asked_all_the_time(folder, monkeypatch):
    monkeypatch.setattr(watch_module, "SECONDS_BETWEEN_LOOKS", 1000.0)
    watch = new(folder)
    (folder / "train.en-xx.en.bin").write_bytes(b"")
    watch.look()
