"""What nn/stack.py asks of layers that are captured: all parts keep it in padded and in packed rows, and a breach is named.

Attention over packed rows has kernels of its own on a GPU, whose operator does the same here; tests/gpu captures those.
"""

from dataclasses import replace

import numpy as np
import pytest

from lamina.cuda_graphs.capture_contract import CaptureContractError, NoQuestions
from lamina.data.packing import PackedShape, Sentences, packed
from lamina.errors import ConfigError
from lamina.nn.compiling import replaced
from lamina.nn.stack import ALL_LAYERS
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.lora import Lora
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, SoftFusion
from lamina.registry import register
from tiny import FUSIONS, MIXINGS, batch_of, tiny_config, tiny_model


def taken(part, *, is_pre_norm):
    try:
        part.check(["encoder", "decoder"] if is_pre_norm else [])
    except ConfigError:
        return False
    return True


SHAPE = PackedShape(places=32, max_sentences=6, longest=8)
VARIANTS = {f"{name}{', pre-norm' if is_pre_norm else ''}": {"init": part(), "is_pre_norm": is_pre_norm}
            for name, part in register.residual.items() for is_pre_norm in (False, True)
            if taken(part(), is_pre_norm=is_pre_norm)} | FUSIONS | MIXINGS


@pytest.mark.parametrize("name", VARIANTS)
def test_all_parts_keep_the_contract(name):
    model, batch = tiny_model(num_layers=2, dropout_p=0.2, **VARIANTS[name]).train(), batch_of(slice(0, 8))
    with NoQuestions():
        LabelSmoothedCrossEntropy(smoothing=0.1).loss(model, batch, ALL_LAYERS, is_compiled=False).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_all_parts_keep_it_in_packed_rows(name, attention_of_a_gpu):
    model = tiny_model(num_layers=2, dropout_p=0.2, **VARIANTS[name]).train()
    sides = [Sentences(np.arange(4, 4 + 12), np.array(sizes)) for sizes in ([3, 7, 2], [5, 3, 4])]
    with NoQuestions():
        LabelSmoothedCrossEntropy(smoothing=0.1).loss(model, packed(*sides, SHAPE, range(3)), ALL_LAYERS,
                                                      is_compiled=False).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("mode", [SoftFusion(dropout=0.5), HardFusion(dropout=0.5)])
def test_fusion_that_leaves_tokens_to_the_decoder_keeps_the_contract(mode):
    model, batch = tiny_model(surface=AttendedFusion(mode=mode)).train(), batch_of(slice(0, 8))
    with NoQuestions():
        LabelSmoothedCrossEntropy(smoothing=0.1).loss(model, batch, ALL_LAYERS, is_compiled=False).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_lora_keeps_the_contract():
    config = replace(tiny_config(num_layers=2, dropout_p=0.2), adapter=Lora(lora_rank=2, lora_matrices=("q", "v", "fc1")))
    model, batch = tiny_model(config).train(), batch_of(slice(0, 8))
    with NoQuestions():
        LabelSmoothedCrossEntropy(smoothing=0.1).loss(model, batch, ALL_LAYERS, is_compiled=False).loss.backward()
    assert all((parameter.grad is not None) == config.adapter.owns(name) for name, parameter in model.named_parameters())


BREACHES = {
    r"\.item\(\)": lambda x: x * float(x.sum()),
    r"`if` on a tensor": lambda x: x if x.sum() > 0 else -x,
    r"nonzero": lambda x: x[:, x[0, :, 0].nonzero().flatten()],
    r"x\[mask\]": lambda x: x[x > 0],
    r"masked_select": lambda x: x.masked_select(x > 0),
    r"unique": lambda x: x.unique(),
    r"repeat_interleave": lambda x: x.repeat_interleave((x[0, 0] > 0).long(), dim=2),
}


@pytest.mark.parametrize("said", BREACHES)
def test_a_layer_that_asks_the_device_is_named(said):
    model, batch = tiny_model().train(), batch_of(slice(0, 8))
    layer, breach = model.encoder.layers[1], BREACHES[said]
    with pytest.raises(CaptureContractError, match=said), NoQuestions(), replaced({layer: lambda x, *_: breach(x)}):
        model(*batch.inputs)
