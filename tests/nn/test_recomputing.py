import pytest
import torch

import lamina.nn.recomputing as module
from lamina.nn.recomputing import computed_again


def failing(x):
    x.sin().sum()
    raise RuntimeError("on purpose")


def test_the_gradient_is_that_of_the_function():
    x = torch.randn(5, requires_grad=True)
    computed_again(lambda x: x.sin().exp(), x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach().sin().exp())


def hooks():
    def unpack(_):
        raise AssertionError("taken for a part of the call that failed")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        yield


def checkpoint_of_torch_2_12(function, *inputs, **_):
    """What matters of it: hooks that a generator in this frame holds, which an error leaves open."""
    held = hooks()
    next(held)
    result = function(*inputs)
    next(held, None)
    return result


@pytest.mark.parametrize("checkpoint", [module.checkpoint, checkpoint_of_torch_2_12])
def test_a_call_that_failed_leaves_nothing_behind(checkpoint, monkeypatch):
    """A caller that keeps the error, as a notice that is written later does, can run other passes."""
    monkeypatch.setattr(module, "checkpoint", checkpoint)
    x = torch.randn(5, requires_grad=True)
    kept = None
    try:
        computed_again(lambda x: computed_again(failing, x), x)
    except RuntimeError as error:
        kept = error
    x.exp().sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    assert str(kept) == "on purpose"
