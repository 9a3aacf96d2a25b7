"""`lamina average`: the references' line on a trained run, and words that make no sense together."""

import os
import shlex

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

REFERENCE_LINE = "average --inputs OUT --num-epoch-checkpoints 10 --output OUT/model.pt --checkpoint-upper-bound 90"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three epochs with checkpoints of epochs and updates; not to be written to."""
    folder = tmp_path_factory.mktemp("average")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--save-dir", str(folder / "run"), "--max-epoch", "3",
                 "--save-interval-updates", "2"]) == 0
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """OUT holds epochs 1 to 3 again as 82 to 84, up to 93, and the updates."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "OUT"
    out.mkdir()
    for path in (trained / "run").iterdir():
        os.link(path, out / path.name)
    for epoch in range(82, 94):
        os.link(trained / "run" / f"checkpoint{1 + epoch % 3}.pt", out / f"checkpoint{epoch}.pt")
    return tmp_path


def weights(path):
    return load_checkpoint(path).weights


def mean(paths):
    everything = [weights(path) for path in paths]
    return {name: torch.stack([one[name] for one in everything]).mean(0) for name in everything[0]}


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-7)


def test_the_references_line(here, capsys):
    assert main(shlex.split(REFERENCE_LINE)) == 0
    lines = capsys.readouterr().out.splitlines()
    chosen = ["checkpoint3.pt", *(f"checkpoint{epoch}.pt" for epoch in range(82, 91))]
    # The second line as the references' scripts look for it.
    assert lines == [f"| averaged 10 checkpoints: {', '.join(f'OUT/{name}' for name in chosen)}",
                     "Finished writing averaged checkpoint to OUT/model.pt."]
    assert_close(weights("OUT/model.pt"), mean([f"OUT/{name}" for name in chosen]))
    model = load_checkpoint("OUT/model.pt")
    assert model.training == {"averaged": chosen}
    model.build_model()
    # Once more: model.pt is none of its own inputs.
    assert main(shlex.split(REFERENCE_LINE)) == 0
    assert_close(weights("OUT/model.pt"), model.weights)


def test_updates_and_their_bound(here, capsys):
    updates = sorted(int(path.stem.split("_")[2]) for path in (here / "OUT").glob("checkpoint_?_*.pt"))
    assert main(["average", "--inputs", "OUT", "--num-update-checkpoints", "2", "--checkpoint-upper-bound", str(updates[-2]),
                 "--output", "x.pt"]) == 0
    used = load_checkpoint("x.pt").training["averaged"]
    assert [int(name[:-3].split("_")[2]) for name in used] == updates[-3:-1]


def test_named_files(here, capsys):
    assert main(["average", "--inputs", "OUT/checkpoint1.pt", "OUT/checkpoint3.pt", "--output", "new/x.pt"]) == 0
    assert_close(weights("new/x.pt"), mean(["OUT/checkpoint1.pt", "OUT/checkpoint3.pt"]))
    assert main(["average", "--inputs", "OUT/checkpoint3.pt", "--output", "one.pt"]) == 0
    assert "| averaged 1 checkpoint: OUT/checkpoint3.pt" in capsys.readouterr().out
    one, three = weights("one.pt"), weights("OUT/checkpoint3.pt")
    assert all(torch.equal(one[name], three[name]) for name in three)


def test_training_can_begin_but_not_resume_from_an_average(here, trained, capsys):
    assert main(["average", "--inputs", "OUT/checkpoint1.pt", "OUT/checkpoint3.pt", "--output", "x.pt"]) == 0
    assert "optimizer" not in load_checkpoint("x.pt").training
    train = ["train", str(trained / "data"), *TINY_FLAGS, "--save-dir", "again", "--max-update", "1"]
    assert main([*train, "--restore-file", "x.pt"]) == 0
    assert "no optimizer state" in capsys.readouterr().out
    assert main([*train, "--finetune-from-model", "x.pt", "--save-dir", "third"]) == 0


def test_an_input_is_not_overwritten(here, capsys):
    before = (here / "OUT" / "checkpoint3.pt").stat().st_mtime_ns
    for words in (["OUT/checkpoint1.pt", "OUT/checkpoint3.pt"], ["OUT", "--num-epoch-checkpoints", "15"]):
        assert main(["average", "--inputs", *words, "--output", "OUT/../OUT/checkpoint3.pt"]) == 2
        assert "is one of the inputs" in capsys.readouterr().err
    assert (here / "OUT" / "checkpoint3.pt").stat().st_mtime_ns == before
    # Another name for the same file is replaced, and the file itself stays.
    os.link("OUT/checkpoint3.pt", "link.pt")
    assert main(["average", "--inputs", "OUT/checkpoint1.pt", "OUT/checkpoint3.pt", "--output", "link.pt"]) == 0
    assert "optimizer" in load_checkpoint("OUT/checkpoint3.pt").training


@pytest.mark.parametrize(("words", "message"), [
    ("--inputs OUT", "--output is missing"),
    ("--inputs OUT --output x.pt", "is a folder: say how many"),
    ("--output x.pt", "there is no checkpoints"),
    ("--inputs a.pt OUT/checkpoint1.pt b.pt --output x.pt", "there is no a.pt, b.pt"),
    ("--inputs OUT/checkpoint1.pt OUT --output x.pt", "is a folder"),
    ("--inputs OUT --num-epoch-checkpoints 99 --output x.pt", "asks for 99, but OUT has 15 epoch checkpoints: checkpoint1.pt"),
    ("--inputs OUT --num-epoch-checkpoints 1 --output OUT", "name a file, such as OUT/model.pt"),
    ("--inputs OUT/checkpoint1.pt --num-epoch-checkpoints 1 --output x.pt", "OUT/checkpoint1.pt is a file"),
    ("--inputs OUT OUT --num-epoch-checkpoints 1 --output x.pt", "--inputs names 2 paths"),
    ("--inputs OUT --num-epoch-checkpoints 1 --num-update-checkpoints 1 --output x.pt", "exclude each other"),
    ("--inputs OUT --num-epoch-checkpoints 0 --output x.pt", "at least 1"),
    ("--inputs OUT/checkpoint1.pt --checkpoint-upper-bound 3 --output x.pt", "has no effect without"),
    ("--inputs --output x.pt", "expected at least one argument"),
])
def test_words_that_make_no_sense(here, capsys, words, message):
    assert main(["average", *shlex.split(words)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (here / "x.pt").exists()


def test_exported_folders_are_models_too(trained, tmp_path, capsys):
    for number in (1, 2):
        assert main(["export", str(trained / "run" / f"checkpoint{number}.pt"), "--format", "safetensors", "--output",
                     str(tmp_path / str(number))]) == 0
    assert main(["average", "--inputs", str(tmp_path / "1"), str(tmp_path / "2"), "--output", str(tmp_path / "mean.pt")]) == 0
    one, two = (weights(trained / "run" / f"checkpoint{number}.pt") for number in (1, 2))
    mean = weights(tmp_path / "mean.pt")
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2) for name in mean)
