"""Taking rows and normalising them, and both gradients: kernels compute what plain operations do, and the same every time."""

import pytest
import torch
from torch import nn

from kernel_cases import taken_rows
from lamina.nn import subset
from lamina.nn import taken_norm as taken_norm_module
from lamina.nn.compiling import compiled
from lamina.nn.taken_norm import take_and_norm, take_and_norm_backward
from lamina.packed import Places

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def case(whole, places, number, width, dtype):
    """Rows, weights, places and gradients, of which those of pads are zero."""
    torch.manual_seed(whole)
    taken, back = taken_rows(whole, places, number)
    x, passed_grad = (torch.randn(whole, width) for _ in range(2))
    grads = [torch.randn(places, width) * (torch.arange(places) < number)[:, None] for _ in range(2)]
    rows = [rows.to("cuda", dtype) for rows in (x, *torch.randn(2, width), *grads, passed_grad)]
    return rows, taken.cuda(), back.cuda()


def computed(rows, taken, back):
    x, weight, bias, normed_grad, own_grad, passed_grad = rows
    normed, statistics = take_and_norm(x, weight, bias, taken, 1e-5)
    x_grad, sums = take_and_norm_backward(normed_grad, own_grad, passed_grad, x, weight, statistics, back)
    return normed, statistics, x_grad, sums.sum(dim=0)


SIZES = [(300, 256, 250, 512), (300, 256, 0, 48), (77, 77, 77, 1000), (5000, 4096, 4000, 512), (90, 64, 60, 4096)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_compute_what_plain_operations_do(monkeypatch, sizes, dtype):
    rows, taken, back = case(*sizes, dtype)
    found, again = computed(rows, taken, back), computed(rows, taken, back)
    monkeypatch.setattr(taken_norm_module, "has_kernels", lambda x: False)
    expected = computed([own.double() for own in rows], taken, back)
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    for one, same, exact in zip(found, again, expected, strict=True):
        assert one.equal(same)
        torch.testing.assert_close(one.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_compiled_layer_that_takes_and_normalises_at_once_is_one_that_does_so_in_turn():
    rows, taken, back = case(300, 256, 250, 128, torch.float32)
    places = Places(taken, back, taken, taken, 8)
    norm, linear = nn.LayerNorm(128, device="cuda"), nn.Linear(128, 128, device="cuda")
    nn.init.normal_(norm.weight)

    def at_once(x, places):
        begun = subset.take_and_norm(x, places, norm)
        return subset.put_begun(begun, begun.own + linear(begun.normed).relu(), places)

    def in_turn(x, places):
        own = subset.take(x, places)
        return subset.put(x, own + linear(norm(own)).relu(), places)

    found = []
    for function in (in_turn, at_once, compiled(at_once)):
        x = rows[0][None].requires_grad_()
        out = function(x, places)
        weights = [*norm.parameters(), *linear.parameters()]
        found.append([out.detach(), *torch.autograd.grad((out * rows[-1]).sum(), [x, *weights])])
    for others in found[1:]:
        for one, other in zip(others, found[0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
