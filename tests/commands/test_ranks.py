"""Commands on two ranks, and in one process, say and write the same."""

import signal

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from rank_work import run_commands
from tiny import TINY_FLAGS, make_data

# All three techniques at once, with dropout, and an odd number of batches in an epoch, so that a rank goes without at its end.
FLAGS = (*TINY_FLAGS, "--encoder-layers", "3", "--decoder-layers", "2", "--dropout", "0.1", "--init-type", "admin",
         "--surfacefusion", "att", "--transparent-attention", "--encoder-layerdrop", "0.3", "--max-tokens", "40", "--optimizer",
         "nag", "--lr", "0.05", "--eval-bleu", "--cpu")


def train(data, folder, *flags):
    return ["train", str(data), "--save-dir", str(folder), *FLAGS, *flags]


def generate(data, path, folder, *flags):
    return ["generate", str(data), "--path", str(path), "--gen-subset", "train", "--batch-size", "3", "--results-path",
            str(folder), "--cpu", *flags]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every command that a test below looks at, in two processes that are started once."""
    folder = tmp_path_factory.mktemp("ranks")
    data = make_data(folder, num_lines=48)
    assert main(train(data, folder / "one", "--max-epoch", "2", "--update-freq", "2")) == 0
    assert main(train(data, folder / "first-alone", "--max-update", "3", "--update-freq", "2")) == 0
    best = folder / "one" / "checkpoint_best.pt"
    assert main(generate(data, best, folder / "text-one")) == 0
    assert main(generate(data, best, folder / "scores-one", "--score-reference")) == 0
    codes = run_commands(2, [
        train(data, folder / "two", "--max-epoch", "2"),
        train(data, folder / "sharded", "--max-epoch", "2", "--fsdp"),
        train(data, folder / "first-together", "--max-update", "3"),
        train(data, folder / "first-alone", "--max-epoch", "2", "--ddp-backend", "fully_sharded"),
        train(data, folder / "half", "--max-epoch", "1", "--fsdp", "--bf16", "--checkpoint-activations"),
        generate(data, best, folder / "text-two"),
        generate(data, best, folder / "scores-two", "--score-reference"),
        train(folder / "nowhere", folder / "nothing"),
        [train(data, folder / "unlike", "--max-update", "3"),
         train(data, folder / "unlike", "--max-update", "7", "--lr", "0.06", "--log-interval", "9")],
        [train(data, folder / "unlike"), train(make_data(folder / "other", num_lines=40), folder / "unlike")],
    ], folder)
    assert codes == [[0] * 7 + [2] * 3] * 2, (folder / "0.err").read_text() + (folder / "1.err").read_text()
    return data, folder


def same(one, other):
    """The same weights, optimizer and figures."""
    ours, theirs = (load_checkpoint(path / "checkpoint_last.pt") for path in (one, other))
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in ours.weights.items():
        torch.testing.assert_close(theirs.weights[name], weight, rtol=0, atol=1e-6, msg=name)
    for name, value in ours.training["optimizer"]["momentum_buffer"].items():
        torch.testing.assert_close(theirs.training["optimizer"]["momentum_buffer"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert theirs.metrics == pytest.approx(ours.metrics, rel=1e-6)
    position = [{name: part.training["progress"][name] for name in ("updates", "epoch", "batches_done", "epoch_tokens")}
                for part in (ours, theirs)]
    assert position[0] == position[1]


@pytest.mark.parametrize("kind", ["two", "sharded"])
def test_training(runs, kind):
    _, folder = runs
    same(folder / "one", folder / kind)


def test_going_on_with_more_ranks(runs):
    """From the middle of an epoch: what one rank began, two finish."""
    _, folder = runs
    same(folder / "one", folder / "first-alone")


def test_going_on_with_fewer_ranks(runs):
    data, folder = runs
    assert main(train(data, folder / "first-together", "--max-epoch", "2", "--update-freq", "2")) == 0
    same(folder / "one", folder / "first-together")


def test_half_precision_shards(runs):
    _, folder = runs
    metrics = load_checkpoint(folder / "half" / "checkpoint_last.pt").metrics
    alone = load_checkpoint(folder / "one" / "checkpoint1.pt").metrics
    assert metrics["loss"] == pytest.approx(alone["loss"], rel=0.02)


@pytest.mark.parametrize("kind", ["text", "scores"])
def test_generating(runs, kind):
    _, folder = runs
    one, two = ((folder / f"{kind}-{number}" / "generate-train.txt").read_text() for number in ("one", "two"))
    assert one == two


def test_one_rank_speaks(runs):
    data, folder = runs
    lines = (folder / "0.out").read_text().splitlines()
    assert f"| {data}/train: 48 pairs in 8 batches, 0.0 % padding" in lines
    assert "| effective batch: up to 80 tokens (max-tokens 40 x update-freq 1 x 2 ranks)" in lines
    assert (folder / "1.out").read_text() == ""
    errors = [line for rank in range(2) for line in (folder / f"{rank}.err").read_text().splitlines() if "error" in line]
    assert len(errors) == 3
    assert sum(line.startswith("error: there is no data folder") for line in errors) == 1


def test_ranks_that_were_not_started_alike(runs):
    """One line names who differs and in what, before anything is trained or written."""
    _, folder = runs
    lines = [line for rank in range(2) for line in (folder / f"{rank}.err").read_text().splitlines()]
    start = "error: the ranks of this run were not started alike: "
    settings, data = sorted(line.removeprefix(start) for line in lines if line.startswith(start))
    assert settings == ("--lr is 0.06 on rank 1 and 0.05 on rank 0; --max-update is 7 on rank 1 and 3 on rank 0. Start all of "
                        "them with the same options, data and version of Lamina.")
    assert data.startswith("the data file ")
    assert not (folder / "unlike").exists()


def test_starting_by_itself(runs, tmp_path, capfd):
    """`lamina train` starts processes of its own, and an error on any of them is one line and the exit code."""
    hears = signal.getsignal(signal.SIGTERM)
    code = main(["train", str(tmp_path / "nowhere"), *TINY_FLAGS, "--cpu", "--distributed-world-size", "2"])
    assert signal.getsignal(signal.SIGTERM) is hears
    assert code == 2
    assert capfd.readouterr().err.splitlines() == [
        "| starting 2 processes, one for each part of the data",
        f"error: there is no data folder {tmp_path / 'nowhere'}. Make one with `lamina preprocess --destdir "
        f"{tmp_path / 'nowhere'} ...`."]
