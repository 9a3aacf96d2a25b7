"""`lamina info`, in-process."""

import json

import pytest

from fairseq_files import write_fixture_file
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("info")
    data = make_data(folder)
    flags = ["--max-update", "2", "--seed", "7", "--encoder-layers", "2", "--encoder-layerdrop", "0.2",
             "--surfacefusion", "att"]
    assert main(["train", str(data), *TINY_FLAGS, *flags, "--save-dir", str(folder)]) == 0
    return folder


def described(capsys, *words):
    capsys.readouterr()
    assert main(["info", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_everything_as_json(folder, capsys):
    path = folder / "checkpoint_last.pt"
    info = described(capsys, path)
    weights = load_checkpoint(path).weights
    assert info["file"]["bytes"] == path.stat().st_size
    assert info["model"]["encoder"] == {"layers": 2, "model_dim": 16, "ffn_dim": 32, "heads": 2}
    assert info["model"]["decoder"]["layers"] == 1
    assert info["model"]["dictionaries"]["en"] == len(weights["source_embedding.table.weight"])
    assert info["parameters"]["total"] == sum(weight.numel() for weight in weights.values())
    assert info["parameters"]["encoder"] == sum(
        weight.numel() for name, weight in weights.items() if name.startswith("encoder."))
    assert info["techniques"] == {"surfacefusion": "att", "sf-mode": "hard", "encoder-layerdrop": 0.2}
    assert info["training"].items() >= {"seed": 7, "updates": 2, "epoch": 1}.items()
    assert info["metrics"].keys() == {"loss", "nll_loss", "ppl"}
    assert info["origin"]["command"].startswith("lamina train ")
    assert info["versions"].keys() >= {"lamina", "python", "torch", "numpy"}
    assert info["config"]["max-tokens"] == 64


def test_the_epoch_is_the_last_that_was_trained(folder, tmp_path, capsys):
    data = str(folder / "data")
    assert main(["train", data, *TINY_FLAGS, "--max-epoch", "2", "--save-dir", str(tmp_path)]) == 0
    assert {described(capsys, tmp_path / f"checkpoint{epoch}.pt")["training"]["epoch"] for epoch in (1, 2)} == {1, 2}
    assert described(capsys, tmp_path / "checkpoint_last.pt")["training"]["epoch"] == 2


def test_as_text(folder, capsys):
    assert main(["info", str(folder / "checkpoint_last.pt")]) == 0
    out = capsys.readouterr().out
    assert "encoder       layers 2, model dim 16, ffn dim 32, heads 2" in out
    assert "seed" in out
    assert "  max-tokens " in out
    assert "  dropout " not in out  # at its default
    assert "made from" not in out


def test_what_it_was_made_from(folder, capsys):
    last = str(folder / "checkpoint_last.pt")
    assert main(["average", "--inputs", last, "--output", str(folder / "mean.pt")]) == 0
    assert described(capsys, folder / "mean.pt")["made_from"] == {"averaged": ["checkpoint_last.pt"]}
    assert main(["prune", last, "--encoder-layers-to-keep", "0", "--output", str(folder / "small.pt")]) == 0
    info = described(capsys, folder / "small.pt")
    assert info["made_from"] == {"pruned": "checkpoint_last.pt"}
    assert info["techniques"]["encoder-layers-to-keep"] == "0 of 2"
    assert info["model"]["encoder"]["layers"] == 1
    assert main(["info", str(folder / "small.pt")]) == 0
    assert "pruned from  checkpoint_last.pt" in capsys.readouterr().out


def test_a_foreign_file_and_a_folder(folder, tmp_path, capsys):
    info = described(capsys, write_fixture_file(tmp_path / "old", "transformer_postln"))
    assert info["made_from"] == {"from": "fairseq"}
    assert info["parameters"]["total"] > 0
    assert main(["export", str(folder / "checkpoint_last.pt"), "--output", str(tmp_path / "out")]) == 0
    assert described(capsys, tmp_path / "out")["model"]["encoder"]["layers"] == 2


def test_a_file_that_is_no_checkpoint(tmp_path, capsys):
    (tmp_path / "x.pt").write_text("x")
    assert main(["info", str(tmp_path / "x.pt")]) == 2
    assert "cannot be read as a checkpoint" in capsys.readouterr().err


def test_fusion_is_among_the_techniques(tmp_path, capsys):
    data = make_data(tmp_path)
    flags = ["--arch", "tiny", "--transparent-attention", "--max-tokens", "64", "--max-update", "1", "--encoder-embed-dim",
             "16", "--encoder-ffn-embed-dim", "32"]
    assert main(["train", str(data), *flags, "--save-dir", str(tmp_path / "ck")]) == 0
    capsys.readouterr()
    assert main(["info", str(tmp_path / "ck" / "checkpoint_last.pt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["techniques"] == {"fusion": "transparent"}
