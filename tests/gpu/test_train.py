"""Training on a GPU: same numbers as on the CPU, in all three precisions."""

import json
from pathlib import Path

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import TINY_FLAGS, make_data, tiny_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def losses(capsys):
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    return [row["loss"] for row in rows if row.get("where") == "valid"]


def train(data: Path, save_dir: Path, *flags: str) -> int:
    return main(["train", str(data), *TINY_FLAGS, "--save-dir", str(save_dir), "--log-format", "json", *flags])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("gpu"))


@pytest.mark.parametrize("precision", [["--fp32"], [], ["--fp16"]], ids=["fp32", "bf16", "fp16"])
def test_training_matches_the_cpu(data, tmp_path, capsys, precision):
    flags = ["--max-epoch", "8", "--dropout", "0.0"]
    assert train(data, tmp_path / "cpu", *flags, "--cpu") == 0
    expected = losses(capsys)
    assert train(data, tmp_path / "gpu", *flags, *precision, "--no-pack") == 0
    found = losses(capsys)
    assert expected[-1] < expected[0] - 0.3
    assert found == pytest.approx(expected, rel=2e-4 if precision == ["--fp32"] else 2e-2)
    assert load_checkpoint(tmp_path / "gpu" / "checkpoint_last.pt").weights["encoder.layers.0.ffn.fc1.weight"].dtype == \
        torch.float32


def test_resuming_on_the_gpu(data, tmp_path):
    flags = ["--dropout", "0.2", "--bf16"]
    assert train(data, tmp_path / "whole", *flags, "--max-epoch", "4") == 0
    assert train(data, tmp_path / "parts", *flags, "--max-epoch", "2") == 0
    assert train(data, tmp_path / "parts", *flags, "--max-epoch", "4") == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").weights for name in ("whole", "parts"))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_log_probs_match_the_cpu():
    source, target = tiny_pair()
    source = torch.cat([source, torch.full((3, 2), 1)], dim=1)
    model = tiny_model()
    expected = model.log_probs(source, target)
    torch.testing.assert_close(model.cuda().log_probs(source.cuda(), target.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_an_update_asks_the_device_no_question(data):
    """The step must stay capturable: reading a value back inside it would stall the device."""
    from lamina.config.parser import resolve
    from lamina.config.train_options import TrainConfig
    from lamina.distributed.ranks import Ranks
    from lamina.training.run import open_run

    run = open_run(resolve(TrainConfig, {"data": str(data), "arch": "tiny", "max-tokens": 64, "bf16": True, "update-freq": "2",
                                    "log-format": "none"}),
              Ranks(device=torch.device("cuda")))
    batches = list(run.feeds.train(1).batches(1))
    run.updater.update(batches[:1], 1e-3, seed=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.updater.update(batches[:2], 1e-3, seed=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
