"""LayerDrop and pruning on a GPU, from training over a search to translating with fewer layers."""

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.models.build import build_model
from lamina.nn.stack import ActiveLayers
from lamina.pruning.cut import Keep, prune
from tiny import FUSIONS, TINY_FLAGS, VOCABULARY_SIZE, make_data, tiny_config, tiny_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pruned_equals_skipped(dtype):
    config = tiny_config(num_layers=3, **FUSIONS["both"])
    model = tiny_model(config).to("cuda", dtype)
    pruned, weights = prune(config, dict(model.named_parameters()), Keep((1, 2), (0, 2)))
    small = build_model(pruned, VOCABULARY_SIZE, VOCABULARY_SIZE).to("cuda", dtype).eval()
    small.load_state_dict(weights, strict=False)
    source, target = (side.cuda() for side in tiny_pair())
    skipped = model.log_probs(source, target, ActiveLayers((False, True, True), (True, False, True)))
    # The sum of two shares is rounded once in the merged weight, twice in the whole one.
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(small.log_probs(source, target), skipped, rtol=0, atol=tolerance)


@pytest.mark.parametrize("precision", ["--fp16", "--bf16"])
def test_train_search_and_translate(tmp_path, capsys, precision):
    data = str(make_data(tmp_path, num_lines=40))
    flags = [*TINY_FLAGS, "--encoder-layers", "4", "--decoder-layers", "4", precision, "--log-format", "none"]
    assert main(["train", data, *flags, "--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5", "--max-epoch", "2",
                 "--save-dir", str(tmp_path / "full")]) == 0
    full = str(tmp_path / "full" / "checkpoint_last.pt")
    for metric in ("loss", "bleu"):
        assert main(["prune", full, data, "--search", "--decoder-layers", "2", "--curve", "decoder", "--metric", metric,
                     "--output", str(tmp_path / f"{metric}.pt")]) == 0
        assert load_checkpoint(tmp_path / f"{metric}.pt").model_config().decoder.num_layers == 2
    half = tmp_path / "half"
    assert main(["train", data, *flags, "--encoder-layers-to-keep", "2", "--restore-file", full, "--max-epoch", "3",
                 "--save-dir", str(half)]) == 0
    capsys.readouterr()
    assert main(["generate", data, "--gen-subset", "valid", "--path", str(half / "checkpoint_last.pt"), precision]) == 0
    assert "Generate valid with beam=5" in capsys.readouterr().out
