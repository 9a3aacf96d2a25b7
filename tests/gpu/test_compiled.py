"""Layers of sharded weights, compiled for a GPU (tests/cuda_graphs/test_compiled_pass.py has what needs none)."""

import pytest
import torch

from lamina.parts.residuals import Admin
from rank_work import FUSIONS, Case, batch, recomputed, sharded, train_updates
from tiny import tiny_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

# Dropout is drawn otherwise where it is compiled. Batches of one shape, which is compiled when it comes again.
WITHOUT_DRAWS = {"plain": Case(tiny_config(), batch=lambda place: batch(0)),
                 "admin, fused": Case(tiny_config(init=Admin(), **FUSIONS["att hard"]), batch=lambda place: batch(0)),
                 "recomputed": Case(tiny_config(), recomputed, batch=lambda place: batch(0))}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_compiled_layers_of_sharded_weights_equal_eager_ones(ranks, name, dtype):
    notes = []
    case = WITHOUT_DRAWS[name]
    expected = train_updates(case, ranks, sharded, dtype, cuda_graphs=False)
    found = train_updates(case, ranks, sharded, dtype, note=notes.append)
    assert any(note.startswith("compiled layers") for note in notes), notes
    torch.testing.assert_close(found.numbers, expected.numbers, rtol=5e-2, atol=5e-2)
    for parameter, value in expected.weights.items():
        torch.testing.assert_close(found.weights[parameter], value, rtol=5e-2, atol=5e-2, msg=parameter)
