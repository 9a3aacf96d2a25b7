"""Parts from outside are captured and compiled like built-in ones."""

import shlex
from pathlib import Path

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.plug_ins import restored
from tiny import make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "parts" / "example_parts.py"
LINE = ("train {data} --arch tiny --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --decoder-embed-dim 64 "
        "--encoder-attention-heads 2 --decoder-attention-heads 2 --max-tokens 128 --lr 0.003 --warmup-updates 4 --dropout 0.0 "
        "--max-update 30 --log-format simple --log-interval 5 --init-type layer-scale --fusion mean --criterion focal --seed 2 "
        "--user-dir {parts} --save-dir {folder} --no-epoch-checkpoints ")


@pytest.mark.parametrize("flags", ["--no-compile", ""], ids=["captured", "compiled"])
def test_the_example_trains_captured_as_it_does_eager(tmp_path, capsys, flags):
    with restored():
        data, losses = make_data(tmp_path, 40), {}
        for name, own in (("eager", "--no-cuda-graphs --no-compile"), ("captured", flags)):
            capsys.readouterr()
            line = LINE.format(data=data, parts=EXAMPLE, folder=tmp_path / name) + own
            assert main(shlex.split(line)) == 0
            said = "".join(capsys.readouterr())
            assert ("captured updates for batches of this shape" in said) == (name == "captured"), said
            assert "since it failed" not in said
            losses[name] = load_checkpoint(tmp_path / name / "checkpoint_last.pt").metrics["loss"]
        # bfloat16, another order of the same kernels
        assert losses["captured"] == pytest.approx(losses["eager"], rel=0.02)
        path = tmp_path / "captured" / "checkpoint_last.pt"
        assert main(shlex.split(f"generate {data} --gen-subset valid --quiet --path {path}")) == 0
