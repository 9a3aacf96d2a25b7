"""Kernels over packed rows compute what torch's operations do: here in Triton's interpreter, on a GPU in tests/gpu."""

import pytest
import torch

from interpreted import check_interpreted, needs_interpreter, starts_interpreter
from kernel_cases import taken_rows
from lamina.nn import packed_attention as packed_module
from lamina.nn import taken_norm as taken_norm_module
from lamina.nn.packed_attention import Tiles, packed_attention
from lamina.nn.taken_norm import take_and_norm, take_and_norm_backward

HEADS = 2


@starts_interpreter
def test_in_the_interpreter():
    check_interpreted(__file__)


def packed_sides(*sizes, places):
    """Sentences of these lengths, and pads behind them, which are sentences too. (N,), (R + 1,)"""
    bounds = torch.tensor([0, *sizes, places - sum(sizes), 0], dtype=torch.int32).cumsum(0).int()
    return torch.arange(1, len(bounds)).repeat_interleave(bounds.diff()).int(), bounds


@needs_interpreter
@pytest.mark.parametrize("channels", [16, 24])
@pytest.mark.parametrize(("has_memory", "is_causal"), [(False, False), (False, True), (True, False)])
def test_attention_and_its_gradient(has_memory, is_causal, channels, monkeypatch):
    torch.manual_seed(0)
    own, read = packed_sides(5, 1, 19, 8, places=40), packed_sides(3, 22, 1, 6, places=35)
    query = torch.randn(40, HEADS * channels * (1 if has_memory else 3), requires_grad=True)
    memory = torch.randn(35, 2 * HEADS * channels, requires_grad=True) if has_memory else None
    weight = torch.randn(40, HEADS * channels)
    weight[33:] = 0.0  # pads
    monkeypatch.setattr(packed_module, "tiles_for", lambda *_: Tiles(16, 16, 4))
    found = []
    for has_kernels in (False, True):
        monkeypatch.setattr(packed_module, "_has_kernels", lambda *_, has_kernels=has_kernels: has_kernels)
        out = packed_attention(query, memory, *own, *(read if has_memory else own), HEADS, is_causal, 0.0)[0]
        gradients = torch.autograd.grad((out * weight).sum(), [query, *([memory] if has_memory else [])])
        found.append([out[:33].detach(), *gradients])
    for expected, computed in zip(*found, strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-5, atol=1e-5)


@needs_interpreter
@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_leaves_the_same_weights_out_of_the_gradient(is_causal, monkeypatch):
    """Kernels draw otherwise than torch does. What they drew shows where each value is the number of its key."""
    places, dropout_p = 32, 0.3
    sentences, bounds = packed_sides(5, 1, 14, 8, places=places)
    monkeypatch.setattr(packed_module, "tiles_for", lambda *_: Tiles(16, 16, 4))
    monkeypatch.setattr(packed_module, "_has_kernels", lambda *_: True)
    torch.manual_seed(0)
    query, key, value = (torch.randn(places, HEADS * places, requires_grad=True) for _ in range(3))

    def attend(value):
        torch.manual_seed(3)  # of dropout
        return packed_attention(torch.cat((query, key, value), dim=1), None, sentences, bounds, sentences, bounds, HEADS,
                                is_causal, dropout_p)[0].unflatten(1, (HEADS, places)).transpose(0, 1)  # (H, N, C)

    is_kept = attend(torch.eye(places).repeat(1, HEADS)).detach() > 0
    may_attend = sentences[:, None] == sentences
    may_attend &= torch.ones_like(may_attend).tril() if is_causal else True
    assert 0.6 < is_kept.sum() / (HEADS * may_attend.sum()) < 0.8
    queries, keys, values = (part.unflatten(1, (HEADS, places)).transpose(0, 1) for part in (query, key, value))
    scores = (queries @ keys.mT * places**-0.5).masked_fill(~may_attend, -torch.inf)
    expected = (scores.softmax(dim=2) * is_kept / (1 - dropout_p)) @ values
    weight = torch.randn(expected.shape)
    found = attend(value)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad((out * weight).sum(), (query, key, value)) for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@needs_interpreter
@pytest.mark.parametrize(("whole", "places", "number", "width"), [(50, 40, 33, 48), (30, 16, 0, 24), (20, 20, 20, 600)])
def test_rows_that_are_taken_and_normalised_and_both_gradients(whole, places, number, width, monkeypatch):
    torch.manual_seed(whole)
    taken, back = taken_rows(whole, places, number)
    x, passed_grad = torch.randn(2, whole, width)
    weight, bias = torch.randn(2, width)
    normed_grad, own_grad = torch.randn(2, places, width) * (torch.arange(places) < number)[:, None]
    found = []
    for has_kernels in (False, True):
        monkeypatch.setattr(taken_norm_module, "has_kernels", lambda x, has_kernels=has_kernels: has_kernels)
        normed, statistics = take_and_norm(x, weight, bias, taken, 1e-5)
        x_grad, sums = take_and_norm_backward(normed_grad, own_grad, passed_grad, x, weight, statistics, back)
        found.append([normed, statistics, x_grad, sums.sum(dim=0)])
    for expected, computed in zip(*found, strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-5, atol=1e-5)
