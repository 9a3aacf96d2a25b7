"""Linear layers are torch's, whoever multiplies."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lamina.nn.linear as module
from lamina.nn.linear import Linear
from lamina.nn.prepacked import can_prepack
from tiny import batch_of, tiny_model

needs_onednn = pytest.mark.skipif(not can_prepack(), reason="needs torch's oneDNN kernels")


@pytest.fixture
def onednn(monkeypatch):
    """As on a processor of AMD's, for matrices of any size; how often it was called."""
    calls, real = [], module.product
    monkeypatch.setattr(module, "SMALLEST_MATRIX", 1)
    monkeypatch.setattr(module, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(module, "product", lambda *given: calls.append(given) or real(*given))
    return calls


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24), (1, 1, 24)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_product_and_gradients_are_those_of_torch(onednn, shape, has_bias):
    torch.manual_seed(1)
    layer, x = Linear(24, 40, bias=has_bias), torch.randn(shape, requires_grad=True)
    # A gradient that does not lie row by row, as attention's.
    out_grad = torch.randn(*shape[:-1], 80)[..., ::2]
    weights = [x, *layer.parameters()]
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(torch.autograd.grad(layer(x), weights, out_grad),
                               torch.autograd.grad(expected, weights, out_grad))
    assert len(onednn) == 3


@needs_onednn
def test_a_model_trains_with_it(onednn):
    batch = batch_of(slice(0, 8))
    model = tiny_model(num_layers=2)
    own = torch.autograd.grad(model(*batch.inputs)[0].features.square().mean(), model.encoder.layers[0].ffn.fc1.weight)
    assert onednn
    onednn.clear()
    with torch.no_grad():
        model(*batch.inputs)
    assert not onednn  # only where there is something to train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "is_onednn_faster", lambda: False)
        other = torch.autograd.grad(model(*batch.inputs)[0].features.square().mean(), model.encoder.layers[0].ffn.fc1.weight)
    assert not onednn
    torch.testing.assert_close(own, other)


def test_others_are_left_to_torch(onednn):
    layer = Linear(4, 3)
    layer.double()(torch.randn(2, 4, dtype=torch.float64, requires_grad=True)).sum().backward()
    layer.float().requires_grad_(False)(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert not onednn
    assert isinstance(layer, nn.Linear)
