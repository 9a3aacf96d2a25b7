"""Foreign checkpoints on a GPU: read there, gone on from there."""

import pytest
import torch

import lamina
from fairseq_files import as_fairseq
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("precision", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_training_goes_on_from_a_fairseq_file(tmp_path, precision):
    data = make_data(tmp_path)
    flags = [*TINY_FLAGS, "--optimizer", "adam", "--dropout", "0", "--no-epoch-checkpoints", "--reset-dataloader", *precision]
    assert main(["train", str(data), *flags, "--max-update", "3", "--save-dir", str(tmp_path / "ours")]) == 0
    native, foreign = tmp_path / "ours" / "checkpoint_last.pt", tmp_path / "theirs.pt"
    torch.save(as_fairseq(load_checkpoint(native)), foreign)
    weights = []
    for name, path in (("native", native), ("foreign", foreign)):
        assert main(["train", str(data), *flags, "--max-update", "6", "--save-dir", str(tmp_path / name), "--restore-file",
                     str(path)]) == 0
        checkpoint = load_checkpoint(tmp_path / name / "checkpoint_last.pt")
        assert checkpoint.training["progress"]["updates"] == 6
        weights.append(checkpoint.weights)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    one, other = (lamina.load(path, dict_dir=data).translate(["the old boat"], max_len_b=5)[0] for path in (native, foreign))
    assert one.text == other.text
