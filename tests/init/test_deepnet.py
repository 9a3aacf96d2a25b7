"""DeepNet's first weights, against the statistics in the reference."""

import math

import pytest
import torch

from lamina.config.model import ModelConfig, StackConfig
from lamina.init.deepnet import DeepNetConstants
from lamina.models.build import build_model
from lamina.parts.residuals import DeepNet

DIM, FFN, LAYERS = 128, 256, 3


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    stack = StackConfig(num_layers=LAYERS, model_dim=DIM, ffn_dim=FFN, num_heads=4)
    return dict(build_model(ModelConfig(encoder=stack, decoder=stack, init=DeepNet()), 20, 20).named_parameters())


@pytest.mark.parametrize(("side", "constants"), [("encoder", DeepNetConstants.of_encoder(LAYERS, LAYERS)),
                                                 ("decoder", DeepNetConstants.of_decoder(LAYERS))])
def test_gains(weights, side, constants):
    def check(weight, gain):
        assert weight.std().item() == pytest.approx(gain * math.sqrt(2 / sum(weight.shape)), rel=0.03)

    prefix = f"{side}.layers.1"
    query, key, value = weights[f"{prefix}.attention.in_proj.weight"].chunk(3)
    check(query, 1.0)
    check(key, 1.0)
    check(value, constants.beta)
    check(weights[f"{prefix}.attention.out_proj.weight"], constants.beta)
    check(weights[f"{prefix}.ffn.fc1.weight"], constants.beta)
    check(weights[f"{prefix}.ffn.fc2.weight"], constants.beta)
    if side == "decoder":
        check(weights[f"{prefix}.cross_attention.q_proj.weight"], 1.0)
        key, value = weights[f"{prefix}.cross_attention.kv_proj.weight"].chunk(2)
        check(key, 1.0)
        check(value, constants.beta)


def test_biases_are_zero(weights):
    assert not any(weight.any() for name, weight in weights.items() if name.endswith("proj.bias") or "fc1.bias" in name)


def test_one_stack_alone():
    assert DeepNetConstants.of_single_stack(8) == pytest.approx((2.0, 64**-0.25))
