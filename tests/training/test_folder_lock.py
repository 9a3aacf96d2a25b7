"""Who may use a folder, and who is in the way."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import lamina.training.folder_lock as folder_lock
from lamina.errors import CheckpointError
from lamina.training.folder_lock import LOCK_NAME, only_run_in

HOLDER = """
import sys, time
from pathlib import Path
from lamina import provenance
from lamina.training.folder_lock import only_run_in
provenance.begin_command(["train", "my data"])
with only_run_in(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    yield process
    process.kill()
    process.communicate()


def leave_mark(folder, **changes):
    holder = {"host": socket.gethostname(), "process": os.getppid(), "since": "2026-11-18 20:00:00", "command": ""} | changes
    (folder / LOCK_NAME).write_text(json.dumps(holder))


def test_one_run_at_a_time_and_nothing_stays(tmp_path):
    folder = tmp_path / "new"
    with only_run_in(folder):
        with pytest.raises(CheckpointError, match=f"new is in use by process {os.getpid()} on "), only_run_in(folder):
            pass
        assert os.listdir(folder) == [LOCK_NAME]
    assert not folder.exists()
    with only_run_in(folder):
        (folder / "checkpoint_last.pt").touch()
    assert os.listdir(folder) == ["checkpoint_last.pt"]


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path, holder):
    with pytest.raises(CheckpointError) as told, only_run_in(tmp_path):
        pass
    assert f"process {holder.pid} on {socket.gethostname()} since " in str(told.value)
    assert "(lamina train 'my data'). Two runs there would mix their checkpoints: wait for it, or choose" in str(told.value)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert os.listdir(tmp_path) == [LOCK_NAME]
    with only_run_in(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def no_locks(*_):
    raise OSError(37, "No locks available")


def test_without_locks_a_process_of_this_machine_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock.fcntl, "flock", no_locks)
    leave_mark(tmp_path)
    with pytest.raises(CheckpointError, match=r"If that process is gone, remove .*\.lamina-lock"), only_run_in(tmp_path):
        pass
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_mark(tmp_path, process=ended.pid)
    with only_run_in(tmp_path):
        pass


@pytest.mark.parametrize("has_locks", [True, False])
def test_one_on_another_machine_is_watched_for_signs_of_life(tmp_path, monkeypatch, capsys, has_locks):
    monkeypatch.setattr(folder_lock, "SECONDS_OF_SILENCE", 0.2)
    if not has_locks:
        monkeypatch.setattr(folder_lock.fcntl, "flock", no_locks)
    leave_mark(tmp_path, host="elsewhere", process=12)
    alive = threading.Timer(0.1, os.utime, (tmp_path / LOCK_NAME,))
    alive.start()
    with pytest.raises(CheckpointError, match="in use by process 12 on elsewhere"), only_run_in(tmp_path):
        pass
    alive.join()
    assert "watching it for 0.2 s for signs of life" in capsys.readouterr().err
    with only_run_in(tmp_path):
        pass


def test_a_holder_shows_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "SECONDS_BETWEEN_SIGNS", 0.01)
    with only_run_in(tmp_path):
        before = (tmp_path / LOCK_NAME).stat().st_mtime_ns
        deadline = time.monotonic() + 10
        while (tmp_path / LOCK_NAME).stat().st_mtime_ns == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def not_ours(real):
    """A file that is there belongs to another person."""
    def open_(path, flags, *mode):
        if flags & os.O_RDWR and os.path.exists(path):
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *mode)

    return open_


def test_another_persons_run(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(folder_lock.os, "open", not_ours(os.open))
    with pytest.raises(CheckpointError, match=f"in use by process {holder.pid}"), only_run_in(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with only_run_in(tmp_path):
        assert json.loads((tmp_path / LOCK_NAME).read_text())["process"] == os.getpid()


def test_one_that_is_removed_while_we_ask_for_it(tmp_path, monkeypatch):
    """By a run that ends just then: what we have locked is no file of the folder any more."""
    real, removed = folder_lock.fcntl.flock, []

    def flock(handle, how):
        real(handle, how)
        if not removed:
            removed.append((tmp_path / LOCK_NAME).unlink())

    monkeypatch.setattr(folder_lock.fcntl, "flock", flock)
    with only_run_in(tmp_path):
        assert removed
        with pytest.raises(CheckpointError, match="in use by"), only_run_in(tmp_path):
            pass


@pytest.mark.parametrize("mark", ["", "[]", "{}", '{"host": 1', '{"host": "a", "process": "b", "since": 0, "command": 0}'])
def test_a_mark_that_says_nothing_is_nobodys(tmp_path, mark):
    (tmp_path / LOCK_NAME).write_text(mark)
    with only_run_in(tmp_path):
        pass


def test_a_folder_that_cannot_be_is_somebody_elses_to_tell(tmp_path):
    (tmp_path / "file").touch()
    with only_run_in(tmp_path / "file"):
        pass
