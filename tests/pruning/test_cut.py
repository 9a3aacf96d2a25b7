"""Pruning: pure functions on configuration and weights."""

import itertools
from dataclasses import replace

import pytest
import torch

from lamina.checkpoint.format import Checkpoint, load_weights_
from lamina.config.keep import KeepConfig
from lamina.errors import ConfigError
from lamina.fields import flatten
from lamina.models.build import build_model
from lamina.nn.stack import ActiveLayers
from lamina.parts.encoder_fusion import LayerWiseFusion, TransparentFusion
from lamina.parts.residuals import Admin, DeepNet, DefaultInit, ReZeroInit, ReZeroPostNorm
from lamina.parts.surface_fusion import AttendedFusion, HardFusion
from lamina.pruning.cut import PRUNING_LINE, Keep, prune, prune_checkpoint, prune_on_loading, structure_of
from tiny import FUSIONS, VOCABULARY_SIZE, tiny_config, tiny_model, tiny_pair

DEPTH = 3
# Every choice for one side with one for the other.
SUBSETS = [None, *(layers for number in range(1, DEPTH) for layers in itertools.combinations(range(DEPTH), number))]
KEEPS = [*(Keep(layers, (0, 2)) for layers in SUBSETS), *(Keep((1, 2), layers) for layers in SUBSETS), Keep((0,), None)]
# First, last and middle layers go from either side, or one side stays whole.
FEW_KEEPS = [Keep((1, 2), (0, 2)), Keep((0,), (1,)), Keep((2,), None), Keep(None, (1, 2)), Keep((0, 2), (0, 1))]
ORDERS = {"post": {}, "pre": {"is_pre_norm": True}}
INITS = {"plain": DefaultInit(), "admin": Admin(), "rezero": ReZeroInit(), "rezero post-norm": ReZeroPostNorm(),
         "deepnet": DeepNet()}
RESIDUALS = {f"{order}, {init}": {**ORDERS[order], "init": INITS[init]} for order in ORDERS for init in INITS
             if order == "post" or init in ("plain", "rezero post-norm")}
ALL_FUSIONS = {
    "none": {},
    **FUSIONS,
    "layer-wise as told": {"fusion": LayerWiseFusion(layer_wise_reads=(2, 0, -1))},
    "fine-grained": {"fusion": TransparentFusion(is_fine_grained=True)},
    "att at 1": {"surface": AttendedFusion(mode=HardFusion(gate=0.8), layer=1)},
    "att at -2": {"surface": AttendedFusion(mode=HardFusion(gate=0.8), layer=-2)},
    "att at the input": {"surface": AttendedFusion(layer=-DEPTH - 1)},
}


def runs_of(keep):
    return ActiveLayers(*(None if layers is None else tuple(index in layers for index in range(DEPTH)) for layers in keep))


def pruned_model(config, model, keep):
    pruned, weights = prune(config, dict(model.named_parameters()), keep)
    small = build_model(pruned, VOCABULARY_SIZE, VOCABULARY_SIZE)
    load_weights_(small, weights)
    return small.eval()


@pytest.mark.parametrize("fusion", ALL_FUSIONS)
@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_pruned_model_computes_what_the_whole_one_does_with_the_other_layers_skipped(residual, fusion):
    config = tiny_config(num_layers=DEPTH, **RESIDUALS[residual], **ALL_FUSIONS[fusion])
    model = tiny_model(config)
    source, target = tiny_pair()
    whole = model.log_probs(source, target)
    for keep in KEEPS if residual.endswith("plain") else FEW_KEEPS:
        small = pruned_model(config, model, keep)
        skipped = model.log_probs(source, target, active=runs_of(keep))
        assert not torch.allclose(skipped, whole, atol=1e-3), keep
        # Relative where there is no norm, and so scores are large.
        tolerance = 1e-6 * max(1.0, skipped.abs().max().item())
        torch.testing.assert_close(small.log_probs(source, target), skipped, rtol=0, atol=tolerance, msg=str(keep))


@pytest.mark.parametrize("fusion", ["none", "layer-wise", "both"])
def test_stepwise_decoding_skips_and_prunes_alike(fusion):
    config = tiny_config(num_layers=DEPTH, **ALL_FUSIONS[fusion])
    model, keep = tiny_model(config), Keep((1, 2), (0, 2))
    source, target = tiny_pair()
    small = pruned_model(config, model, keep)
    states = small.start(source, target.size(1)), model.start(source, target.size(1), active=runs_of(keep))
    for state in states:
        state.select_(torch.tensor([0, 2]))
    for position in range(3):
        steps = [part.step(target[[0, 2], position], state) for part, state in zip((small, model), states, strict=True)]
        torch.testing.assert_close(steps[0], steps[1], rtol=0, atol=1e-6)


