"""What build_model builds: names, counts, sharing."""

import pytest
import torch

from lamina.errors import ConfigError
from lamina.models.build import PAD_ID, build_decoder_only, build_model
from lamina.registry import register
from lamina.text.vocabulary import PAD
from tiny import VOCABULARY_SIZE, tiny_config, tiny_model


def test_parameter_names_are_a_file_format():
    names = [name for name, _ in tiny_model(num_layers=1, is_pre_norm=True, has_norm=True).named_parameters()]
    attention = ["out_proj.weight", "out_proj.bias", "in_proj.weight", "in_proj.bias"]
    cross = ["out_proj.weight", "out_proj.bias", "q_proj.weight", "q_proj.bias", "kv_proj.weight", "kv_proj.bias"]
    norm = ["norm.weight", "norm.bias"]
    ffn = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]

    def under(prefix, inner):
        return [f"{prefix}.{name}" for name in inner]

    assert names == [
        "source_embedding.table.weight", *under("source_embedding", norm),
        *under("encoder.layers.0.attention", attention), *under("encoder.layers.0.attn_residual", norm),
        *under("encoder.layers.0.ffn", ffn), *under("encoder.layers.0.ffn_residual", norm), *under("encoder", norm),
        *under("target_embedding", norm),
        *under("decoder.layers.0.attention", attention), *under("decoder.layers.0.attn_residual", norm),
        *under("decoder.layers.0.cross_attention", cross), *under("decoder.layers.0.cross_residual", norm),
        *under("decoder.layers.0.ffn", ffn), *under("decoder.layers.0.ffn_residual", norm), *under("decoder", norm),
    ]


def test_post_norm_has_no_final_norm():
    assert not any(name.startswith(("encoder.norm", "decoder.norm")) for name, _ in tiny_model().named_parameters())


@pytest.mark.parametrize(("sharing", "num_tables"), [({"share_all": True}, 1), ({"share_all": False}, 3),
                                                     ({"share_all": False, "share_decoder": True}, 2)])
def test_sharing_means_one_tensor(sharing, num_tables):
    model = build_model(tiny_config(**sharing), VOCABULARY_SIZE, VOCABULARY_SIZE)
    tables = {id(part.weight) for part in (model.source_embedding.table, model.target_embedding.table, model.head.table)}
    assert len(tables) == num_tables


def test_sharing_needs_one_dictionary():
    with pytest.raises(ConfigError, match="--joined-dictionary"):
        build_model(tiny_config(), 40, 41)


# Counted from the published architectures: embeddings V*D, 4D^2 + 4D an attention, 2DF + D + F a feed-forward, 2D a norm.
EXPECTED_PARAMS = {"transformer": 6, "transformer_iwslt_de_en": 6, "transformer_vaswani_wmt_en_de_big": 6}


@pytest.mark.parametrize("arch", EXPECTED_PARAMS)
def test_number_of_parameters(arch):
    config = register.arch[arch]()
    dim, ffn_dim, vocab = config.encoder.model_dim, config.encoder.ffn_dim, 1000
    attention, ffn, norm = 4 * dim**2 + 4 * dim, 2 * dim * ffn_dim + dim + ffn_dim, 2 * dim
    layers = 6 * (attention + ffn + 2 * norm) + 6 * (2 * attention + ffn + 3 * norm)
    with torch.device("meta"):
        model = build_model(config, vocab, vocab)
    assert sum(parameter.numel() for parameter in model.parameters()) == layers + 3 * vocab * dim


@pytest.mark.parametrize("arch", register.arch.of_task("language_modeling"))
def test_every_preset_of_a_language_model_builds_and_runs(arch):
    config = register.arch[arch]()
    with torch.device("meta"):
        model = build_decoder_only(config, 70000)
    assert model.log_probs(torch.ones(1, 2, dtype=torch.long, device="meta")).shape == (1, 2, 70000)


@pytest.mark.parametrize("arch", register.arch.of_task("translation"))
def test_every_preset_builds_and_runs(arch):
    config = register.arch[arch]()
    if config.encoder.model_dim > 512:
        with torch.device("meta"):
            model = build_model(config, 12, 12)
        assert model.log_probs(torch.ones(1, 2, dtype=torch.long, device="meta"),
                               torch.ones(1, 2, dtype=torch.long, device="meta")).shape == (1, 2, 12)
    else:
        model = build_model(config, 12, 12).eval()
        assert model.log_probs(torch.tensor([[5, 2]]), torch.tensor([[2, 6]])).isfinite().all()


def test_pad_is_one_number_everywhere():
    assert PAD_ID == PAD


def test_encoder_and_decoder_may_differ_in_width():
    from dataclasses import replace

    config = tiny_config(share_all=False)
    config = replace(config, encoder=replace(config.encoder, model_dim=24))
    model = build_model(config, 12, 13).eval()
    assert model.log_probs(torch.tensor([[5, 2]]), torch.tensor([[2, 6]])).shape == (1, 2, 13)
