"""Weights before step 0, against the statistics in the references."""

import math

import pytest
import torch
from torch import nn

from golden_files import read_json
from lamina.config.model import EmbeddingConfig, LanguageModelConfig, ModelConfig, StackConfig
from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError
from lamina.interop.fairseq import places
from lamina.models.build import build_decoder_only, build_model
from lamina.parts.encoder_fusion import TransparentFusion
from lamina.parts.position_kinds import Learned
from lamina.parts.residuals import DeepNet
from lamina.parts.surface_fusion import AttendedFusion

DIM, FFN = 256, 512


def fresh(ffn_init=None):
    torch.manual_seed(0)
    stack = StackConfig(num_layers=1, model_dim=DIM, ffn_dim=FFN, num_heads=4, positions=Learned())
    return build_model(ModelConfig(encoder=stack, decoder=stack, embedding=EmbeddingConfig(), ffn_init=ffn_init), 600, 700)


@pytest.fixture(scope="module")
def model():
    return fresh("xavier")


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


def test_feed_forward_blocks_begin_as_torch_has_them():
    """Unless told otherwise, as in fairseq since 0.10; the rest begins as it did."""
    weights, xavier = (dict(one.named_parameters()) for one in (fresh(), fresh("xavier")))
    for side, layer in (("encoder", "fc1"), ("decoder", "fc2")):
        linear = {part: weights[f"{side}.layers.0.ffn.{layer}.{part}"] for part in ("weight", "bias")}
        bound = linear["weight"].size(1) ** -0.5
        for value in linear.values():
            assert value.abs().max().item() <= bound
            assert value.abs().max().item() == pytest.approx(bound, rel=0.05)
            assert value.std().item() == pytest.approx(uniform(bound), rel=0.1)
    for name, weight in weights.items():
        if "ffn" not in name:
            assert weight.std().item() == pytest.approx(xavier[name].std().item(), rel=0.1, abs=1e-9), name
    assert weights.keys() == xavier.keys()
    assert all(torch.equal(one, other) for one, other in zip(fresh("torch").parameters(), fresh().parameters(), strict=True))


def test_no_other_rule_is_overruled():
    with pytest.raises(ConfigError, match="--ffn-init has no effect with --init-type deepnet"):
        ModelConfig(init=DeepNet(), ffn_init="xavier")
    masked = {"data": "folder", "task": "masked_lm", "max-tokens": 64, "ffn-init": "xavier"}
    with pytest.raises(ConfigError, match="--ffn-init has no effect with --task masked_lm"):
        resolve(TrainConfig, masked)


def test_an_adaptive_head_of_its_own_begins_as_one_matrix():
    """Frequent words and an entry for each band: fairseq draws them together, by the size of both."""
    torch.manual_seed(0)
    stack = StackConfig(num_layers=1, model_dim=64, ffn_dim=64, num_heads=2)
    head = build_decoder_only(ModelConfig(decoder=stack, lm=LanguageModelConfig(softmax_cutoff=(1000, 1500, 1800))), 2000).head
    bound = math.sqrt(6 / (64 + 1000 + 3))
    for weight in (head.table.weight, head.clusters.weight):
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.05)
    assert head.tails[0].table.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (16 + 500)), rel=0.02)


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
    # The fork is of fairseq 0.9.
    model = build_model(ModelConfig(encoder=stack, decoder=stack, embedding=embedding, ffn_init="xavier", **config), 512, 512)
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
