"""Blocks against torch's own modules, and small facts about each."""

import pytest
import torch
from torch import nn

from lamina.nn.attention import SelfAttention
from lamina.nn.embedding import Embedded
from lamina.nn.feed_forward import FeedForward
from lamina.nn.layout import Layout
from lamina.nn.positions import LearnedPositions, SinusoidalPositions, sinusoid_table
from lamina.nn.residual import Add, PostNorm, PreNorm
from lamina.nn.stack import EncoderLayer, LayerStack
from lamina.registry import register


def layer(order, dim=16):
    def residual():
        return order(nn.LayerNorm(dim), Add(), 0.0)

    return EncoderLayer(SelfAttention(dim, 2, 0.0), residual(), FeedForward(dim, 32, torch.relu, 0.0), residual())


@pytest.mark.parametrize(("order", "norm_first"), [(PostNorm, False), (PreNorm, True)])
def test_encoder_layer_equals_torch(order, norm_first):
    torch.manual_seed(0)
    ours = layer(order)
    theirs = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    pairs = {"attention.in_proj.weight": "self_attn.in_proj_weight", "attention.in_proj.bias": "self_attn.in_proj_bias",
             "attention.out_proj": "self_attn.out_proj", "ffn.fc1": "linear1", "ffn.fc2": "linear2",
             "attn_residual.norm": "norm1", "ffn_residual.norm": "norm2"}
    state = theirs.state_dict()
    ours.load_state_dict({(ours_name + name.removeprefix(their_name)): value for name, value in state.items()
                          for ours_name, their_name in pairs.items() if name.startswith(their_name)})
    ids = torch.tensor([[5, 6, 7, 2], [5, 2, 1, 1]])
    x = torch.randn(2, 4, 16)
    layout = Layout.of_ids(ids, pad_id=1)
    expected = theirs(x, src_key_padding_mask=layout.is_pad)
    torch.testing.assert_close(ours(x, layout)[~layout.is_pad], expected[~layout.is_pad], rtol=1e-5, atol=1e-6)


def test_positions_count_tokens_only():
    layout = Layout.of_ids(torch.tensor([[1, 1, 5, 6], [5, 6, 7, 1]]), pad_id=1)
    assert layout.position_ids().tolist() == [[1, 1, 2, 3], [2, 3, 4, 1]]


def test_sinusoids():
    table = sinusoid_table(6, 5)
    assert table.shape == (6, 5)
    assert table[1].tolist() == [0.0] * 5
    assert table[2, 0].item() == pytest.approx(torch.sin(torch.tensor(2.0)).item())
    assert table[3, 2].item() == pytest.approx(torch.cos(torch.tensor(3.0)).item())
    assert table[:, 4].tolist() == [0.0] * 6  # an odd width ends in zeros


def test_position_tables_hold_the_longest_sentence():
    ids = torch.full((1, 9), 5)
    for positions in (SinusoidalPositions(9, 4), LearnedPositions(9, 4)):
        assert positions(Layout.of_ids(ids, pad_id=1).position_ids()).shape == (1, 9, 4)


def test_every_named_activation_exists():
    names = ("relu", "gelu", "gelu_fast", "gelu_accurate", "tanh", "linear", "silu")
    assert tuple(register.activation)[: len(names)] == names
    x = torch.linspace(-2, 2, 9)
    for make in register.activation.values():
        assert make()(x).shape == x.shape
    torch.testing.assert_close(register.activation["gelu"]()(x), 0.5 * x * (1 + torch.erf(x / 2**0.5)))


def test_a_skipped_layer_is_the_identity_and_keeps_its_place():
    torch.manual_seed(0)
    stack = LayerStack([layer(PostNorm) for _ in range(3)], None, kept_states=range(4))
    x, ids = torch.randn(1, 4, 16), torch.full((1, 4), 5)
    layout = Layout.of_ids(ids, pad_id=1)
    output = stack(Embedded(x, x), lambda part, index, state: part(state, layout), active=[True, False, True])
    assert torch.equal(output.states[1], output.states[2])
    assert not torch.equal(output.states[2], output.states[3])
    assert torch.equal(output.states[0], x)
    whole = stack(Embedded(x, x), lambda part, index, state: part(state, layout))
    assert not torch.equal(whole.final, output.final)


def test_states_that_nobody_reads_are_not_kept():
    stack = LayerStack([layer(PostNorm)], None, kept_states=[0])
    x = torch.randn(1, 4, 16)
    output = stack(Embedded(x, x), lambda part, index, state: state)
    assert output.states[0] is x
    assert output.states[1] is None
