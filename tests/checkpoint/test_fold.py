"""A folded model computes what the model computed, with plain residuals."""

import pytest
import torch

from lamina.checkpoint.fold import MIN_OMEGA, fold
from lamina.checkpoint.format import load_weights_
from lamina.config.decode import SearchConfig
from lamina.config.init import Admin, AdminClosedForm, DeepNet, DefaultInit, ReZeroInit, ReZeroPostNorm
from lamina.decode.beam import Search
from lamina.errors import CheckpointError
from lamina.models.build import build_model
from lamina.nn.residual import DeepNorm, OmegaAdd, ReZero
from tiny import VOCABULARY_SIZE, pad, tiny_config, tiny_model, tiny_pair

KINDS = {"admin": Admin(), "closed form": AdminClosedForm(), "deepnet": DeepNet(), "rezero_postln": ReZeroPostNorm()}
TABLES = {
    "one table": {},
    "separate": {"share_all": False},
    "decoder tied": {"share_all": False, "share_decoder": True},
    "normed embeddings": {"has_norm": True},
    "no positions": {"has_positions": False},
    "unscaled": {"is_scaled": False},
}


def trained(config):
    """Far from its first weights: omegas spread and of both signs, where there are any."""
    model = tiny_model(config)
    torch.manual_seed(7)
    with torch.no_grad():
        for part in model.modules():
            match part:
                case OmegaAdd():
                    part.omega.copy_(torch.empty(16).uniform_(0.5, 3.0) * torch.where(torch.rand(16) < 0.1, -1.0, 1.0))
                case ReZero():
                    part.scale.uniform_(0.2, 1.0)
    return model


def folded_model(model, config):
    folded_config, weights = fold(config, dict(model.named_parameters()))
    folded = build_model(folded_config, VOCABULARY_SIZE, VOCABULARY_SIZE)
    load_weights_(folded, weights)
    return folded.eval(), folded_config


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tables", TABLES)
def test_outputs_are_the_same(kind, tables):
    config = tiny_config(num_layers=3, init=KINDS[kind], **TABLES[tables])
    model = trained(config)
    folded, folded_config = folded_model(model, config)
    assert isinstance(folded_config.init, DefaultInit)
    assert not any(isinstance(part, (OmegaAdd, ReZero, DeepNorm)) for part in folded.modules())
    source, target = tiny_pair()
    source, target = pad(source, left=3), pad(target, right=2)
    torch.testing.assert_close(folded.log_probs(source, target), model.log_probs(source, target), rtol=0, atol=1e-5)


@pytest.mark.parametrize("learned", [("encoder",), ("decoder",), ("encoder", "decoder")])
def test_learned_positions(learned):
    from dataclasses import replace

    config = tiny_config(init=Admin())
    config = replace(config, **{side: replace(getattr(config, side), has_learned_positions=True) for side in learned})
    model = trained(config)
    folded, folded_config = folded_model(model, config)
    assert folded_config.encoder.has_learned_positions
    assert folded_config.decoder.has_learned_positions
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


def test_positions_reach_as_far_as_before():
    config = tiny_config(init=Admin(), max_source_positions=9)
    model = trained(config)
    folded, _ = folded_model(model, config)
    source, target = tiny_pair(source_length=9)
    torch.testing.assert_close(folded.log_probs(source, target), model.log_probs(source, target), rtol=0, atol=1e-5)


def test_beam_search_finds_the_same():
    config = tiny_config(num_layers=3, init=Admin())
    model = trained(config)
    folded, _ = folded_model(model, config)
    source, _ = tiny_pair(batch=8)
    found, wanted = (Search([one], SearchConfig(beam=4, max_length_offset=12)).run(source) for one in (folded, model))
    for one, other in zip(found, wanted, strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
        assert [hypothesis.score for hypothesis in one] == pytest.approx([hypothesis.score for hypothesis in other], abs=1e-5)


def test_tables_come_apart_only_where_they_must():
    shared = tiny_config(init=Admin())
    _, config = folded_model(trained(shared), shared)
    assert not config.embedding.share_all
    normed = tiny_config(init=Admin(), has_norm=True)
    _, config = folded_model(trained(normed), normed)
    assert config.embedding.share_all
    assert not config.encoder.has_learned_positions
    rezero = tiny_config(init=ReZeroPostNorm(), is_pre_norm=True)
    _, config = folded_model(trained(rezero), rezero)
    assert config.embedding.share_all
    assert config.encoder.is_pre_norm


def test_weights_given_are_left_alone():
    config = tiny_config(init=Admin())
    model = trained(config)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fold(config, dict(model.named_parameters()))
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize("value", [0.0, MIN_OMEGA / 2, -MIN_OMEGA / 2, float("nan")])
def test_an_omega_near_zero_is_refused(value):
    config = tiny_config(init=Admin())
    model = trained(config)
    with torch.no_grad():
        model.decoder.layers[1].cross_residual.add.omega[5] = value
    if value == value:
        with pytest.raises(CheckpointError, match=r"decoder.layers.1.cross_residual.add.omega is .* in channel 5"):
            fold(config, dict(model.named_parameters()))
    else:
        with pytest.raises(CheckpointError, match=r"decoder.layers.1.cross_residual.add.omega is nan"):
            fold(config, dict(model.named_parameters()))


def test_a_small_omega_still_gives_the_same():
    config = tiny_config(init=Admin())
    model = trained(config)
    with torch.no_grad():
        model.encoder.layers[1].ffn_residual.add.omega[3] = 2 * MIN_OMEGA
        model.encoder.layers[0].attn_residual.add.omega[4] = -2 * MIN_OMEGA
    folded, _ = folded_model(model, config)
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("init", "why"), [(DefaultInit(), "nothing to fold"), (ReZeroInit(), "has no LayerNorm")])
def test_what_cannot_be_folded(init, why):
    config = tiny_config(init=init)
    with pytest.raises(CheckpointError, match=why):
        fold(config, dict(tiny_model(config).named_parameters()))
