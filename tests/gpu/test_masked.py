"""Masked language models and classifiers on a GPU."""

import json

import numpy as np
import pytest
import torch

import lamina
from lamina.cli import main
from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.training.run import open_run
from tiny import TINY_MASKED_FLAGS, write_text

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
FLAGS = TINY_MASKED_FLAGS[:-1]  # less --cpu
TASKS = {"lm": ["--task", "masked_lm", "--sample-break-mode", "eos", "--max-tokens", "256"],
         "task": ["--task", "sentence_prediction", "--num-classes", "2", "--batch-size", "8"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences, and whether they begin with one of the first ten words."""
    folder = tmp_path_factory.mktemp("gpu-masked")
    text = write_text(folder / "text", 60)
    write_text(text, 12, seed=1, split="valid")
    for split in ("train", "valid"):
        lines = (text / f"{split}.en").read_text().splitlines()
        (text / f"{split}.label").write_text("".join(f"{int(line.split()[0] < 'moon')}\n" for line in lines))
    for name, ending in (("lm", "en"), ("task/input0", "en"), ("task/label", "label")):
        assert main(["preprocess", "--only-source", "--trainpref", f"{text}/train.{ending}", "--validpref",
                     f"{text}/valid.{ending}", "--destdir", str(folder / name), "--workers", "1"]) == 0
    return folder


def losses(out):
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [row["loss"] for row in rows if row.get("where") == "valid"]


@pytest.mark.parametrize("precision", [["--fp32"], [], ["--fp16"]], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("task", TASKS)
def test_training_matches_the_cpu(folder, tmp_path, capsys, task, precision):
    flags = [*FLAGS, *TASKS[task], "--lr", "0.003", "--warmup-updates", "4", "--max-epoch", "5", "--log-format", "json",
             "--required-batch-size-multiple", "1"]  # as rows of one shape are filled
    assert main(["train", str(folder / task), *flags, "--save-dir", str(tmp_path / "cpu"), "--cpu"]) == 0
    expected = losses(capsys.readouterr().out)
    assert main(["train", str(folder / task), *flags, "--save-dir", str(tmp_path / "gpu"), *precision]) == 0
    out = capsys.readouterr().out
    assert "captured updates" in out
    assert "is off" not in out
    assert losses(out) == pytest.approx(expected, rel=1e-3 if precision == ["--fp32"] else 3e-2)


@pytest.mark.parametrize("task", TASKS)
def test_an_update_asks_the_device_no_question(folder, task):
    words = {"data": str(folder / task), "arch": "tiny_masked", "bf16": True, "update-freq": "2", "log-format": "none"}
    flags = dict(zip((name.removeprefix("--") for name in TASKS[task][::2]), TASKS[task][1::2], strict=True))
    run = open_run(resolve(TrainConfig, words | flags), Ranks(device=torch.device("cuda")))
    batches = list(run.feeds.train(1).batches(1))
    run.updater.update(batches[:1], 1e-3, seed=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run.updater.update(batches[:2], 1e-3, seed=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_gaps_are_filled_alike(folder, tmp_path):
    assert main(["train", str(folder / "lm"), *FLAGS, *TASKS["lm"], "--max-update", "5", "--save-dir", str(tmp_path)]) == 0
    path = tmp_path / "checkpoint_last.pt"
    one, other = (lamina.load(path, device=device).fill_mask("the <mask> boat") for device in ("cpu", "cuda"))
    np.testing.assert_allclose([own.probability for own in one], [own.probability for own in other], rtol=1e-3)
