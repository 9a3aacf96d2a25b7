"""Rows of weights on a GPU, written by the rank that holds them during training: to the bit what one file holds."""

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.checkpoint.runs import read_mark
from lamina.cli import main
from lamina.distributed.launch import ALWAYS_A_GROUP
from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    else:
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
@pytest.mark.parametrize("kept", ["--reshard-after-forward", "--no-reshard-after-forward"])
def test_sharded_checkpoints_are_what_one_file_holds_and_are_resumed(tmp_path, monkeypatch, precision, kept):
    monkeypatch.setenv(ALWAYS_A_GROUP, "1")
    data = make_data(tmp_path, num_lines=48)
    flags = [*TINY_FLAGS, "--init-type", "admin", "--encoder-layers", "3", "--encoder-layerdrop", "0.3", "--fsdp", precision,
             kept, "--save-interval-updates", "2", "--no-cuda-graphs"]
    for updates in ("4", "8"):  # the second time, they are resumed
        for name, more in (("file", ()), ("sharded", ("--sharded-save",))):
            assert main(["train", str(data), "--save-dir", str(tmp_path / name), *flags, *more, "--max-update", updates]) == 0
        found, expected = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("sharded", "file"))
        assert read_mark(tmp_path / "sharded" / "checkpoint_last.pt").shards
        same(found.weights, expected.weights)
        same(found.training["optimizer"], expected.training["optimizer"])
        same(found.training["scale"], expected.training["scale"])
        assert (found.training["scale"]["value"] > 1) == (precision == "--fp16")
