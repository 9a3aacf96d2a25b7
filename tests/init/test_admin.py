"""Admin's omegas: the recursion, what counts in it, and its average over batches."""

import math

import pytest
import torch

from lamina.init.admin import closed_form_omega, omegas, profile_omegas_, set_omegas_
from lamina.models.build import build_model
from lamina.nn.residual import OmegaAdd
from lamina.parts.residuals import Admin, AdminClosedForm
from tiny import VOCABULARY_SIZE, pad, tiny_config, tiny_model, tiny_pair


def fresh_model(**changes):
    torch.manual_seed(0)
    return build_model(tiny_config(init=Admin(), **changes), VOCABULARY_SIZE, VOCABULARY_SIZE).train()


def profile(model, *pairs, **how):
    return profile_omegas_(model, [lambda pair=pair: model(*pair) for pair in pairs], **how)


def test_the_recursion():
    """Each omega's square is 1 more than the sum of all branches' variances before it: Post-LN's input has variance 1."""
    model = fresh_model(num_layers=3)
    found = profile(model, tiny_pair())
    assert {name: len(values) for name, values in found.items()} == {"encoder": 6, "decoder": 9}
    variances = []
    seen = [add.register_forward_pre_hook(lambda _, parts: variances.append([part.var(correction=0).item() for part in parts]))
            for add in omegas(model.encoder)]
    model(*tiny_pair())
    assert len(seen) == len(variances)
    ratio = 1.0
    for (shortcut, branch), omega in zip(variances, found["encoder"], strict=True):
        assert omega == pytest.approx(ratio, rel=1e-5)
        ratio = math.sqrt(ratio**2 * shortcut + branch)


def test_omegas_are_filled_and_hooks_are_gone():
    model = fresh_model()
    found = profile(model, tiny_pair())
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for add, value in zip(omegas(stack), found[name], strict=True):
            torch.testing.assert_close(add.omega.detach(), torch.full((16,), value))
            assert not add._forward_pre_hooks
    assert profile(model, tiny_pair()) == found  # omegas of an earlier profile take no part


def test_padding_is_left_out_unless_asked():
    source, target = tiny_pair()
    padded = (pad(source, left=4), pad(target, right=5))
    plain = profile(fresh_model(), (source, target))
    found = profile(fresh_model(), padded)
    for name in plain:
        assert found[name] == pytest.approx(plain[name], rel=1e-5)
    counted = profile(fresh_model(), padded, counts_pads=True)
    assert counted["encoder"][-1] != pytest.approx(plain["encoder"][-1], rel=1e-3)
    assert profile(fresh_model(), (source, target), counts_pads=True)["decoder"] == pytest.approx(plain["decoder"], rel=1e-5)


def test_squares_are_averaged_over_batches():
    one, other, both = (profile(fresh_model(), *pairs) for pairs in (
        [tiny_pair(seed=1)], [tiny_pair(seed=2)], [tiny_pair(seed=1), tiny_pair(seed=2)]))
    for name in both:
        wanted = [math.sqrt((a**2 + b**2) / 2) for a, b in zip(one[name], other[name], strict=True)]
        assert both[name] == pytest.approx(wanted, rel=1e-6)


def test_closed_form():
    model = build_model(tiny_config(init=AdminClosedForm(), num_layers=3), VOCABULARY_SIZE, VOCABULARY_SIZE)
    for stack, number in ((model.encoder, 6), (model.decoder, 9)):
        wanted = torch.tensor(math.sqrt((number + 1) / math.log(number + 1) - 1)).expand(16)
        assert len(omegas(stack)) == number
        for add in omegas(stack):
            torch.testing.assert_close(add.omega.detach(), wanted)
    assert closed_form_omega(1) > 1


def test_set_omegas():
    model = tiny_model(num_layers=1, init=Admin())
    set_omegas_(model, {"encoder": [1.0, 2.0], "decoder": [1.0, 1.5, 2.5]})
    assert [part.omega[0].item() for part in model.modules() if isinstance(part, OmegaAdd)] == [1.0, 2.0, 1.0, 1.5, 2.5]
