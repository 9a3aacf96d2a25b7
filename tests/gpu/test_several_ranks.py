"""Two ranks on one GPU, which talk through gloo: captured updates are those of one process that accumulates."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TWO_RANKS = ("--distributed-world-size", "2", "--distributed-backend", "gloo")
TECHNIQUES = {
    "plain": (),
    "admin": ("--init-type", "admin"),
    "fusion": ("--surfacefusion", "att", "--sf-gate", "0.8", "--transparent-attention"),
    "layerdrop": ("--encoder-layerdrop", "0.4", "--decoder-layerdrop", "0.4"),
    "fp16": ("--fp16",),
    "clipped": ("--clip-norm", "0.1"),
    "accumulated": ("--update-freq", "2"),
    "all": ("--init-type", "admin", "--surfacefusion", "att", "--sf-gate", "0.8", "--encoder-layerdrop", "0.4"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("several"), num_lines=96)


def command(data, folder, *flags):
    return [sys.executable, "-m", "lamina", "train", str(data), *TINY_FLAGS, "--encoder-layers", "3", "--decoder-layers", "3",
            "--dropout", "0", "--max-tokens", "128", "--no-compile", "--log-format", "simple", "--save-dir", str(folder),
            *flags]


def losses(data, folder, *flags):
    """Of each update, and what was printed."""
    strict = {**os.environ, "LAMINA_STRICT_CUDA_GRAPHS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(data, folder, "--max-update", "8", *flags), env=strict, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, (Path(folder) / "train.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["loss"] for row in rows if row["where"] == "train"], done.stdout


@pytest.mark.parametrize("name", TECHNIQUES)
def test_two_ranks_are_one_that_accumulates(data, tmp_path, name):
    flags = TECHNIQUES[name]
    doubled = ("--update-freq", "4" if name == "accumulated" else "2")
    alone, text = losses(data, tmp_path / "alone", *flags, *doubled, "--distributed-world-size", "1")
    both, said = losses(data, tmp_path / "both", *flags, *TWO_RANKS)
    assert "captured updates" in text
    assert "captured updates" in said
    assert both == pytest.approx(alone, rel=0.02)


def test_float32_is_the_same_to_rounding(data, tmp_path):
    alone, _ = losses(data, tmp_path / "alone", "--fp32", "--update-freq", "2", "--distributed-world-size", "1")
    both, _ = losses(data, tmp_path / "both", "--fp32", *TWO_RANKS)
    assert both == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(("precision", "tolerance"), [("--fp32", 1e-6), ("--bf16", 0.02)])
def test_shards_whose_weights_stay_gathered(data, tmp_path, precision, tolerance):
    """The default of --fsdp for a model as small as this one, with all techniques."""
    flags = (*TECHNIQUES["all"], precision)
    alone, _ = losses(data, tmp_path / "alone", *flags, "--update-freq", "2", "--distributed-world-size", "1")
    both, said = losses(data, tmp_path / "both", *flags, "--fsdp", *TWO_RANKS)
    assert "--fsdp keeps gathered weights" in said
    assert "captured updates" in said
    assert both == pytest.approx(alone, rel=tolerance)


def test_a_rank_that_is_killed_while_the_other_replays(data, tmp_path):
    """The launcher starts both again from the last checkpoint, and the run ends as one that nobody disturbed."""
    flags = ("--max-update", "400", "--save-interval-updates", "20", "--disable-validation", "--no-epoch-checkpoints",
             *TWO_RANKS)
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command(data, tmp_path / "torn", *flags), stdout=log, stderr=log)
    try:
        until = time.monotonic() + 240
        while not list((tmp_path / "torn").glob("checkpoint_*_*.pt")):
            assert run.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(ranks_of(run.pid)[1], signal.SIGKILL)
        assert run.wait(240) == 0, (tmp_path / "log").read_text()
    finally:
        run.kill()
        run.wait()
    said = (tmp_path / "log").read_text()
    assert "was killed by SIGKILL: starting all again from the last checkpoint" in said
    assert "captured updates" in said
    assert max(map(int, re.findall(r"num_updates=(\d+)", said))) == 400


def ranks_of(launcher):
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(number) for number in children if b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()]
