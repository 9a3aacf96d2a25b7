"""Weights before step 0, against the statistics in the references."""

import math

import pytest
import torch
from torch import nn

from golden_files import read_json
from lamina.config.model import EmbeddingConfig, ModelConfig, StackConfig
from lamina.interop.fairseq import places
from lamina.models.build import build_model
from lamina.parts.encoder_fusion import TransparentFusion
from lamina.parts.position_kinds import Learned
from lamina.parts.surface_fusion import AttendedFusion

DIM, FFN = 256, 512


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    stack = StackConfig(num_layers=1, model_dim=DIM, ffn_dim=FFN, num_heads=4, positions=Learned())
    return build_model(ModelConfig(encoder=stack, decoder=stack, embedding=EmbeddingConfig()), 600, 700)


def uniform(bound):
    return bound / math.sqrt(3)


@pytest.mark.parametrize(("name", "bound"), [
    ("encoder.layers.0.attention.in_proj.weight", math.sqrt(6 / (2 * DIM)) / math.sqrt(2)),
    ("encoder.layers.0.attention.in_proj.bias", DIM**-0.5),
    ("encoder.layers.0.attention.out_proj.weight", math.sqrt(6 / (2 * DIM))),
    ("decoder.layers.0.cross_attention.q_proj.weight", math.sqrt(6 / (2 * DIM)) / math.sqrt(2)),
    ("decoder.layers.0.cross_attention.kv_proj.weight", math.sqrt(6 / (2 * DIM)) / math.sqrt(2)),
    ("decoder.layers.0.ffn.fc1.weight", math.sqrt(6 / (DIM + FFN))),
    ("decoder.layers.0.ffn.fc2.weight", math.sqrt(6 / (DIM + FFN))),
])
def test_uniform_ranges(model, name, bound):
    weight = dict(model.named_parameters())[name]
    assert weight.abs().max().item() == pytest.approx(bound, rel=0.02)
    assert weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(uniform(bound), rel=0.1)


def test_zeros_and_ones(model):
    for name, weight in model.named_parameters():
        if name.endswith((".out_proj.bias", "fc1.bias", "fc2.bias", "norm.bias")):
            assert not weight.any(), name
        if name.endswith("norm.weight"):
            assert (weight == 1).all(), name


def test_embeddings(model):
    for table in (model.source_embedding.table.weight, model.target_embedding.table.weight,
                  model.source_embedding.positions.weight):
        assert table.std().item() == pytest.approx(DIM**-0.5, rel=0.02)
        assert not table[1].any()
    # An output matrix of its own is never looked up: nothing asks its padding row to be zero.
    assert model.head.table.weight[1].any()


def test_a_narrower_memory_takes_the_full_gain():
    torch.manual_seed(0)
    encoder = StackConfig(num_layers=1, model_dim=128, ffn_dim=FFN, num_heads=4)
    decoder = StackConfig(num_layers=1, model_dim=DIM, ffn_dim=FFN, num_heads=4)
    model = build_model(ModelConfig(encoder=encoder, decoder=decoder), 20, 20)
    weight = model.decoder.layers[0].cross_attention.kv_proj.weight
    assert weight.abs().max().item() == pytest.approx(math.sqrt(6 / (128 + DIM)), rel=0.02)
    assert isinstance(model.decoder.layers[0].cross_attention.q_proj, nn.Linear)


@pytest.mark.parametrize(("name", "config"), [
    ("sf", {"surface": AttendedFusion(has_linear=True)}),
    ("ta", {"fusion": TransparentFusion(is_fine_grained=True, reads_embedding=True)}),
])
def test_fusion_starts_as_in_the_authors_code(name, config):
    """Mean, spread and range of every parameter that the fork's fusion adds: within what so many draws allow."""
    torch.manual_seed(0)
    stack = StackConfig(num_layers=6, model_dim=128, ffn_dim=256, num_heads=4)
    embedding = EmbeddingConfig(share_all=True)
    model = build_model(ModelConfig(encoder=stack, decoder=stack, embedding=embedding, **config), 512, 512)
    ours = dict(model.named_parameters(remove_duplicate=False))
    compared = 0
    for reference, expected in read_json("init_stats_sf", f"{name}.json").items():
        [place, *_] = places(reference)
        if ".layers." in reference:
            continue  # as in the plain model, tested above
        value = ours[place.name].detach()
        assert list(value.shape) == expected["shape"]
        assert value.std(correction=0).item() == pytest.approx(expected["std"], rel=6 / math.sqrt(2 * value.numel()), abs=1e-9)
        assert value.mean().item() == pytest.approx(expected["mean"], abs=6 * expected["std"] / math.sqrt(value.numel()) + 1e-9)
        if value.numel() > 10_000 and "embed" not in reference:
            assert value.abs().max().item() == pytest.approx(expected["absmax"], rel=0.01)
        compared += 1
    assert compared >= 4
