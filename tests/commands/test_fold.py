"""`lamina fold`, in-process."""

import re

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("fold")))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert main(["train", data, *TINY_FLAGS, "--encoder-layers", "2", "--decoder-layers", "2", "--init-type", "admin",
                 "--max-epoch", "6", "--save-dir", str(folder)]) == 0
    return folder / "checkpoint_last.pt"


def translations(data, path, capsys):
    capsys.readouterr()
    assert main(["generate", data, "--path", str(path), "--gen-subset", "valid", "--beam", "3"]) == 0
    # Texts to the letter, scores to the digits that do not depend on the order of a sum.
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith(("S-", "T-", "D-"))]
    return [(*row[:-2], round(float(row[-2]), 4), row[-1]) if row[0].startswith("D-") else tuple(row) for row in rows]


def test_a_folded_checkpoint_translates_the_same(data, trained, tmp_path, capsys):
    output = tmp_path / "plain.pt"
    assert main(["fold", str(trained), "--output", str(output)]) == 0
    assert "folded admin residuals" in capsys.readouterr().out
    assert translations(data, output, capsys) == translations(data, trained, capsys)
    folded, before = load_checkpoint(output), load_checkpoint(trained)
    assert folded.config["init-type"] == "default"
    assert "admin-profile-batches" not in folded.config
    assert folded.training == {"folded": "admin"}
    assert before.training.keys() > {"optimizer"}
    assert not any(".add." in name for name in folded.weights)
    assert all(weight.dtype == torch.float32 for weight in folded.weights.values())


def test_training_goes_on_from_a_folded_model(data, trained, tmp_path):
    output = tmp_path / "plain.pt"
    assert main(["fold", str(trained), "--output", str(output)]) == 0
    flags = [flag for flag in TINY_FLAGS if flag != "--share-all-embeddings"]
    assert main(["train", data, *flags, "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-learned-pos",
                 "--decoder-learned-pos", "--max-update", "1", "--finetune-from-model", str(output),
                 "--save-dir", str(tmp_path)]) == 0


@pytest.mark.parametrize("init", ["admin", "deepnet"])
@pytest.mark.parametrize("embedding", [[], ["--layernorm-embedding"]])
def test_the_flags_before_folding_say_which_are_needed_after_it(data, tmp_path, capsys, init, embedding):
    """With --layernorm-embedding a folded DeepNet has the weights of one that was not, and would be scaled twice."""
    flags = [*TINY_FLAGS, "--encoder-layers", "2", "--decoder-layers", "2", "--disable-validation", *embedding]
    assert main(["train", data, *flags, "--init-type", init, "--max-update", "1", "--save-dir", str(tmp_path)]) == 0
    output = tmp_path / "plain.pt"
    assert main(["fold", str(tmp_path / "checkpoint_last.pt"), "--output", str(output)]) == 0
    line = ["train", data, *flags, "--max-update", "1", "--save-dir", str(tmp_path / "on"), "--finetune-from-model",
            str(output)]
    capsys.readouterr()
    assert main([*line, "--init-type", init]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    needed = re.search(r"use (--.*)\.$", error)[1].split()
    assert needed[-2:] == ["--init-type", "default"]
    assert "was folded" in error
    assert ("--no-share-all-embeddings" in needed) == ("--encoder-positions" in needed) == (not embedding)
    assert main([*line, "--init-type", init, *needed]) == 0
    assert "warning" not in capsys.readouterr().out


def test_errors(data, trained, tmp_path, capsys):
    assert main(["fold", str(trained)]) == 2
    assert "--output is missing" in capsys.readouterr().err
    assert main(["fold", str(trained), "--output", str(trained)]) == 2
    assert "is one of the inputs" in capsys.readouterr().err
    assert main(["fold", str(tmp_path / "nothing.pt"), "--output", str(tmp_path / "x.pt")]) == 2
    assert "there is no checkpoint" in capsys.readouterr().err
    output = tmp_path / "plain.pt"
    assert main(["fold", str(trained), "--output", str(output)]) == 0
    assert main(["fold", str(output), "--output", str(tmp_path / "again.pt")]) == 2
    assert "nothing to fold" in capsys.readouterr().err
    assert main(["generate", data, "--path", str(output), "--gen-subset", "valid", "--encoder-layers-to-keep", "1"]) == 2
    assert "Prune the model as it was trained" in capsys.readouterr().err
    assert not (tmp_path / "again.pt").exists()
