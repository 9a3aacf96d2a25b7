"""LayerDrop and pruning on a GPU, from training over a search to translating with fewer layers."""

import numpy as np
import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.layer_subsets import LayerSubsets
from lamina.data.packing import PackedShape, Sentences, packed
from lamina.models.build import build_model
from lamina.nn import subset as subset_module
from lamina.nn.stack import ActiveLayers
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.residuals import Admin
from lamina.pruning.cut import Keep, prune
from lamina.text.vocabulary import EOS
from lamina.training.update import Updater
from tiny import FUSIONS, TINY_FLAGS, VOCABULARY_SIZE, make_data, tiny_config, tiny_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def kernels_for_few_rows(monkeypatch):
    monkeypatch.setattr(subset_module, "LEAST_ROWS", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pruned_equals_skipped(dtype):
    config = tiny_config(num_layers=3, **FUSIONS["both"])
    model = tiny_model(config).to("cuda", dtype)
    pruned, weights = prune(config, dict(model.named_parameters()), Keep((1, 2), (0, 2)))
    small = build_model(pruned, VOCABULARY_SIZE, VOCABULARY_SIZE).to("cuda", dtype).eval()
    small.load_state_dict(weights, strict=False)
    source, target = (side.cuda() for side in tiny_pair())
    skipped = model.log_probs(source, target, active=ActiveLayers((False, True, True), (True, False, True)))
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
    assert main(["train", data, *flags, "--encoder-layers-to-keep", "even:2", "--restore-file", full, "--max-epoch", "3",
                 "--save-dir", str(half)]) == 0
    capsys.readouterr()
    assert main(["generate", data, "--gen-subset", "valid", "--path", str(half / "checkpoint_last.pt"), precision]) == 0
    assert "Generate valid with beam=5" in capsys.readouterr().out


OPTIMIZATION = OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1), lr=(1e-3,), clip_norm=1.0)
SHAPE = PackedShape(places=512, max_sentences=40, longest=32)
SUBSETS = LayerSubsets(((0.3, 0.0, 0.5), (0.3, 0.3, 0.5)), seed=1)
CAPACITIES = {0.3: 512, 0.5: 384}


def drawn_batch(number):
    random = np.random.default_rng(number)
    sides = []
    for _ in range(2):
        sizes = random.integers(1, 20, 30) + 1
        ids = random.integers(4, VOCABULARY_SIZE, sizes.sum())
        ids[np.cumsum(sizes) - 1] = EOS
        sides.append(Sentences(ids, sizes))
    batch = packed(*sides, SHAPE, range(30))
    return SUBSETS.given_to(batch, 1, number, is_static=True, capacities=CAPACITIES).to(torch.device("cuda"))


def trained(parts, dtype=torch.bfloat16, updates=6, **precision):
    """The way that the weights went, and what updates told."""
    torch.manual_seed(1)
    model = build_model(tiny_config(num_layers=3, **parts), VOCABULARY_SIZE, VOCABULARY_SIZE).cuda()
    notes = []
    updater = Updater(model, OPTIMIZATION, PrecisionConfig(**precision), dtype, note=notes.append)
    start = updater.weights.master.clone()
    results = [updater.update([drawn_batch(number)], 1e-3, 100 + number) for number in range(updates)]
    torch.cuda.synchronize()
    return updater.weights.master - start, [result.numbers.tolist() for result in results], notes


def distance(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("parts", [{}, {"init": Admin()}, FUSIONS["both"], {"is_pre_norm": True}],
                         ids=["plain", "admin", "both", "pre-norm"])
def test_captured_updates_with_a_draw_for_each_sentence_are_the_eager_ones(parts, compiles):
    captured, told, notes = trained(parts, compiles=compiles)
    eager, expected, _ = trained(parts, cuda_graphs=False)
    exact, _, _ = trained(parts, torch.float32)
    assert not any("is off" in note for note in notes), notes
    assert any(note.startswith("captured updates") for note in notes), notes
    for one, other in zip(told, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02)
    assert distance(captured, exact) < max(0.02, 1.2 * distance(eager, exact))


@pytest.mark.parametrize("is_pre_norm", [False, True])
def test_gradients_are_the_same_every_time(is_pre_norm):
    found = [trained({"is_pre_norm": is_pre_norm}, cuda_graphs=False)[0] for _ in range(2)]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
