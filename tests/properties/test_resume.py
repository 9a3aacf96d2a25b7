"""A run that is stopped after every single update ends as one that never was: weights, optimizer, meters, log and files."""

import json
import os
import signal

import pytest
import torch

import lamina.training.run as run_module
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, TINY_MASKED_FLAGS, make_data, write_text

ALL_AT_ONCE = ["--encoder-layers", "3", "--decoder-layers", "2", "--surfacefusion", "att", "--sf-gate", "0.8",
               "--transparent-attention", "--ta-source-embedding", "--ta-dropconnect", "--init-type", "admin",
               "--encoder-layerdrop", "0.4", "--decoder-layerdrop", "0.4", "--layerdrop-schedule", "linear", "--dropout", "0.2",
               "--attention-dropout", "0.1", "--source-word-dropout", "0.1", "--clip-norm", "0.5"]
LANGUAGE_MODEL = ["--task", "language_modeling", "--arch", "tiny_lm", "--decoder-layers", "2", "--decoder-embed-dim", "16",
                  "--decoder-ffn-embed-dim", "32", "--decoder-attention-heads", "2", "--tokens-per-sample", "16",
                  "--max-tokens", "64", "--decoder-layerdrop", "0.3", "--dropout", "0.2", "--criterion", "adaptive_loss",
                  "--adaptive-softmax-cutoff", "10,20", "--adaptive-softmax-dropout", "0.1"]
RUNS = {
    "fusion, Admin and LayerDrop": [*TINY_FLAGS, *ALL_AT_ONCE],
    "accumulated": [*TINY_FLAGS, *ALL_AT_ONCE, "--update-freq", "2", "--optimizer", "nag", "--momentum", "0.9"],
    "muon": [*TINY_FLAGS, *ALL_AT_ONCE, "--optimizer", "muon", "--weight-decay", "0.01", "--no-decay", "norms,biases"],
    "language model": LANGUAGE_MODEL,
    "masked language model": ["--task", "masked_lm", *TINY_MASKED_FLAGS, "--arch", "tiny_masked", "--max-tokens", "96",
                              "--tokens-per-sample", "16", "--encoder-layerdrop", "0.3", "--dropout", "0.2"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    pairs = make_data(folder)
    text = write_text(folder / "one", 16)
    write_text(text, 4, seed=1, split="valid")
    assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.en", "--validpref", f"{text}/valid.en",
                 "--destdir", str(folder / "one-side"), "--workers", "1"]) == 0
    return pairs, folder / "one-side"


def rows(text):
    """What the log says, less what the clock decides."""
    clock = {"wps", "ups", "eta", "mem_gib", "train_wall", "eta_s", "data_wait"}
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{") and "note" not in json.loads(line)]
    return [{name: value for name, value in row.items() if name not in clock} for row in found]


@pytest.mark.parametrize("name", RUNS)
def test_stopping_after_every_update_changes_nothing(folders, tmp_path, capsys, monkeypatch, name):
    pairs, one_side = folders
    data = one_side if "language model" in name else pairs
    words = ["train", str(data), *RUNS[name], "--log-format", "json", "--log-interval", "1", "--seed", "3", "--cpu",
             "--max-epoch", "2", "--validate-interval-updates", "2", "--no-epoch-checkpoints"]
    capsys.readouterr()
    assert main([*words, "--save-dir", str(tmp_path / "whole")]) == 0
    expected = rows(capsys.readouterr().out)
    real = run_module.Updater.update

    def update_and_stop(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *arguments)

    monkeypatch.setattr(run_module.Updater, "update", update_and_stop)
    found, num_stops = [], 0
    while (code := main([*words, "--save-dir", str(tmp_path / "parts")])) == 128 + signal.SIGTERM:
        found += rows(capsys.readouterr().out)
        num_stops += 1
        assert num_stops < 50
    assert code == 0
    found += rows(capsys.readouterr().out)
    whole, parts = (load_checkpoint(tmp_path / folder / "checkpoint_last.pt") for folder in ("whole", "parts"))
    progress, other = ({**checkpoint.training["progress"], "seconds": 0} for checkpoint in (whole, parts))
    assert progress == other
    assert num_stops == progress["updates"]
    assert found == expected
    assert whole.metrics == parts.metrics
    assert all(torch.equal(value, parts.weights[key]) for key, value in whole.weights.items())
    for buffer, state in whole.training["optimizer"].items():
        theirs = parts.training["optimizer"][buffer]
        assert all(torch.equal(value, theirs[key]) for key, value in state.items()) if isinstance(state, dict) else (
            torch.equal(state, theirs))
    assert sorted(os.listdir(tmp_path / "whole")) == sorted(os.listdir(tmp_path / "parts"))
