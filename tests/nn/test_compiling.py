"""The compiler is prepared in a thread, whatever is installed; and what compiled layers keep for the gradient."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from lamina.nn.attention import SelfAttention
from lamina.nn.compiling import RECOMPUTED_NORMS, keep_less, prepare_compiler
from lamina.nn.feed_forward import FeedForward
from lamina.nn.layout import Layout
from lamina.nn.residual import Add, PostNorm, PreNorm
from lamina.nn.stack import EncoderLayer

DIM, ROWS, LENGTH = 16, 2, 7


@pytest.fixture
def triton(monkeypatch):
    names = ("triton", "triton.runtime", "triton.runtime.cache")
    modules = [ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    return modules[-1]


def test_tritons_digest_is_made_ahead(triton):
    asked = []
    triton.triton_key = lambda: asked.append(True)
    prepare_compiler().join()
    assert asked == [True]


def test_a_triton_that_has_its_digest_elsewhere_makes_it_later(triton, capfd):
    prepare_compiler().join()
    assert capfd.readouterr() == ("", "")


def kept(layer, *, is_compiled):
    """Tensors, and the gradient of the input."""
    torch._dynamo.reset()
    run = torch.compile(layer.forward, backend="aot_eager_decomp_partition", dynamic=False) if is_compiled else layer.forward
    found, x = [], torch.linspace(-1, 1, ROWS * LENGTH * DIM).view(ROWS, LENGTH, DIM).requires_grad_()
    layout = Layout.of_ids(torch.full((ROWS, LENGTH), 5), 1)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: found.append(tensor) or tensor, lambda tensor: tensor):
        out = run(x, layout)
    out.square().sum().backward()
    return found, x.grad


@pytest.mark.parametrize(("kind", "fewer"), [(PostNorm, 1), (PreNorm, 2)])
def test_outputs_of_norms_are_computed_again_where_that_is_asked_for(kind, fewer, monkeypatch):
    from torch._functorch import config

    torch.manual_seed(1)
    layer = EncoderLayer(SelfAttention(DIM, 2, 0.0), kind(nn.LayerNorm(DIM), Add(), 0.0),
                         FeedForward(DIM, 5 * DIM, torch.relu, 0.0), kind(nn.LayerNorm(DIM), Add(), 0.0))
    found = []
    with config.patch(ban_recompute_materialized_backward=True):
        for switch in ("0", "1"):
            monkeypatch.setenv(RECOMPUTED_NORMS, switch)
            keep_less()
            found.append(kept(layer, is_compiled=True))
    (tensors, gradient), (less, same) = found
    rows = [sum(tensor.numel() == ROWS * LENGTH * DIM for tensor in own) for own in (tensors, less)]
    assert rows[0] - rows[1] == fewer
    assert sum(tensor.numel() for tensor in less) < sum(tensor.numel() for tensor in tensors)
    assert torch.equal(gradient, same)


def test_a_compiled_layer_keeps_no_signs_of_a_relu_beside_its_result():
    torch.manual_seed(1)
    layer = EncoderLayer(SelfAttention(DIM, 2, 0.0), PostNorm(nn.LayerNorm(DIM), Add(), 0.0),
                         FeedForward(DIM, 5 * DIM, torch.relu, 0.0), PostNorm(nn.LayerNorm(DIM), Add(), 0.0))
    tensors, gradient = kept(layer, is_compiled=True)
    assert not any(tensor.dtype == torch.bool for tensor in tensors)
    assert sum(tensor.numel() == ROWS * LENGTH * 5 * DIM for tensor in tensors) == 1  # what the ReLU returns
    torch.testing.assert_close(gradient, kept(layer, is_compiled=False)[1])
