"""`--lr-scheduler reduce_lr_on_plateau`: a rate that falls where validation gets no better, also across interruptions."""

import json

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

# An improvement by less than half of the best loss is none here: every validation but the first is bad.
FLAGS = ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-shrink", "0.5", "--lr-threshold", "0.5", "--lr", "0.01",
         "--warmup-updates", "0", "--dropout", "0.2", "--log-format", "json", "--cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(make_data(tmp_path_factory.mktemp("plateau")))


def train(data, folder, *flags):
    return main(["train", data, *TINY_FLAGS, *FLAGS, "--save-dir", str(folder), *flags])


def rates(text):
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [row["lr"] for row in rows if "train_wall" in row]


def test_the_rate_falls_once_an_epoch_without_improvement(data, tmp_path, capsys):
    assert train(data, tmp_path / "a", "--max-epoch", "5") == 0
    assert rates(capsys.readouterr().out) == [0.01, 0.01, 0.005, 0.0025, 0.00125]
    assert train(data, tmp_path / "b", "--max-epoch", "5", "--lr-patience", "1") == 0
    assert rates(capsys.readouterr().out) == [0.01, 0.01, 0.01, 0.005, 0.005]
    assert train(data, tmp_path / "c", "--max-epoch", "5", "--validate-interval", "2") == 0
    assert rates(capsys.readouterr().out) == [0.01, 0.01, 0.01, 0.01, 0.005]
    assert train(data, tmp_path / "d", "--max-epoch", "9", "--min-lr", "0.003") == 0
    assert "the learning rate has fallen to its floor" in capsys.readouterr().out


def test_resuming_goes_on_with_the_rate_and_the_best_score(data, tmp_path, capsys):
    assert train(data, tmp_path / "whole", "--max-epoch", "5") == 0
    expected = rates(capsys.readouterr().out)
    found = []
    for updates in range(1, 40):
        assert train(data, tmp_path / "parts", "--max-epoch", "5", "--max-update", str(updates)) == 0
        found += rates(capsys.readouterr().out)
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert parts.training["progress"]["schedule"]["rate"] < expected[-1]
    assert whole.training["progress"]["epoch"] == parts.training["progress"]["epoch"] == 6
    assert set(expected) <= set(found)


@pytest.mark.parametrize("flag", ["--reset-lr-scheduler", "--reset-optimizer"])
def test_a_schedule_that_is_reset_forgets_what_validation_said(data, tmp_path, capsys, flag):
    assert train(data, tmp_path, "--max-epoch", "4") == 0
    capsys.readouterr()
    assert train(data, tmp_path, "--max-epoch", "5", flag, "--restore-file", str(tmp_path / "checkpoint4.pt")) == 0
    assert rates(capsys.readouterr().out) == [0.01]


def test_another_score_is_not_compared_with_the_old_one(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "3") == 0
    before = load_checkpoint(tmp_path / "checkpoint_last.pt").training["progress"]["schedule"]
    assert before.keys() == {"best", "stale", "rate"}
    bleu = ["--eval-bleu", "--best-checkpoint-metric", "bleu"]
    assert train(data, tmp_path, "--max-epoch", "4", *bleu, "--lr-patience", "9") == 0
    after = load_checkpoint(tmp_path / "checkpoint_last.pt").training["progress"]["schedule"]
    assert after["rate"] == before["rate"]
    assert after.get("best") != before["best"]


def test_resumed_in_the_middle_of_an_epoch_weights_are_the_same_to_the_bit(data, tmp_path):
    assert train(data, tmp_path / "whole", "--max-epoch", "4", "--no-epoch-checkpoints") == 0
    flags = ["--max-epoch", "4", "--no-epoch-checkpoints", "--save-interval-updates", "1"]
    assert train(data, tmp_path / "all", *flags) == 0
    # Nothing but a signal stops inside an epoch without validating: that is what tests/properties/test_resume.py does.
    updates = load_checkpoint(tmp_path / "all" / "checkpoint_last.pt").training["progress"]["updates"]
    middle = next(path for path in (tmp_path / "all").glob(f"checkpoint_*_{updates - 3}.pt"))
    assert train(data, tmp_path / "rest", *flags, "--restore-file", str(middle)) == 0
    whole, rest = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "rest"))
    assert all(torch.equal(value, rest.weights[name]) for name, value in whole.weights.items())
    assert whole.training["progress"]["schedule"] == rest.training["progress"]["schedule"]


def test_it_needs_validation(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-epoch", "1", "--disable-validation") == 2
    assert "--lr-scheduler reduce_lr_on_plateau looks at validation: leave out --disable-validation." in capsys.readouterr().err
