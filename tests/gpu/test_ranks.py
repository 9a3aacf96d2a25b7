"""The parts that several GPUs need, on a group of one: NCCL runs, buckets leave from hooks, weights are sharded in one part."""

import pytest
import torch

from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.training.update import Updater
from rank_work import CASES, KINDS, PAIRS, alone, replicated, train_updates
from tiny import batch_of, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_group_of_one_equals_no_group(ranks, name, kind, dtype):
    # Dropout is drawn otherwise where it is captured or compiled, and sharded weights are never captured.
    expected = train_updates(CASES[name], ranks, alone, dtype, cuda_graphs=kind != "sharded")
    found = train_updates(CASES[name], ranks, KINDS[kind], dtype, cuda_graphs=kind != "sharded")
    compare(found, expected, dtype)


def compare(found, expected, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(found.numbers, expected.numbers, rtol=tolerance, atol=tolerance)
    for parameter, value in expected.weights.items():
        torch.testing.assert_close(found.weights[parameter].cpu(), value.cpu(), rtol=tolerance, atol=tolerance, msg=parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_update_asks_the_device_no_question(ranks, dtype):
    model = tiny_model().cuda()
    updater = Updater(model, OptimizationConfig(), PrecisionConfig(), dtype, ranks, replicated(model, dtype, ranks))
    batches = [batch_of(slice(0, 4)).to(ranks.device), batch_of(slice(4, 8)).to(ranks.device)]
    for seed in range(3):  # the second captures, which waits for the device
        updater.update(batches, 1e-3, seed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        updater.update(batches, 1e-3, seed=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
