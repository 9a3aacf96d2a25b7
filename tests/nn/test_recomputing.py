import pytest
import torch

from lamina.nn.recomputing import computed_again


def failing(x):
    x.sin().sum()
    raise RuntimeError("on purpose")


def test_the_gradient_is_that_of_the_function():
    x = torch.randn(5, requires_grad=True)
    computed_again(lambda x: x.sin().exp(), x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach().sin().exp())


def test_a_call_that_failed_leaves_nothing_behind():
    """A caller that keeps the error, as a notice that is written later does, can run other passes."""
    x = torch.randn(5, requires_grad=True)
    with pytest.raises(RuntimeError, match="on purpose") as kept:
        computed_again(lambda x: computed_again(failing, x), x)
    x.exp().sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    assert kept.value.__traceback__ is not None
