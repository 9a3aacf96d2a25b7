import copy
import os
import pickle
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from lamina.config.model import LanguageModelConfig
from lamina.errors import ConfigError
from lamina.nn.linear import has_onednn
from lamina.nn.prepacked import Int8Linear, PrepackedLinear, is_prepacked, prepack_, unpack_
from lamina.parts.residuals import Admin
from tiny import FUSIONS, tiny_config, tiny_language_model, tiny_masked_model, tiny_model, tiny_pair

MODELS = {"plain": {}, "untied": {"share_all": False}, "pre-norm": {"is_pre_norm": True}, "admin": {"init": Admin()}, **FUSIONS}

needs_kernels = pytest.mark.skipif(not has_onednn(), reason="no oneDNN kernels here")


def test_packs_wherever_the_kernels_are():
    assert has_onednn() == (platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available())


def layer_and_input(seed=0, bias=True):
    torch.manual_seed(seed)
    return nn.Linear(48, 20, bias=bias), torch.randn(3, 5, 48)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_packed_linear_computes_the_same(bias):
    layer, x = layer_and_input(bias=bias)
    packed = PrepackedLinear(layer.weight, layer.bias)
    torch.testing.assert_close(packed(x), layer(x))
    torch.testing.assert_close(packed(x[:, :1]), layer(x[:, :1]))
    assert packed(x[:0]).shape == (0, 5, 20)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_int8_is_the_product_of_rounded_values(bias):
    layer, x = layer_and_input(bias=bias)
    packed = Int8Linear(layer.weight, layer.bias)
    scales = packed.scales[:, None]
    torch.testing.assert_close(scales, layer.weight.abs().amax(dim=1, keepdim=True) / 127, rtol=2**-16, atol=0)
    vector_scales = x.abs().amax(dim=2, keepdim=True) / packed.largest
    expected = nn.functional.linear((x / vector_scales).round() * vector_scales, (layer.weight / scales).round() * scales,
                                    layer.bias)
    torch.testing.assert_close(packed(x), expected)
    assert packed(x[:0]).shape == (0, 5, 20)
    error = (packed(x) - layer(x)).norm() / layer(x).norm()
    assert 0 < error < 0.02


@needs_kernels
@torch.inference_mode()
def test_int8_of_seven_bits_where_sixteen_would_overflow(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    layer, x = layer_and_input()
    packed = Int8Linear(layer.weight, layer.bias)
    assert packed.largest == 63
    assert (packed(x) - layer(x)).norm() / layer(x).norm() < 0.03


WITHOUT_VNNI = """
import torch
from lamina.nn.prepacked import Int8Linear
torch.cpu._is_vnni_supported = lambda: False
torch.manual_seed(0)
weight, x = torch.rand(64, 512) + 0.2, torch.rand(20, 512) + 0.5  # of one sign, so that all products add up
with torch.inference_mode():
    expected = x @ weight.T
    print(((Int8Linear(weight, None)(x) - expected).norm() / expected.norm()).item())
"""


@needs_kernels
def test_seven_bits_are_few_enough_for_kernels_without_vnni():
    # With eight, sums of two products overflow there: an error of 0.25.
    environ = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_VNNI], capture_output=True, text=True, check=True, env=environ)
    assert float(done.stdout) < 0.002


@needs_kernels
@torch.inference_mode()
def test_int8_vectors_do_not_see_each_other():
    layer, x = layer_and_input()
    packed = Int8Linear(layer.weight, layer.bias)
    loud = x.clone()
    loud[1:] *= 1000
    assert torch.equal(packed(loud)[0], packed(x)[0])


@needs_kernels
@torch.inference_mode()
def test_int8_of_zeros_is_the_bias_and_of_nan_is_nan():
    layer, x = layer_and_input()
    packed = Int8Linear(layer.weight * 0.0, layer.bias)
    torch.testing.assert_close(packed(x), layer.bias.expand(3, 5, 20))
    packed = Int8Linear(layer.weight, layer.bias)
    torch.testing.assert_close(packed(x * 0.0), layer.bias.expand(3, 5, 20))
    assert packed(torch.full_like(x, torch.nan)).isnan().all()


@needs_kernels
@pytest.mark.parametrize("kind", [PrepackedLinear, Int8Linear])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_packed_models_say_the_same(name, kind):
    model, (source, target) = tiny_model(tiny_config(**MODELS[name])).eval(), tiny_pair()
    expected, num_weights = model.log_probs(source, target), sum(weight.numel() for weight in model.parameters())
    prepack_(model, kind)
    assert not any(isinstance(part, nn.Linear) for part in model.modules())
    assert sum(weight.numel() for weight in model.parameters()) == num_weights
    found = model.log_probs(source, target)
    # float32 with other kernels; 8 bits of a model with 16 channels
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5 if kind is PrepackedLinear else 0.4)
    assert kind is PrepackedLinear or not torch.equal(found, expected)


