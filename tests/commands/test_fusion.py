"""The command lines of SurfaceFusion's authors, from text to translations."""

import re
import shlex

import pytest

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.nn.heads import SurfaceHead
from tiny import make_data, write_text

TRAIN = """
train DATA --arch transformer_surface_fusion --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)'
--clip-norm 0.0 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-07 --warmup-updates 4000 --lr 0.0005 --min-lr 1e-09
--dropout 0.3 --weight-decay 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --save-dir OUT --seed 333
--ddp-backend=no_c10d --fp16 --max-tokens 2048 --update-freq 1 --max-update 60000 --keep-last-epochs 1
--surfacefusion att --sf-gate 0.8 --sf-mode hard
"""
# The lines as they are, but for their length and the size of the model.
SMALL = ("--max-update 3 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --encoder-layers 2 --decoder-layers 2 "
         "--encoder-attention-heads 2 --decoder-attention-heads 2")


def run(line, **places):
    words = [word.replace("DATA", str(places["data"])).replace("OUT", str(places["out"])) for word in shlex.split(line)]
    return main(words)


def test_the_published_lines_run(tmp_path, capsys):
    text = write_text(tmp_path / "raw", 30)
    write_text(text, 6, seed=1, split="dev")
    write_text(text, 6, seed=2, split="test")
    places = {"data": tmp_path / "data", "out": tmp_path / "out"}
    assert main(["preprocess", "--source-lang", "en", "--target-lang", "xx", "--trainpref", f"{text}/train", "--validpref",
                 f"{text}/dev", "--testpref", f"{text}/test", "--destdir", str(places["data"]), "--joined-dictionary",
                 "--workers", "20"]) == 0
    assert run(TRAIN + SMALL, **places) == 0
    assert isinstance(load_checkpoint(places["out"] / "checkpoint_best.pt").build_model().head, SurfaceHead)
    assert run("generate DATA --path OUT/checkpoint_best.pt --beam 4 --lenpen 1.0 --remove-bpe", **places) == 0
    assert re.search(r"Generate test with beam=4: BLEU4 = \d", capsys.readouterr().out)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fusion")
    return {"data": make_data(folder), "out": folder / "out"}


def test_forms_that_starve_the_decoder_come_with_advice(places, capsys):
    line = TRAIN.replace("--sf-gate 0.8", "").replace("transformer_surface_fusion", "tiny")
    line += "--max-update 1 --encoder-embed-dim 16 --no-save"
    soft = line.replace("--sf-mode hard", "--sf-mode soft")
    assert run(line, **places) == 0
    assert "--sf-gate 0.8 is the published setting" in capsys.readouterr().out
    assert run(soft, **places) == 0
    assert "--sf-dropout 0.5, which trains the decoder alone" in capsys.readouterr().out
    for one in (line, soft):
        assert run(f"{one} --sf-dropout 0.5", **places) == 0
        assert "--sf-dropout 0.5" not in capsys.readouterr().out


def perplexity(text):
    return float(re.search(r"Perplexity: ([\d.]+)", text)[1])


def test_what_is_called_a_perplexity_is_one(places, tmp_path, capsys):
    """Validation and rescore report one figure for one set: that of the normalised scores."""
    assert run(TRAIN + SMALL, **places) == 0
    valid = float(re.search(r"valid on 'valid' subset .* ppl ([\d.]+)", capsys.readouterr().out)[1])
    text = places["data"].parent / "text"
    assert run(f"rescore --path OUT/checkpoint_last.pt --source {text}/valid.en --target {text}/valid.xx", **places) == 0
    assert perplexity(capsys.readouterr().out) == pytest.approx(valid, rel=0.01)


def test_averages_and_ensembles(places, capsys):
    assert run(TRAIN + SMALL + " --max-update 6 --no-save-optimizer-state --keep-last-epochs -1", **places) == 0
    assert run("average --inputs OUT --num-epoch-checkpoints 2 --output OUT/model.pt", **places) == 0
    capsys.readouterr()
    assert run("generate DATA --gen-subset valid --path OUT/model.pt:OUT/checkpoint_last.pt --beam 2", **places) == 0
    assert "BLEU4 = " in capsys.readouterr().out
