import pytest
import torch

import lamina.nn.stack as stack_module
from lamina.nn.compiling import replaced
from lamina.nn.dropout import attention_seed, counted_draws, drawing_from, dropout
from lamina.nn.layout import Layout
from lamina.nn.stack import stacks_of
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.training.loss import batch_loss
from tiny import batch_of, tiny_model

ONES = torch.ones(300, 1001)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_drops_the_share_and_keeps_the_mean(p):
    torch.manual_seed(1)
    found = dropout(ONES, p, True)
    is_kept = found.ne(0.0)
    # 300,300 draws: a share is off by 0.001 once in 500 cases or less
    assert is_kept.float().mean().item() == pytest.approx(1 - p, abs=0.003)
    torch.testing.assert_close(found[is_kept], torch.full_like(found[is_kept], 1 / (1 - p)))
    # Neighbours, which come out of one draw, and rows do not know of each other.
    both = (is_kept[:, 1:] & is_kept[:, :-1]).float().mean().item()
    assert both == pytest.approx((1 - p) ** 2, abs=0.005)
    assert (is_kept[1:] & is_kept[:-1]).float().mean().item() == pytest.approx((1 - p) ** 2, abs=0.005)


def test_the_seed_decides():
    torch.manual_seed(1)
    first, second = dropout(ONES, 0.3, True), dropout(ONES, 0.3, True)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(ONES, 0.3, True))
    assert not torch.equal(first, second)


def test_nothing_to_drop():
    assert dropout(ONES, 0.0, True) is ONES
    assert dropout(ONES, 0.5, False) is ONES
    assert dropout(ONES[:0], 0.5, True).shape == (0, 1001)


@pytest.mark.parametrize("p", [0.999999, 1.0])
def test_everything_to_drop(p):
    found = dropout(ONES, p, True)
    assert found.isfinite().all()
    assert found.ne(0.0).float().mean() < 1e-3


def test_what_was_dropped_has_no_gradient():
    x = torch.randn(7, 5, dtype=torch.bfloat16, requires_grad=True)
    found = dropout(x, 0.5, True)
    found.sum().backward()
    assert found.dtype == torch.bfloat16
    assert torch.equal(x.grad.ne(0), found.ne(0))
    assert set(x.grad.flatten().tolist()) == {0.0, 2.0}


def test_the_compiler_takes_what_is_counted():
    """In a sum over rows, where it writes a number's place as an expression of its own."""
    def mean(x, seed):
        with drawing_from(seed):
            return dropout(x, 0.3, True).sum(-1)

    x, seed = torch.randn(3, 5, 16), torch.tensor([2**61 + 12345])
    torch.testing.assert_close(torch.compile(mean, dynamic=False)(x, seed), mean(x, seed))


@pytest.fixture
def once(monkeypatch):
    """Nothing is computed again: what recomputing must not change."""
    return lambda: monkeypatch.setattr(stack_module, "computed_again", lambda function, *arguments, **_: function(*arguments))


def recomputed_gradients(model, *, compiles=False):
    torch.manual_seed(5)
    for stack in stacks_of(model.train()).values():
        stack.recomputes = True
    layers = {layer: torch.compile(layer.forward, backend="aot_eager", dynamic=False)
              for stack in stacks_of(model).values() for layer in stack.layers} if compiles else {}
    with counted_draws(), replaced(layers):
        loss = batch_loss(model, batch_of(slice(0, 8)), LabelSmoothedCrossEntropy(smoothing=0.1)).loss
    torch.manual_seed(99)  # what happens in between does not matter
    torch.rand(7)
    model.zero_grad()
    with replaced(layers):
        loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("compiles", [False, True])
def test_counted_draws_are_drawn_again_without_a_generator(once, compiles):
    model = tiny_model(num_layers=3, dropout_p=0.4)
    loss, found = recomputed_gradients(model, compiles=compiles)
    once()
    expected_loss, expected = recomputed_gradients(model)
    torch.testing.assert_close(loss, expected_loss)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_counted_masks_differ_by_seed_count_and_place():
    x = torch.ones(400, 250)
    masks = []
    for seed in (3, 4):
        with drawing_from(torch.tensor([seed])):
            masks += [dropout(x, 0.3, is_training=True) for _ in range(3)]
    for mask in masks:
        assert abs(float(mask.mean()) - 1.0) < 0.01
        torch.testing.assert_close(mask.unique(), torch.tensor([0.0, 1 / 0.7]))
    kept = torch.stack([mask.flatten() > 0 for mask in masks]).double()
    assert float((torch.corrcoef(kept) - torch.eye(6)).abs().max()) < 0.015
    rows = kept[0].view(400, 250)
    assert float((torch.corrcoef(rows.T) - torch.eye(250)).abs().mean()) < 0.05  # nor by place
    with drawing_from(torch.tensor([3])):
        assert torch.equal(dropout(x, 0.3, is_training=True), masks[0])
        assert attention_seed(x.device) != attention_seed(x.device)


def test_a_kernel_that_draws_for_itself_is_refused():
    layout = Layout.of_ids(torch.tensor([[5, 6, 1]]), 1)
    qkv = torch.randn(1, 3, 24)
    with drawing_from(torch.tensor([3])):
        layout.attend_within(qkv, 2)
        with pytest.raises(RuntimeError, match="cannot be drawn again"):
            layout.attend_within(qkv, 2, dropout_p=0.1)
