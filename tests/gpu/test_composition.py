"""Fusion, residuals and skipped layers on a GPU: the processor's numbers, and no question to the device."""

import pytest
import torch

from lamina.config.search_options import SearchConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import Batch
from lamina.decode.search import Search
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.residuals import Admin, DeepNet, ReZeroPostNorm
from lamina.training.update import Updater
from tiny import FUSIONS, tiny_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

MODELS = {**FUSIONS, "admin": {"init": Admin()}, "deepnet": {"init": DeepNet()}, "rezero": {"init": ReZeroPostNorm()},
          "admin and both": {"init": Admin(), **FUSIONS["both"]}}
SOME = ActiveLayers(encoder=(True, False, True), decoder=(False, True, True))


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def parts(request):
    return request.param


@pytest.mark.parametrize("runs", [ALL_LAYERS, SOME], ids=["all", "some"])
def test_log_probs_and_beams_match_the_cpu(parts, active):
    model, (source, target) = tiny_model(num_layers=3, **parts), tiny_pair()
    expected = model.log_probs(source, target, active=active)
    config = SearchConfig(beam=3, nbest=3, max_length_offset=8)
    found = [[hypothesis.ids for hypothesis in row] for row in Search([model], config).run(source)]
    model.cuda()
    torch.testing.assert_close(model.log_probs(source.cuda(), target.cuda(), active=active).cpu(), expected, rtol=1e-4, atol=1e-4)
    assert [[hypothesis.ids for hypothesis in row] for row in Search([model], config).run(source.cuda())] == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_update_asks_the_device_no_question(parts, dtype):
    model, (source, target) = tiny_model(num_layers=3, dropout_p=0.1, **parts).cuda(), tiny_pair()
    batch = Batch(source, target, target.roll(-1, dims=1), num_source_tokens=source.numel(), num_target_tokens=target.numel(),
                  indices=(0, 1, 2)).to(torch.device("cuda"))
    updater = Updater(model, OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1)), PrecisionConfig(), dtype)
    updater.update([batch], 1e-3, seed=1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = updater.update([batch], 1e-3, seed=2, draws=[SOME])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    result.wait()
    assert result.numbers.isfinite().all()
