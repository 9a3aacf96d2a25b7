"""--fsdp keeps gathered weights where they fit, and replays its passes; what it then saves is resumed by one that reshards."""

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.distributed.launch import ALWAYS_A_GROUP
from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_a_small_model_is_captured_and_resumes_resharded(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(ALWAYS_A_GROUP, "1")
    data = make_data(tmp_path, num_lines=48)

    def train(folder, updates, *flags):
        capsys.readouterr()
        assert main(["train", str(data), *TINY_FLAGS, "--fp32", "--fsdp", "--dropout", "0", "--lr", "0.05", "--optimizer",
                     "nag", "--no-compile", "--max-update", str(updates), "--save-dir", str(tmp_path / folder), *flags]) == 0
        return load_checkpoint(tmp_path / folder / "checkpoint_last.pt").weights, capsys.readouterr().out

    whole, said = train("whole", 8)
    assert "--fsdp keeps gathered weights, which takes" in said
    assert "captured updates for batches of this shape" in said
    train("parts", 4)
    parts, said = train("parts", 8, "--reshard-after-forward")
    assert "--fsdp gathers weights in the middle of a pass where it reshards" in said
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=0, atol=1e-5, msg=name)
