"""train.jsonl: what a run measured, whatever the terminal shows and however often it was stopped."""

import json

import pytest

import lamina.training.train_log as log_module
from lamina.cli import main
from lamina.training.events import Event
from lamina.training.train_log import TrainLog
from tiny import TINY_FLAGS, make_data

CLOCK = {"wps", "ups", "mem_gib", "eta_s", "train_wall", "data_wait"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("log"))


def train(data, folder, *flags):
    return main(["train", str(data), *TINY_FLAGS, "--save-dir", str(folder), *flags])


def rows(folder, name="train.jsonl"):
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCK}
            for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def places(folder):
    return [(row["where"], row["num_updates"]) for row in rows(folder)]


def event(updates, where="train", kind="interval", **figures):
    return Event(kind, {"where": where, "epoch": 1, "num_updates": updates, **figures})


@pytest.mark.parametrize("shown", ["none", "simple", "json", "rich"])
def test_it_has_every_interval_epoch_and_validation(data, tmp_path, shown, capsys):
    assert train(data, tmp_path, "--max-epoch", "2", "--log-interval", "2", "--log-format", shown) == 0
    assert places(tmp_path) == [("train", 2), ("epoch", 3), ("valid", 3), ("train", 4), ("train", 6), ("epoch", 6),
                                ("valid", 6)]
    found = rows(tmp_path)
    assert found[0].keys() >= {"epoch", "loss", "nll_loss", "ppl", "gnorm", "lr", "batch", "num_batches"}
    assert found[2].keys() >= {"epoch", "loss", "ppl", "best_loss"}
    if shown == "json":
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"where"' in line]
        assert [{key: value for key, value in row.items() if key not in CLOCK} for row in printed] == found


def test_a_resumed_run_has_the_lines_of_one_that_never_stopped(data, tmp_path):
    assert train(data, tmp_path / "whole", "--max-epoch", "3", "--dropout", "0.1") == 0
    assert train(data, tmp_path / "parts", "--max-epoch", "2", "--dropout", "0.1") == 0
    # As after a kill: the last checkpoint is older than the log, whose last line is cut short.
    (tmp_path / "parts" / "checkpoint1.pt").replace(tmp_path / "parts" / "checkpoint_last.pt")
    with (tmp_path / "parts" / "train.jsonl").open("a") as log:
        log.write('{"where": "train", "ep')
    assert train(data, tmp_path / "parts", "--max-epoch", "3", "--dropout", "0.1") == 0
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_another_run_in_the_same_folder_begins_a_file_of_its_own(data, tmp_path):
    assert train(data, tmp_path, "--max-update", "2") == 0
    first = rows(tmp_path)
    assert train(data, tmp_path, "--max-update", "1", "--restore-file", "x.pt") == 0
    assert rows(tmp_path, "train-1.jsonl") == first
    assert places(tmp_path) == [("train", 1), ("epoch", 1), ("valid", 1)]
    # One that forks off keeps what led to it.
    assert train(data, tmp_path, "--max-update", "2") == 0
    assert train(data, tmp_path, "--max-update", "3", "--restore-file", "checkpoint_best.pt") == 0
    assert (tmp_path / "train-2.jsonl").exists()
    assert places(tmp_path)[:3] == [("train", 1), ("epoch", 1), ("valid", 1)]
    assert places(tmp_path)[-1] == ("valid", 3)


def test_without_checkpoints_there_is_no_file(data, tmp_path):
    assert train(data, tmp_path / "out", "--max-update", "1", "--no-save") == 0
    assert not (tmp_path / "out").exists()


def test_the_last_checkpoint_of_the_current_folder_is_another_runs(data, tmp_path, monkeypatch):
    assert train(data, tmp_path, "--max-update", "2") == 0
    monkeypatch.chdir(tmp_path)
    assert train(data, tmp_path / "new", "--max-update", "1") == 0
    assert places(tmp_path / "new")[-1] == ("valid", 1)


def test_what_is_not_finite_is_null(tmp_path):
    from lamina.training.events import Listeners

    log = TrainLog(tmp_path)
    listeners = Listeners([log])
    listeners.tell("interval", where="train", epoch=1, updates=1, figures={"loss": float("nan"), "ppl": float("inf")})
    assert rows(tmp_path) == [{"where": "train", "epoch": 1, "num_updates": 1, "loss": None, "ppl": None}]


def test_a_validation_that_is_due_again_is_dropped(tmp_path):
    log = TrainLog(tmp_path)
    for told in (event(2), event(4), event(4, "valid", "validation"), event(6)):
        log(told)
    again = TrainLog(tmp_path)
    again.begin(4, is_same_run=True, is_validation_due=True)
    assert [(row["where"], row["num_updates"]) for row in again.rows] == [("train", 2), ("train", 4)]
    assert places(tmp_path) == [("train", 2), ("train", 4)]


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    notes = []
    log = TrainLog(tmp_path, notes.append)
    log(event(1))
    real = log_module.TrainLog._append

    def full(self):
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            file.write(self._waiting.encode()[:5])
            file.truncate(size)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.TrainLog, "_append", full)
    log(event(2))
    log(event(3))
    assert len(notes) == 1
    assert "train.jsonl cannot be written: No space left on device" in notes[0]
    monkeypatch.setattr(log_module.TrainLog, "_append", real)
    log(event(4))
    assert [place[1] for place in places(tmp_path)] == [1, 2, 3, 4]


def test_half_a_line_is_taken_back(tmp_path, monkeypatch):
    """The disk fills up in the middle of a line."""
    log = TrainLog(tmp_path)
    log(event(1))

    class Small:
        def __init__(self, file):
            self.file = file
            self.room = 7

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def tell(self):
            return self.file.seek(0, 2)

        def truncate(self, size):
            self.file.truncate(size)

        def write(self, content):
            if not self.room:
                raise OSError(28, "No space left on device")
            written, self.room = self.file.write(content[:self.room]), 0
            return written

    real = type(tmp_path).open
    monkeypatch.setattr(type(tmp_path), "open", lambda path, *words, **named: Small(real(path, *words, **named)))
    log(event(2))
    monkeypatch.undo()
    assert [place[1] for place in places(tmp_path)] == [1]
    log(event(3))
    assert [place[1] for place in places(tmp_path)] == [1, 2, 3]
