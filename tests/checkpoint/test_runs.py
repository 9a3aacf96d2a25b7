"""Which run a checkpoint belongs to."""

import os
from dataclasses import replace

import pytest
import torch

from lamina.checkpoint.averaging import BY_UPDATE, newest_checkpoints
from lamina.checkpoint.format import Checkpoint, save_checkpoint
from lamina.checkpoint.runs import BEFORE_RUNS, Mark, Marks, is_run, latest_run, new_run, read_mark
from lamina.errors import CheckpointError
from lamina.training.keeper import earlier_checkpoints

ONE, OTHER = "0" * 12, "f" * 12


def write(path, run, updates, time="2026-01-01T00:00:00+00:00"):
    training = {"run": run, "progress": {"updates": updates}}
    save_checkpoint(path, Checkpoint(config={}, languages=(), dictionaries=(), subwords=(), weights={"w": torch.ones(600)},
                                     training=training if run is not None else {"progress": {"updates": updates}},
                                     origin={"time": time}))
    return path


def flip_weights(path):
    content = bytearray(path.read_bytes())
    place = content.find(torch.ones(8).numpy().tobytes())
    content[place] ^= 1
    path.write_bytes(content)


def names(found):
    return [item.path.name for item in found]


def test_ids():
    assert is_run(new_run())
    assert new_run() != new_run()
    assert is_run(BEFORE_RUNS)
    assert not any(map(is_run, (None, 3, "../x", "A" * 12, ONE + "\n")))


def test_a_mark_is_read_also_where_the_weights_are_damaged(tmp_path):
    path = write(tmp_path / "a.pt", ONE, 7)
    flip_weights(path)
    assert read_mark(path) == Mark(ONE, 7, "2026-01-01T00:00:00+00:00")
    assert read_mark(write(tmp_path / "old.pt", None, 7)) == Mark(BEFORE_RUNS, 7, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_what_is_no_checkpoint_has_no_mark(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    assert read_mark(tmp_path / "x.pt") is None
    assert read_mark(tmp_path / "nothing.pt") is None


def test_an_id_that_is_none_is_not_taken(tmp_path):
    assert read_mark(write(tmp_path / "x.pt", "../../x", 7)) is None


def test_marks_are_read_once_for_each_file(tmp_path):
    path, read = tmp_path / "x", []
    path.write_text("1")
    marks = Marks(lambda path: read.append(path))
    marks.of(path)
    marks.of(path)
    assert len(read) == 1
    path.write_text("22")
    marks.of(path)
    assert len(read) == 2
    assert marks.of(tmp_path / "gone") is None


def test_the_latest_run():
    assert latest_run([Mark(ONE, 900, "2026-01-01"), Mark(OTHER, 2, "2026-01-02")]) == OTHER


def test_what_may_take_the_place_of_a_damaged_file(tmp_path):
    """This run's by their updates, then another's; whatever the time on a file."""
    for number, (name, run, updates) in enumerate((("checkpoint_2_30.pt", OTHER, 30), ("checkpoint_9_90.pt", ONE, 90),
                                                   ("checkpoint_1_100.pt", ONE, 100), ("checkpoint_best.pt", ONE, 40))):
        os.utime(write(tmp_path / name, run, updates), (9000 - number, 9000 - number))
    last = write(tmp_path / "checkpoint_last.pt", ONE, 110)
    (tmp_path / "checkpoint_3_400.pt").write_text("damaged")
    flip_weights(last)
    found = earlier_checkpoints(last)
    assert names(found) == ["checkpoint_1_100.pt", "checkpoint_9_90.pt", "checkpoint_best.pt", "checkpoint_2_30.pt",
                            "checkpoint_3_400.pt"]
    assert [item.is_same_run for item in found] == [True, True, True, False, None]
    write(tmp_path / "checkpoint_2_30.pt", OTHER, 30, time="2026-01-02")
    last.write_text("damaged beyond reading: the run that saved last")
    assert names(earlier_checkpoints(last))[0] == "checkpoint_2_30.pt"
    assert earlier_checkpoints(last)[0].is_same_run is None


def test_an_average_is_of_one_run(tmp_path):
    for number in (10, 20, 30):
        write(tmp_path / f"checkpoint_1_{number}.pt", ONE, number)
    for number in (5, 15):
        write(tmp_path / f"checkpoint_1_{number}.pt", OTHER, number, time="2026-01-02")
    notes = []
    found = newest_checkpoints(tmp_path, BY_UPDATE, 2, note=notes.append)
    assert [path.name for path in found] == ["checkpoint_1_5.pt", "checkpoint_1_15.pt"]
    assert "3 update checkpoints of another run, left out" in notes[0]
    with pytest.raises(CheckpointError, match=r"has 2 update checkpoints: .* 3 more are of another run; name files"):
        newest_checkpoints(tmp_path, BY_UPDATE, 3)
    write(tmp_path / "checkpoint_last.pt", ONE, 30)
    assert newest_checkpoints(tmp_path, BY_UPDATE, 1)[0].name == "checkpoint_1_30.pt"


def test_mixing_runs_by_name_is_told(tmp_path):
    from checkpoint.test_averaging import new_checkpoint, save_all
    from lamina.checkpoint.averaging import average_checkpoints

    one, other = (replace(new_checkpoint(), training={"run": run}) for run in (ONE, OTHER))
    notes = []
    average_checkpoints(save_all(tmp_path, [one, other, one]), note=notes.append)
    assert len(notes) == 1
    assert "are of different runs" in notes[0]
