"""Ways to add, and their sharing."""

import pytest
import torch

from lamina.nn.residual import Add, DeepNorm, OmegaAdd, ReZero
from lamina.parts.residuals import DeepNet, ReZeroInit, ReZeroPostNorm
from lamina.registry import register
from tiny import tiny_model

X, BRANCH = torch.randn(2, 3, 4), torch.randn(2, 3, 4)


def test_ways_to_add():
    torch.testing.assert_close(Add()(X, BRANCH), X + BRANCH)
    omega = OmegaAdd(4)
    torch.testing.assert_close(omega(X, BRANCH), X + BRANCH)
    with torch.no_grad():
        omega.omega.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(omega(X, BRANCH), X * torch.tensor([1.0, 2.0, 3.0, 4.0]) + BRANCH)
    rezero = ReZero()
    torch.testing.assert_close(rezero(X, BRANCH), X)
    with torch.no_grad():
        rezero.scale.fill_(0.5)
    torch.testing.assert_close(rezero(X, BRANCH), X + 0.5 * BRANCH)
    torch.testing.assert_close(DeepNorm(1.5)(X, BRANCH), 1.5 * X + BRANCH)


@pytest.mark.parametrize("add", [OmegaAdd(4), ReZero(), DeepNorm(1.5)])
def test_half_precision_stays_half(add):
    assert add.to(torch.bfloat16)(X.bfloat16(), BRANCH.bfloat16()).dtype == torch.bfloat16


def test_names_are_a_file_format():
    names = {name for name, _ in tiny_model(num_layers=1, init=register.residual["admin"]()).named_parameters() if ".add." in name}
    assert names == {"encoder.layers.0.attn_residual.add.omega", "encoder.layers.0.ffn_residual.add.omega",
                     "decoder.layers.0.attn_residual.add.omega", "decoder.layers.0.cross_residual.add.omega",
                     "decoder.layers.0.ffn_residual.add.omega"}


@pytest.mark.parametrize("init", [ReZeroInit(), ReZeroPostNorm()])
def test_rezero_has_one_scale_a_layer(init):
    model = tiny_model(num_layers=2, init=init)
    scales = [name for name, _ in model.named_parameters() if name.endswith("add.scale")]
    assert scales == [f"{side}.layers.{index}.attn_residual.add.scale" for side in ("encoder", "decoder") for index in (0, 1)]
    has_norms = any(isinstance(part, torch.nn.LayerNorm) for part in model.modules())
    assert has_norms == isinstance(init, ReZeroPostNorm)


def test_deepnet_scales_by_the_depth_it_was_made_for():
    own, pruned = (tiny_model(num_layers=number, init=init) for number, init in ((2, DeepNet()), (1, DeepNet(layers=(2, 2)))))
    alphas = [[part.alpha for part in model.modules() if isinstance(part, DeepNorm)] for model in (own, pruned)]
    assert alphas[0] == pytest.approx([0.81 * 32 ** (1 / 16)] * 4 + [6**0.25] * 6)
    assert alphas[1] == alphas[0][:2] + alphas[0][4:7]
