"""What cross-attention reads."""

from dataclasses import replace

import pytest
import torch

from lamina.models.build import build_model
from lamina.nn.fusion import FINAL, LayerAttention, LayerWise
from lamina.nn.stack import StackOutput
from lamina.parts.encoder_fusion import LayerWiseFusion, TransparentFusion, spread_evenly
from tiny import tiny_config, tiny_model, tiny_pair


@pytest.mark.parametrize(("readers", "layers", "reads"), [
    (3, 3, (1, 2, FINAL)), (1, 6, (FINAL,)), (6, 2, (1, 1, 1, FINAL, FINAL, FINAL)), (3, 12, (4, 8, FINAL)),
    (2, 1, (FINAL, FINAL)),
])
def test_layers_are_spread_evenly(readers, layers, reads):
    assert spread_evenly(readers, layers) == reads


def states(num_layers=2, dim=4):
    torch.manual_seed(0)
    final, embedding, *raw = (torch.randn(1, 3, dim) for _ in range(num_layers + 3))
    return StackOutput(final, tuple(raw), embedding)


def test_layer_wise_reads_what_it_names():
    encoder, memory = states(), LayerWise((0, 2, FINAL))
    assert memory.reads_states == {0, 2}
    assert [memory(memory.prepare(encoder), reader) is expected for reader, expected in
            enumerate((encoder.states[0], encoder.states[2], encoder.final))] == [True] * 3


def layer_attention(**changes):
    settings = {"num_readers": 2, "num_layers": 2, "dim": 4, "is_fine_grained": False, "reads_embedding": True,
                "embedding_has_positions": False, "reads_input": True, "embedding_norm": None, "transform": None,
                "dropout_p": 0.0, "weight_dropout_p": 0.0, "drops_logits": False}
    memory = LayerAttention(**{**settings, **changes})
    torch.nn.init.normal_(memory.weight)
    return memory


def test_columns_are_embedding_input_and_layers():
    encoder, memory = states(), layer_attention()
    torch.testing.assert_close(memory.prepare(encoder), torch.stack((encoder.embedding, *encoder.states)))
    assert memory.reads_states == {0, 1, 2}
    assert layer_attention(reads_input=False).reads_states == {1, 2}
    assert layer_attention(reads_input=False, embedding_has_positions=True).reads_states == {0, 1, 2}


@pytest.mark.parametrize("is_fine_grained", [False, True])
def test_a_planted_weight_decides_what_is_read(is_fine_grained):
    encoder, memory = states(), layer_attention(is_fine_grained=is_fine_grained)
    with torch.no_grad():
        memory.weight.zero_()
        memory.weight[1, 3] = 50.0
    torch.testing.assert_close(memory(memory.prepare(encoder), 1), memory.norm(encoder.states[2]))
    mean = (encoder.embedding + sum(encoder.states)) / 4
    torch.testing.assert_close(memory(memory.prepare(encoder), 0), memory.norm(mean))


def test_dropout_on_the_weights_comes_before_or_after_their_softmax():
    torch.manual_seed(0)
    after, before = layer_attention(weight_dropout_p=0.5), layer_attention(weight_dropout_p=0.5, drops_logits=True)
    sums = {name: torch.stack([memory.shares(0).sum() for _ in range(200)]) for name, memory in
            {"after": after, "before": before}.items()}
    torch.testing.assert_close(sums["before"], torch.ones(200))
    assert sums["after"].std() > 0.1
    assert sums["after"].mean().item() == pytest.approx(1.0, abs=0.1)
    torch.testing.assert_close(after.eval().shares(0).sum(), torch.tensor(1.0))


def test_unequal_depths_and_widths_run():
    for memory in (LayerWiseFusion(), TransparentFusion(reads_embedding=True)):
        config = tiny_config(share_all=False, memory=memory)
        config = replace(config, encoder=replace(config.encoder, num_layers=5, model_dim=24),
                         decoder=replace(config.decoder, num_layers=3))
        assert build_model(config, 40, 40).eval().log_probs(*tiny_pair()).isfinite().all()


def test_only_the_states_that_are_read_stay_alive():
    model = tiny_model(fusion=LayerWiseFusion())
    kept = model.encode(tiny_pair()[0]).output.states
    assert [state is not None for state in kept] == [False, True, False]
    assert all(state is None for state in tiny_model().encode(tiny_pair()[0]).output.states)
