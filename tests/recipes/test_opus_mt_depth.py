"""The recipe that takes a Marian model along: a small one of random weights, and a corpus of one's own."""

import pytest

import lamina
from huggingface_models import marian_folder
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.recipes.results import read_rows
from tiny import write_text

SIZES = ("--encoder-embed-dim 32 --encoder-ffn-embed-dim 48 --encoder-attention-heads 2 --max-source-positions 64 "
         "--max-target-positions 64 --max-tokens 256 --validate-interval-updates 0 --log-interval 1 --cpu")


@pytest.fixture
def downloads(tmp_path):
    folder = tmp_path / "mine"
    marian_folder(folder / "model", encoder_layers=6, decoder_layers=6, end_bias=4.0)
    for number, (split, lines) in enumerate((("train", 30), ("valid", 6), ("test", 6))):
        write_text(folder, lines, seed=number, split=split)
        for ending, side in (("en", "source"), ("xx", "target")):
            (folder / f"{split}.{ending}").rename(folder / f"{split}.{side}")
    return folder


def test_a_marian_model_on_ones_own_text_at_any_depth(tmp_path, downloads, in_process):
    assert main(["recipe", "run", "opus_mt_depth", "--variants", "layerdrop", "--data", str(downloads), "--out",
                 str(tmp_path / "out"), "--workers", "1", "--budget", "0.002x", "--train-flags", SIZES]) == 0
    rows = {row["cut"]: row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert set(rows) == {"", "6L-3L", "6L-2L", "3L-3L", "6L-2L_searched"}
    for row in rows.values():
        assert row["status"] == "done"
        assert {"test BLEU", "test chrF"} <= row["figures"].keys()
    assert "--decoder-layerdrop=0.2" in rows[""]["train"]
    (folder,) = (tmp_path / "out" / "work" / "checkpoints" / "opus_mt_depth").iterdir()
    trained = load_checkpoint(folder / "checkpoint_best.pt")
    began = lamina.load(downloads / "model", device="cpu", notice=lambda _: None)
    # It went on from the model's weights, with its dictionaries, pieces and rules.
    ours = lamina.load(folder / "checkpoint_best.pt", device="cpu")
    assert [own.symbols for own in ours.vocabularies] == [own.symbols for own in began.vocabularies]
    config = trained.model_config()
    assert (config.manners.forbidden, config.decoder.reads, config.decoder.layer_drop_p) == ((0,), ("2:0",), 0.2)
    for name, weight in began.models[0].named_parameters():
        assert 0 < (trained.weights[name] - weight).abs().max() < 0.01, name
    # The depth is chosen while it is used, or when it is given away.
    shallow = ours.prune(decoder=[0, 3])
    assert len(shallow.models[0].decoder.layers) == 2
    assert shallow.translate("a small boat").text is not None
    assert main(["prune", str(folder / "checkpoint_best.pt"), "--decoder-layers-to-keep", "even:2", "--output",
                 str(tmp_path / "small.pt")]) == 0
    assert main(["export", str(tmp_path / "small.pt"), "--format", "huggingface", "--output", str(tmp_path / "small")]) == 0
