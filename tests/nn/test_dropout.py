import pytest
import torch

from lamina.nn.dropout import dropout

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
