"""Weights that are made one after the other are the weights of a model that is built at once, to the bit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lamina.errors import ConfigError
from lamina.init.deferred import deferred, tensors_of_model
from lamina.models.build import build_decoder_only, build_model
from lamina.parts.lora import Lora
from lamina.parts.position_kinds import Learned
from lamina.parts.residuals import Admin, AdminClosedForm
from lamina.registry import register
from tiny import FUSIONS, MIXINGS, VOCABULARY_SIZE, tiny_config, tiny_lm_config

VARIANTS = {"plain": {}, **FUSIONS, **MIXINGS, "admin": {"init": Admin()}, "closed form": {"init": AdminClosedForm()},
            "learned positions": {"positions": Learned()}}


def same_bits(build):
    torch.manual_seed(5)
    expected = tensors_of_model(build())
    model, notes = deferred(build)
    wanted = tensors_of_model(model)
    assert all(tensor.is_meta for tensor in wanted.values())
    found = {name: tensor.clone() for name, tensor in notes.weights(wanted, 5)}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_of_pairs(name):
    changes = dict(VARIANTS[name])
    positions = changes.pop("positions", None)
    config = tiny_config(num_layers=3, **changes)
    if positions is not None:
        config = replace(config, encoder=replace(config.encoder, positions=positions),
                         decoder=replace(config.decoder, positions=positions))
    same_bits(lambda: build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE))


@pytest.mark.parametrize("kind", sorted(register.residual))
def test_every_residual(kind):
    part = register.residual[kind]()
    try:
        part.check([])
    except ConfigError:
        pytest.skip("it wants pre-norm")
    same_bits(lambda: build_model(tiny_config(num_layers=2, init=part), VOCABULARY_SIZE, VOCABULARY_SIZE))


@pytest.mark.parametrize("cutoff", [(), (10, 20)])
def test_a_language_model(cutoff):
    config = tiny_lm_config()
    config = replace(config, lm=replace(config.lm, softmax_cutoff=cutoff))
    same_bits(lambda: build_decoder_only(config, VOCABULARY_SIZE))


def test_an_adapter():
    config = replace(tiny_config(num_layers=2), adapter=Lora(lora_rank=2, lora_matrices=("q", "v", "fc1")))
    same_bits(lambda: build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE))


def test_few_weights_are_there_at_a_time():
    """At most two of a hundred: each is handed over before the next ones are made."""
    def build():
        layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(100)))
        with torch.no_grad():
            for layer in layers:
                nn.init.xavier_uniform_(layer.weight)
            for layer in layers:  # once more, in two pieces
                for half in layer.weight.chunk(2):
                    nn.init.normal_(half)
        return layers

    same_bits(build)
    model, notes = deferred(build)
    held = []
    run = notes._run

    def watched(call, real):
        run(call, real)
        held.append(sum(tensor.numel() for tensor in real.values()))

    notes._run = watched
    assert len(list(notes.weights(tensors_of_model(model), 1))) == 200
    assert max(held) <= 100 * 16 + 2 * 16 * 16  # biases have their last numbers from the beginning
