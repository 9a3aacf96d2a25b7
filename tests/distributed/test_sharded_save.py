"""Runs whose ranks write a checkpoint together: it is what one file would hold, and any number of ranks resumes from it."""

import shutil

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.checkpoint.runs import read_mark
from lamina.cli import main
from lamina.interop.any_format import load_any
from rank_work import run_commands
from tiny import TINY_FLAGS, make_data

FLAGS = (*TINY_FLAGS, "--encoder-layers", "3", "--decoder-layers", "2", "--dropout", "0.1", "--init-type", "admin",
         "--surfacefusion", "att", "--transparent-attention", "--encoder-layerdrop", "0.3", "--max-tokens", "40", "--optimizer",
         "nag", "--lr", "0.05", "--save-interval-updates", "2", "--keep-interval-updates", "2", "--keep-last-epochs", "1",
         "--cpu")
SHARDED = ("--fsdp", "--sharded-save")


def train(data, folder, *flags):
    return ["train", str(data), "--save-dir", str(folder), *FLAGS, *flags]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded-save")
    data = make_data(folder, num_lines=48)
    codes = run_commands(4, [
        train(data, folder / "file", "--max-epoch", "2", "--fsdp"),
        train(data, folder / "whole", "--max-epoch", "2", *SHARDED),
        train(data, folder / "begun", "--max-update", "3", *SHARDED),
        train(data, folder / "hybrid", "--max-update", "3", *SHARDED, "--fsdp-size", "2", "--no-async-save"),
    ], folder)
    assert codes == [[0] * 4] * 4, (folder / "0.err").read_text()
    return folder


@pytest.fixture(scope="module")
def resumed(runs):
    """With two ranks, with one, and with all weights on each of two."""
    folder = runs / "two"
    folder.mkdir()
    more = ("--max-epoch", "2", "--update-freq", "2")
    for name in ("two-sharded", "two-gathered", "two-replicated", "two-from-hybrid", "one"):
        source = runs / ("hybrid" if name == "two-from-hybrid" else "begun")
        shutil.copytree(source, runs / name)
    unlike = ("--max-update", "2", "--optimizer", "muon", "--freeze", "encoder.layers.0.*", "--fsdp")
    codes = run_commands(2, [
        train(runs / "data", runs / "two-sharded", *more, *SHARDED),
        train(runs / "data", runs / "two-replicated", *more),
        train(runs / "data", runs / "two-from-hybrid", *more, *SHARDED),
        train(runs / "data", runs / "two-gathered", *more, *SHARDED, "--no-reshard-after-forward"),
        train(runs / "data", runs / "unlike-file", *unlike),
        train(runs / "data", runs / "unlike-sharded", *unlike, "--sharded-save"),
    ], folder)
    assert codes == [[0] * 6] * 2, (folder / "0.err").read_text()
    assert main(train(runs / "data", runs / "one", "--max-epoch", "2", "--update-freq", "4", *SHARDED)) == 0
    return runs


