"""Marks of provenance outlive every command that reads a checkpoint and writes another."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import lamina.commands
from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.checkpoint.marks import MARKS, marks_of
from lamina.cli import main
from lamina.command_line import COMMANDS
from lamina.interop.any_format import load_any
from lamina.parts.residuals import DefaultInit
from tiny import TINY_FLAGS, make_data

ALL_MARKS = {"averaged": ["a.pt", "b.pt"], "pruned": "whole.pt", "folded": "admin", "from": "fairseq",
             "layers": {"encoder": "0,2 of 6"}}
LAYERS = ("--encoder-layers", "2", "--decoder-layers", "2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A plain run and one with Admin, and their data; not to be written to."""
    folder = tmp_path_factory.mktemp("marks")
    data = make_data(folder)
    for init in ("default", "admin"):
        assert main(["train", str(data), *TINY_FLAGS, *LAYERS, "--max-update", "1", "--init-type", init, "--disable-validation",
                     "--save-dir", str(folder / init)]) == 0
    return folder


class Bench:
    """A marked checkpoint in a folder of its own."""

    def __init__(self, trained, folder, marks, init="default"):
        self.folder, self.init = folder, init
        self.data = str(trained / "data")
        self.path = str(folder / "in" / "checkpoint_last.pt")
        whole = load_checkpoint(trained / init / "checkpoint_last.pt")
        save_checkpoint(Path(self.path), replace(whole, training=whole.training | marks))

    def out(self, name="out.pt"):
        return str(self.folder / name)

    def train(self, *words):
        flags = [*TINY_FLAGS, *LAYERS, "--init-type", self.init, "--max-update", "2", "--disable-validation"]
        assert main(["train", self.data, *flags, *words]) == 0

    def resume(self):
        self.train("--save-dir", str(self.folder / "in"))
        return self.path

    def restore(self):
        self.train("--save-dir", self.out(), "--restore-file", self.path, "--reset-optimizer", "--reset-meters",
                   "--reset-dataloader", "--reset-lr-scheduler")
        return self.out("out.pt/checkpoint_last.pt")

    def finetune(self):
        self.train("--save-dir", self.out(), "--finetune-from-model", self.path)
        return self.out("out.pt/checkpoint_last.pt")

    def average(self):
        assert main(["average", "--inputs", self.path, self.path, "--output", self.out()]) == 0
        return self.out()

    def prune(self):
        assert main(["prune", self.path, "--decoder-layers-to-keep", "0", "--output", self.out()]) == 0
        return self.out()

    def fold(self):
        assert main(["fold", self.path, "--output", self.out()]) == 0
        return self.out()

    def export(self, kind="safetensors"):
        assert main(["export", self.path, "--format", kind, "--output", self.out(kind)]) == 0
        return self.out(kind)

    def export_for_fairseq(self):
        return f"{self.export('fairseq')}/model.pt"

    def convert(self):
        assert main(["convert", self.export(), "--output", self.out()]) == 0
        return self.out()

    def convert_from_fairseq(self):
        assert main(["convert", self.export_for_fairseq(), "--output", self.out()]) == 0
        return self.out()


# A command, ways to use it, and the marks that it sets itself or that it refuses.
WAYS = {"train": (("resume", "restore", "finetune"), ()), "average": (("average",), ("averaged",)),
        "prune": (("prune",), ("pruned", "folded")), "fold": (("fold",), ("folded",)),
        "export": (("export", "export_for_fairseq"), ()), "convert": (("convert", "convert_from_fairseq"), ())}


@pytest.mark.parametrize(("way", "own"), [(way, own) for ways, own in WAYS.values() for way in ways])
def test_marks_survive(trained, tmp_path, way, own):
    marks = {name: value for name, value in ALL_MARKS.items() if name not in own}
    written = load_any(getattr(Bench(trained, tmp_path, marks, "admin" if way == "fold" else "default"), way)())
    found = marks_of(written)
    assert {name: found.get(name) for name in marks} == marks
    assert found.keys() <= {*marks, *own, *(("from",) if "fairseq" in way else ())}


def test_all_marks_and_all_commands_that_write_checkpoints_are_tried():
    assert ALL_MARKS.keys() == MARKS.keys()
    writes = re.compile(r"save_checkpoint|write_folder|start_training")
    folder = Path(lamina.commands.__file__).parent
    assert {file.stem for file in folder.glob("*.py") if writes.search(file.read_text(encoding="utf-8"))} == WAYS.keys()
    assert WAYS.keys() <= COMMANDS.keys()


@pytest.mark.parametrize("way", [None, "finetune", "average", "export_for_fairseq", "convert"])
def test_a_folded_model_cannot_be_pruned_whatever_was_done_to_it(trained, tmp_path, capsys, way):
    bench = Bench(trained, tmp_path, {"folded": "admin"})
    path = bench.path if way is None else getattr(bench, way)()
    assert main(["prune", path, "--decoder-layers-to-keep", "0", "--output", str(tmp_path / "small.pt")]) == 2
    assert "Prune the model as it was trained" in capsys.readouterr().err
    assert load_any(path).model_config().init == DefaultInit()