@needs_kernels
@pytest.mark.parametrize("kind", [PrepackedLinear, Int8Linear])
@torch.inference_mode()
def test_packed_steps_match_the_whole_pass(kind):
    model, (source, target) = tiny_model(tiny_config(**FUSIONS["both"])).eval(), tiny_pair()
    prepack_(model, kind)
    state = model.start(source)
    steps = [model.step(target[:, place], state) for place in range(target.size(1))]
    # 8 bits: what is rounded may fall on the other side where float32 sums differ in order
    torch.testing.assert_close(torch.stack(steps, dim=1), model.log_probs(source, target), rtol=1e-5,
                               atol=2e-5 if kind is PrepackedLinear else 0.1)


@needs_kernels
@pytest.mark.parametrize("lm", [
    LanguageModelConfig(), LanguageModelConfig(softmax_cutoff=(10, 20), softmax_dropout_p=0.0),
    LanguageModelConfig(is_adaptive=True, softmax_cutoff=(10, 20), softmax_dropout_p=0.0, input_cutoff=(10, 20),
                        ties_weights=True, ties_projections=True)])
@torch.inference_mode()
def test_packed_language_models(lm):
    model, (tokens, _) = tiny_language_model(lm=lm).eval(), tiny_pair()
    expected, num_weights = model.log_probs(tokens), sum(weight.numel() for weight in model.parameters())
    prepack_(model, PrepackedLinear)
    # A projection that input and output share is packed for the input alone, and still counts once.
    assert sum(weight.numel() for weight in model.parameters()) == num_weights
    torch.testing.assert_close(model.log_probs(tokens), expected, rtol=1e-5, atol=2e-5)
    state = model.start(tokens)
    steps = [model.step(tokens[:, place], state) for place in range(tokens.size(1))]
    torch.testing.assert_close(torch.stack(steps, dim=1), expected, rtol=1e-5, atol=2e-5)


@needs_kernels
@torch.inference_mode()
def test_packed_masked_models():
    model, (tokens, _) = tiny_masked_model(num_classes=3).eval(), tiny_pair()
    expected = model.classify(tokens)
    prepack_(model, PrepackedLinear)
    torch.testing.assert_close(model.classify(tokens), expected, rtol=1e-5, atol=2e-5)


PACKED_MODELS = {**{name: lambda own=own: tiny_model(tiny_config(**own)) for name, own in MODELS.items()},
                 "adaptive": lambda: tiny_language_model(lm=LanguageModelConfig(
                     is_adaptive=True, softmax_cutoff=(10, 20), softmax_dropout_p=0.0, input_cutoff=(10, 20), ties_weights=True,
                     ties_projections=True)),
                 "masked": lambda: tiny_masked_model(num_classes=3)}


def said(model):
    source, target = tiny_pair()
    with torch.inference_mode():
        return model.classify(source) if hasattr(model, "classify") else model.log_probs(
            *((source, target) if hasattr(model, "memory") else (source,)))


@needs_kernels
@pytest.mark.parametrize("name", PACKED_MODELS)
def test_unpacking_is_the_way_back_and_shared_weights_are_shared_again(name):
    model = PACKED_MODELS[name]()
    expected, plain, ties = said(model), copy.deepcopy(model.state_dict()), [key for key, _ in model.named_parameters()]
    prepack_(model, PrepackedLinear)
    assert is_prepacked(model)
    stored = model.state_dict()
    assert stored.keys() == plain.keys()
    assert all(torch.equal(stored[key], plain[key]) for key in plain)
    unpack_(model)
    assert not is_prepacked(model)
    assert [key for key, _ in model.named_parameters()] == ties
    assert torch.equal(said(model), expected)


@needs_kernels
@pytest.mark.parametrize("kind", [PrepackedLinear, Int8Linear])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("name", ["both", "adaptive"])
def test_copies_are_packed_and_say_the_same(name, copied, kind):
    model = PACKED_MODELS[name]()
    prepack_(model, kind)
    other = copied(model)
    assert is_prepacked(other)
    assert torch.equal(said(other), said(model))
    assert len(list(other.parameters())) == len(list(model.parameters()))
    unpack_(other)
    torch.testing.assert_close(said(other), said(model), rtol=1e-5, atol=2e-5 if kind is PrepackedLinear else 0.4)


@needs_kernels
@pytest.mark.parametrize("unpacking", [
    lambda model: model.to("cpu"), lambda model: model.double(), lambda model: model.train(),
    lambda model: model.load_state_dict(model.state_dict())])
def test_what_a_kernels_layout_would_not_survive_unpacks(unpacking):
    model = tiny_model(tiny_config(**FUSIONS["both"]))
    expected = said(model)
    prepack_(model, PrepackedLinear)
    unpacking(model)
    assert not is_prepacked(model)
    assert model.head.prepacked_output is None
    torch.testing.assert_close(said(model.float().eval()), expected)
    assert all(parameter.requires_grad for parameter in model.parameters())


@needs_kernels
def test_weights_of_packed_models_can_be_read():
    model = tiny_model()
    norms = {name: weight.norm().item() for name, weight in model.named_parameters()}
    prepack_(model, PrepackedLinear)
    assert {name: weight.norm().item() for name, weight in model.named_parameters()} == pytest.approx(norms)
    layer = model.decoder.layers[0].ffn
    assert next(part for part in layer.modules() if isinstance(part, PrepackedLinear)).weight.norm() > 0
    with pytest.raises(ConfigError, match="cannot be moved or converted alone"):
        model.decoder.to("cpu")
