"""Linear layers are torch's, with any library's products."""

import os

import pytest
import torch
from torch.nn import functional as F

import lamina.nn.linear as module
from lamina.cli import main
from lamina.nn.linear import CACHES, KERNELS_KEPT, Linear, add_product_, has_onednn, keep_few_kernels, linear, product
from tiny import TINY_FLAGS, batch_of, make_data, tiny_model

needs_onednn = pytest.mark.skipif(not has_onednn(), reason="no oneDNN kernels here")


@pytest.fixture
def calls(monkeypatch):
    """oneDNN multiplies matrices of any size; how often it was asked for a product."""
    made, real = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(module, "SMALLEST_PRODUCT", 1)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *given: made.append(given) or real(*given))
    return made


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24), (1, 1, 24)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_product_and_gradients_are_those_of_torch(calls, shape, has_bias):
    torch.manual_seed(1)
    layer, x = Linear(24, 40, bias=has_bias), torch.randn(shape, requires_grad=True)
    # A gradient that does not lie row by row, as attention's.
    out_grad = torch.randn(*shape[:-1], 80)[..., ::2]
    weights = [x, *layer.parameters()]
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(torch.autograd.grad(layer(x), weights, out_grad),
                               torch.autograd.grad(expected, weights, out_grad))
    assert len(calls) == 4


@needs_onednn
def test_a_gradient_that_nobody_asks_for_is_not_computed(calls):
    layer, x = Linear(24, 40), torch.randn(7, 24, requires_grad=True)
    layer(x.detach()).sum().backward()
    assert len(calls) == 2
    layer.requires_grad_(False)
    layer(x).sum().backward()
    assert len(calls) == 4
    with torch.no_grad():
        layer(x)
    assert len(calls) == 4


@needs_onednn
def test_a_model_learns_the_same(calls, monkeypatch):
    batch, model = batch_of(slice(0, 8)), tiny_model(num_layers=2)

    def gradients():
        calls.clear()
        model.zero_grad()
        sums = model.head.loss(model(*batch.inputs), batch.target, smoothing=0.1, pad_id=model.pad_id)
        sums.loss.backward()
        return [sums.loss.detach(), *(weight.grad.clone() for weight in model.parameters())]

    own = gradients()
    assert len(calls) > 3 * 2 * 5
    monkeypatch.setattr(module, "SMALLEST_PRODUCT", 2**60)
    others = gradients()
    assert not calls
    torch.testing.assert_close(own, others)


@needs_onednn
def test_the_same_bits_each_time(calls):
    torch.manual_seed(1)
    layer, x = Linear(64, 96), torch.randn(5, 33, 64, requires_grad=True)

    def found():
        out = layer(x)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    for first, again in zip(found(), found(), strict=True):
        assert torch.equal(first, again)


def test_others_are_left_to_torch(calls):
    layer = Linear(4, 3)
    layer.double()(torch.randn(2, 4, dtype=torch.float64, requires_grad=True)).sum().backward()
    layer.bfloat16()(torch.randn(2, 4, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert product(torch.ones(2, 4, device="meta"), torch.ones(3, 4, device="meta")).shape == (2, 3)
    assert not calls


def test_small_products_are_left_to_torch(calls, monkeypatch):
    monkeypatch.setattr(module, "SMALLEST_PRODUCT", 6 * 5 * 7)
    x, weight = torch.randn(6, 5, requires_grad=True), torch.randn(7, 5)
    torch.testing.assert_close(linear(x, weight[:6]), F.linear(x, weight[:6]))
    assert not calls
    linear(x, weight)
    assert len(calls) == has_onednn()


@pytest.mark.parametrize("size", [1, 2**60])
def test_products_are_added_up(monkeypatch, size):
    monkeypatch.setattr(module, "SMALLEST_PRODUCT", size)
    x, weight = torch.randn(6, 5), torch.randn(7, 5)
    total = torch.ones(6, 7)
    add_product_(total, x, weight)
    torch.testing.assert_close(total, 1 + x @ weight.t())
    wide = torch.ones(6, 7)
    add_product_(wide, x.bfloat16(), weight.bfloat16())
    torch.testing.assert_close(wide, 1 + (x.bfloat16() @ weight.bfloat16().t()).float())


def test_training_keeps_few_kernels(monkeypatch, tmp_path):
    """A thousand, of batches that have ever other shapes, take gigabytes. What the environment says goes first."""
    environ = {CACHES[0]: "7"}
    keep_few_kernels(environ)
    assert environ == {CACHES[0]: "7", CACHES[1]: str(KERNELS_KEPT)}
    for name in CACHES:
        monkeypatch.delenv(name, raising=False)
    assert main(["train", str(make_data(tmp_path)), *TINY_FLAGS, "--cpu", "--max-update", "1", "--no-save"]) == 0
    assert [os.environ[name] for name in CACHES] == [str(KERNELS_KEPT)] * 2
