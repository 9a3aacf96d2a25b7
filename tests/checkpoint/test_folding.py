"""A folded model computes what the model computed, with plain residuals."""

from dataclasses import replace

import pytest
import torch

from lamina.checkpoint.folding import MIN_OMEGA, fold
from lamina.checkpoint.format import load_weights_
from lamina.config.model import LanguageModelConfig
from lamina.config.search_options import SearchConfig
from lamina.decode.search import Search
from lamina.errors import CheckpointError
from lamina.models.build import build_decoder_only, build_masked_model, build_model
from lamina.nn.residual import DeepNorm, OmegaAdd, ReZero
from lamina.nn.stack import ActiveLayers
from lamina.parts.encoder_fusion import LayerWiseFusion, TransparentFusion
from lamina.parts.position_kinds import Learned
from lamina.parts.residuals import Admin, AdminClosedForm, DeepNet, DefaultInit, ReZeroInit, ReZeroPostNorm
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, MaxFusion, MeanFusion, SoftFusion
from lamina.pruning.cut import Keep, prune
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


def trained(config, build=None):
    """Far from its first weights: omegas spread and of both signs, where there are any."""
    model = tiny_model(config)
    torch.manual_seed(7)
    if build is not None:
        model = build(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
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
    config = tiny_config(init=Admin())
    config = replace(config, **{side: replace(getattr(config, side), positions=Learned()) for side in learned})
    model = trained(config)
    folded, folded_config = folded_model(model, config)
    assert folded_config.encoder.positions == Learned()
    assert folded_config.decoder.positions == Learned()
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


def test_positions_reach_as_far_as_before():
    config = tiny_config(init=Admin(), max_source_positions=9)
    model = trained(config)
    folded, _ = folded_model(model, config)
    source, target = tiny_pair(source_length=9)
    torch.testing.assert_close(folded.log_probs(source, target), model.log_probs(source, target), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_after_pruning(kind):
    """The folded model of the kept layers computes what the whole one computes with the others skipped."""
    config = tiny_config(num_layers=4, init=KINDS[kind])
    model = trained(config)
    pruned_config, weights = prune(config, dict(model.named_parameters()), Keep((0, 3), (1, 2, 3)))
    folded_config, weights = fold(pruned_config, weights)
    folded = build_model(folded_config, VOCABULARY_SIZE, VOCABULARY_SIZE)
    load_weights_(folded, weights)
    active = ActiveLayers((True, False, False, True), (False, True, True, True))
    skipped = model.log_probs(*tiny_pair(), active=active)
    torch.testing.assert_close(folded.eval().log_probs(*tiny_pair()), skipped, rtol=0, atol=1e-5)


FUSION = {
    "layer-wise": {"fusion": LayerWiseFusion()},
    "layer-wise, chosen": {"fusion": LayerWiseFusion(layer_wise_reads=(0, 3, -1))},
    "surface, last": {"surface": AttendedFusion(mode=HardFusion(gate=0.8))},
    "surface, middle": {"surface": AttendedFusion(layer=0)},
    "surface, input": {"surface": AttendedFusion(layer=-4, mode=SoftFusion())},
    "surface with positions": {"surface": AttendedFusion(has_positions=True)},
    "both": {"surface": AttendedFusion(layer=1), "fusion": LayerWiseFusion()},
}


@pytest.mark.parametrize("fusion", FUSION)
@pytest.mark.parametrize("tables", ["one table", "separate", "normed embeddings"])
def test_fusion_that_reads_inner_states(fusion, tables):
    config = tiny_config(num_layers=3, init=Admin(), **TABLES[tables], **FUSION[fusion])
    model = trained(config)
    folded, _ = folded_model(model, config)
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("fusion", "name"), [
    ({"fusion": TransparentFusion()}, "--fusion transparent cannot be folded"),
    ({"surface": MeanFusion()}, "--surfacefusion mean cannot be folded"),
    ({"surface": MaxFusion()}, "--surfacefusion max cannot be folded")])
def test_fusion_that_cannot_be_folded_is_named(fusion, name):
    config = tiny_config(init=Admin(), **fusion)
    with pytest.raises(CheckpointError, match=name):
        fold(config, dict(tiny_model(config).named_parameters()))
    # What is on the branch scales no state: there is nothing to undo.
    config = replace(config, init=ReZeroPostNorm())
    model = trained(config)
    folded, _ = folded_model(model, config)
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tables", ["one table", "separate", "normed embeddings"])
def test_language_models(kind, tables):
    changes = dict(TABLES[tables])
    changes["share_decoder"] = changes.pop("share_all", True)
    config = tiny_config(num_layers=3, init=KINDS[kind], **changes, share_all=False)
    model = trained(config, lambda config: build_decoder_only(config, VOCABULARY_SIZE))
    folded_config, weights = fold(config, dict(model.named_parameters()))
    folded = build_decoder_only(folded_config, VOCABULARY_SIZE)
    load_weights_(folded, weights)
    tokens = pad(tiny_pair()[1], right=2)
    torch.testing.assert_close(folded.eval().log_probs(tokens), model.log_probs(tokens), rtol=0, atol=1e-5)


ADAPTIVE = {
    "projected": LanguageModelConfig(input_dim=8, output_dim=8),
    "adaptive softmax": LanguageModelConfig(softmax_cutoff=(12, 24)),
    "adaptive input": LanguageModelConfig(is_adaptive=True, input_cutoff=(12, 24), input_factor=2.0),
    "tied weights": LanguageModelConfig(is_adaptive=True, input_cutoff=(12, 24), softmax_cutoff=(12, 24), ties_weights=True),
    "tied projections": LanguageModelConfig(is_adaptive=True, input_cutoff=(12, 24), softmax_cutoff=(12, 24),
                                            ties_weights=True, ties_projections=True),
}


@pytest.mark.parametrize("lm", ADAPTIVE)
def test_language_models_with_projected_tokens(lm):
    config = replace(tiny_config(num_layers=2, init=Admin(), share_all=False), lm=ADAPTIVE[lm])
    model = trained(config, lambda config: build_decoder_only(config, VOCABULARY_SIZE))
    folded_config, weights = fold(config, dict(model.named_parameters()))
    folded = build_decoder_only(folded_config, VOCABULARY_SIZE)
    load_weights_(folded, weights)
    tokens = tiny_pair()[1]
    torch.testing.assert_close(folded.eval().log_probs(tokens), model.log_probs(tokens), rtol=0, atol=1e-5)


def test_masked_language_models():
    """Their output is always the table that they read with: only a norm after it can take the first omega."""
    config = tiny_config(num_layers=3, init=Admin(), has_norm=True, max_positions=64)
    model = trained(config, lambda config: build_masked_model(config, VOCABULARY_SIZE))
    folded_config, weights = fold(config, dict(model.named_parameters()))
    folded = build_masked_model(folded_config, VOCABULARY_SIZE)
    load_weights_(folded, weights)
    tokens = pad(tiny_pair()[0], right=2)
    found, wanted = (one.logits(tokens).log_softmax(-1)[:, :7] for one in (folded.eval(), model))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    plain = tiny_config(init=Admin(), max_positions=64)
    with pytest.raises(CheckpointError, match="--layernorm-embedding"):
        fold(plain, dict(build_masked_model(plain, VOCABULARY_SIZE).named_parameters()))


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
    assert config.encoder.positions != Learned()
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