def test_a_pruned_model_can_be_pruned_again():
    config = tiny_config(num_layers=DEPTH, **FUSIONS["both"])
    model = tiny_model(config)
    source, target = tiny_pair()
    once, weights = prune(config, dict(model.named_parameters()), Keep((1, 2), (0, 2)))
    twice, weights = prune(once, weights, Keep((1,), (1,)))
    small = build_model(twice, VOCABULARY_SIZE, VOCABULARY_SIZE)
    load_weights_(small, weights)
    expected = model.log_probs(source, target, active=runs_of(Keep((2,), (2,))))
    torch.testing.assert_close(small.eval().log_probs(source, target), expected, rtol=0, atol=1e-6)


def test_keeping_every_layer_is_the_identity():
    config, model = tiny_config(num_layers=DEPTH), tiny_model(num_layers=DEPTH)
    weights = dict(model.named_parameters())
    for keep in (Keep(), Keep(tuple(range(DEPTH)), tuple(range(DEPTH)))):
        same_config, same_weights = prune(config, weights, keep)
        assert same_config == config
        assert same_weights.keys() == weights.keys()
        assert all(same_weights[name] is weights[name] for name in weights)


def checkpoint(layer_drop_p=0.2, **changes):
    config = tiny_config(num_layers=DEPTH, **changes)
    config = replace(config, encoder=replace(config.encoder, layer_drop_p=layer_drop_p),
                     decoder=replace(config.decoder, layer_drop_p=layer_drop_p))
    weights = {name: parameter.detach() for name, parameter in tiny_model(config).named_parameters()}
    moments = {name: torch.full_like(weight, 2.0) for name, weight in weights.items()}
    text = "".join(f"w{number} 1\n" for number in range(VOCABULARY_SIZE - 4))
    return Checkpoint(flatten(config) | {"seed": 7}, ("en", "xx"), (text, text), ({"kind": "whitespace"},) * 2, weights,
                      {"optimizer": {"step": torch.tensor(3.0), "exp_avg": moments}})


def test_a_checkpoint_keeps_the_optimizer_state_of_the_layers_that_stay():
    small = prune_checkpoint(checkpoint(), Keep(None, (0, 2)))
    assert small.model_config().decoder.num_layers == 2
    assert small.model_config().encoder.num_layers == DEPTH
    assert small.config["decoder-layers-to-keep"] == "0,2 of 3"
    assert small.config["seed"] == 7
    moments = small.training["optimizer"]["exp_avg"]
    assert moments.keys() == small.weights.keys()
    assert all(moments[name].shape == weight.shape and (moments[name] == 2.0).all() for name, weight in small.weights.items())
    assert small.training["optimizer"]["step"].item() == 3.0
    assert "decoder.layers.2.ffn.fc1.weight" not in small.weights


def load_with(stored, **wanted):
    said, warned = [], []
    return prune_on_loading(stored, KeepConfig(**wanted), "m.pt", say=said.append, warn=warned.append), said, warned


def test_what_is_said_and_warned_of():
    _, said, warned = load_with(checkpoint(), decoder="0,2")
    assert (said, warned) == ([PRUNING_LINE], [])
    _, said, warned = load_with(checkpoint(layer_drop_p=0.0), decoder="0,2", encoder="1,")
    assert said == [PRUNING_LINE]
    assert [text.split(":")[0] for text in warned] == ["m.pt was trained without --encoder-layerdrop",
                                                      "m.pt was trained without --decoder-layerdrop"]
    same, said, _ = load_with(checkpoint(), decoder="0,1,2", encoder="every:1")
    assert said == []
    assert same.model_config().decoder.num_layers == 3


@pytest.mark.parametrize("again", ["0,2", "every:2", "2,0"])
def test_a_checkpoint_is_not_pruned_to_the_same_layers_twice(again):
    small, _, _ = load_with(checkpoint(), decoder="every:2")
    same, said, _ = load_with(small, decoder=again)
    assert said == []
    assert same is small
    less, said, _ = load_with(small, decoder="1,")
    assert said == [PRUNING_LINE]
    assert torch.equal(less.weights["decoder.layers.0.ffn.fc1.weight"], checkpoint().weights["decoder.layers.2.ffn.fc1.weight"])
    assert structure_of(less) == {"decoder-layers-to-keep": "1 of 2", "decoder-layers": 1}
    assert structure_of(checkpoint()) == {}


def test_the_file_is_named_in_errors():
    with pytest.raises(ConfigError, match=r"names layer 3, but the encoder of m.pt has 3 layers, 0 to 2"):
        load_with(checkpoint(), encoder="0,3")


@pytest.mark.parametrize(("keep", "is_known"), [(Keep(None, (0, 2)), True), (Keep((1, 2), None), False)])
def test_the_optimizer_forgets_the_weights_of_a_mix_whose_columns_were_merged(keep, is_known):
    stored = checkpoint(fusion=TransparentFusion())
    small = prune_checkpoint(stored, keep)
    moments = small.training["optimizer"]["exp_avg"]
    assert set(small.weights) - set(moments) == (set() if is_known else {"memory.weight"})
    assert all(moments[name].shape == small.weights[name].shape for name in moments)
    assert structure_of(small)["ta-input"] is not is_known
