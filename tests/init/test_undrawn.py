"""A model whose weights follow is built without random numbers, and is the same model."""

import pytest
import torch
from torch import nn

from lamina.checkpoint.format import load_weights_
from lamina.init.undrawn import Undrawn
from lamina.models.build import build_model
from tiny import FUSIONS, VOCABULARY_SIZE, tiny_config


class WithNoise(nn.Module):
    """A random buffer is no weight that a checkpoint has."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6))
        nn.init.xavier_uniform_(self.weight[:2])
        nn.init.normal_(self.weight[2:])
        self.register_buffer("noise", torch.empty(5).normal_())


@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS)
def test_nothing_is_drawn_and_the_weights_that_follow_make_the_same_model(changes):
    config = tiny_config(**changes)
    model = build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE)
    before = torch.get_rng_state()
    with Undrawn():
        other = build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE)
    assert torch.equal(torch.get_rng_state(), before)
    load_weights_(other, dict(model.named_parameters()))
    for ours, theirs in ((model.named_parameters(), other.named_parameters()), (model.named_buffers(), other.named_buffers())):
        for (name, tensor), (other_name, found) in zip(ours, theirs, strict=True):
            assert name == other_name
            assert torch.equal(tensor, found), name


def test_what_is_no_weight_is_drawn_as_usual():
    with Undrawn():
        module = WithNoise()
    assert torch.equal(module.weight, torch.zeros(4, 6))
    assert module.noise.abs().sum() > 0