def same(one, other, *, tolerance=0.0):
    """Two values made of dictionaries and tensors."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key], tolerance=tolerance)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    else:
        assert one == (pytest.approx(other, rel=1e-5) if isinstance(other, float) else other)


def test_buffers_that_not_all_parameters_have_and_weights_that_are_frozen(resumed):
    found, expected = (load_checkpoint(resumed / f"unlike-{kind}" / "checkpoint_last.pt") for kind in ("sharded", "file"))
    same(found.weights, expected.weights)
    same(found.training["optimizer"], expected.training["optimizer"])
    assert len({len(value) for value in found.training["optimizer"].values() if isinstance(value, dict)}) > 1


NAMES = ("checkpoint_last.pt", "checkpoint_best.pt", "checkpoint2.pt")


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_what_one_file_holds(runs, name, tmp_path):
    """To the bit: weights, optimizer, loss scale, progress, scores; as it is read, and as lamina convert writes it."""
    assert main(["convert", str(runs / "whole" / name), "--output", str(tmp_path / "converted.pt")]) == 0
    expected = load_checkpoint(runs / "file" / name)
    assert read_mark(runs / "whole" / name).shards
    assert not read_mark(tmp_path / "converted.pt").shards
    for found in (load_checkpoint(runs / "whole" / name), load_checkpoint(tmp_path / "converted.pt")):
        same(found.weights, expected.weights)
        assert list(found.weights) == list(expected.weights)
        own, other = dict(found.training), dict(expected.training)
        assert own.pop("run") != other.pop("run")
        for training in (own, other):
            training["progress"] = {**training["progress"], "seconds": 0.0}
        same(own, other)
        same(found.metrics, expected.metrics)
        assert (found.dictionaries, found.languages, found.subwords) == (expected.dictionaries, expected.languages,
                                                                         expected.subwords)
        differing = {key for key, value in found.config.items() if expected.config[key] != value}
        assert differing == {"sharded-save", "save-dir"}


def test_the_same_names_are_kept_and_no_rows_without_one(runs):
    kept = {folder: sorted(path.name for path in (runs / folder).glob("*.pt")) for folder in ("file", "whole")}
    assert kept["whole"] == kept["file"]
    used = {read_mark(path).shards for path in (runs / "whole").glob("*.pt")}
    assert used == {path.name for path in (runs / "whole").iterdir() if path.is_dir()}
    assert not list((runs / "whole").glob(".*.part"))


@pytest.mark.parametrize("name", ["two-sharded", "two-gathered", "two-replicated", "two-from-hybrid", "one"])
def test_another_number_of_ranks_resumes(resumed, name):
    expected, found = (load_checkpoint(resumed / folder / "checkpoint_last.pt") for folder in ("whole", name))
    assert found.training["progress"]["updates"] == expected.training["progress"]["updates"]
    same(found.weights, expected.weights, tolerance=1e-6)
    same(found.training["optimizer"], expected.training["optimizer"], tolerance=1e-5)


def outputs(command, words, place):
    """What a command says and writes; file names, times and what is kept where are its own."""
    import io
    from contextlib import redirect_stdout

    place.mkdir()
    said = io.StringIO()
    with redirect_stdout(said):
        code = main([command, *[word.replace("OUT", str(place / "out.pt")) for word in words]])
    return code, said.getvalue(), load_checkpoint(place / "out.pt").weights if (place / "out.pt").exists() else {}


@pytest.mark.parametrize(("command", "flags"), [
    ("info", ["MODEL"]),
    ("generate", ["DATA", "--path", "MODEL", "--gen-subset", "valid", "--beam", "2", "--cpu"]),
    ("prune", ["MODEL", "--encoder-layers-to-keep", "0,2", "--output", "OUT/out.pt"]),
    ("average", ["--inputs", "MODEL", "--output", "OUT/out.pt"]),
    ("export", ["MODEL", "--format", "safetensors", "--output", "OUT/exported"]),
])
def test_commands_read_it_by_its_name_and_by_its_folder(runs, tmp_path, capsys, command, flags):
    folder = runs / "whole" / read_mark(runs / "whole" / "checkpoint_best.pt").shards
    said = []
    for number, model in enumerate([runs / "file" / "checkpoint_best.pt", runs / "whole" / "checkpoint_best.pt", folder]):
        output = tmp_path / str(number)
        output.mkdir()
        places = {"MODEL": model, "DATA": runs / "data", "OUT": output}
        words = [str(output / word[4:]) if word.startswith("OUT/") else str(places.get(word, word)) for word in flags]
        assert main([command, *words]) == 0, capsys.readouterr().err
        lines = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(("H-", "encoder", "total"))]
        written = [load_any(path) for path in (output / "out.pt", output / "exported") if path.exists()]
        said.append((lines, [checkpoint.weights for checkpoint in written]))
    for found in said[1:]:
        assert found[0] == said[0][0]
        for one, other in zip(found[1], said[0][1], strict=True):
            same(one, other)
    assert any(map(any, said[0])), "a command that says and writes nothing to compare"


def test_where_rows_are_damaged_the_checkpoint_before_is_resumed(runs, tmp_path, capsys):
    folder = shutil.copytree(runs / "whole", tmp_path / "run")
    rows = folder / read_mark(folder / "checkpoint_last.pt").shards / "__1_0.distcp"
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    assert main(train(runs / "data", folder, "--max-epoch", "2", "--update-freq", "4")) == 0
    said = capsys.readouterr()
    assert "__1_0.distcp is damaged" in said.out + said.err
    expected, found = (load_checkpoint(path / "checkpoint_last.pt") for path in (runs / "whole", folder))
    assert found.training["progress"]["updates"] == expected.training["progress"]["updates"]
    same(found.weights, expected.weights, tolerance=1e-6)


def test_one_rank_says_that_it_writes_ordinary_files(resumed):
    assert not read_mark(resumed / "one" / "checkpoint_last.pt").shards
    assert not list((resumed / "one").glob("shards-*-3-*"))  # replaced, and so removed


@pytest.mark.parametrize(("flags", "reason"), [
    ((), "without --fsdp each holds all of them"),
    (("--fsdp", "--finetune-from-model", "base.pt", "--lora-rank", "2", "--lora-merge"), "--lora-merge needs whole matrices"),
])
def test_options_that_exclude_each_other(tmp_path, capsys, flags, reason):
    assert main(train(tmp_path / "data", tmp_path / "run", "--sharded-save", *flags)) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") <= 2
    assert not (tmp_path / "run").exists()
