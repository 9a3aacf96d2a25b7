"""LayerDrop: what is drawn, and what a skipped layer's weights go through."""

from dataclasses import replace

import pytest
import torch

from lamina.config.drop_rates import rates_of, schedule_of_layers
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.errors import ConfigError
from lamina.models.build import build_model
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.update_rules import Adam, Sgd
from lamina.pruning.cut import Keep, prune
from lamina.training.layer_drop import LayerDrop, run_in_any
from lamina.training.update import Updater
from tiny import VOCABULARY_SIZE, batch_of, tiny_config, tiny_model

SGD = OptimizationConfig(optimizer=Sgd(), lr=(0.1,), clip_norm=0.0)


def config_with(encoder=0.0, decoder=0.0, schedule="constant", num_layers=6):
    config = tiny_config(num_layers=num_layers)
    return replace(config, encoder=replace(config.encoder, layer_drop_p=encoder),
                   decoder=replace(config.decoder, layer_drop_p=decoder), layer_drop_schedule=schedule)


def test_masks_depend_on_seed_and_update_alone():
    one = LayerDrop(config_with(0.5, 0.5), seed=3)
    masks = [one.draw(update) for update in range(20)]
    torch.manual_seed(99)
    torch.rand(7)
    assert [LayerDrop(config_with(0.5, 0.5), seed=3).draw(update) for update in reversed(range(20))] == masks[::-1]
    before = torch.get_rng_state()
    one.draw(5)
    assert torch.equal(before, torch.get_rng_state())
    assert [LayerDrop(config_with(0.5, 0.5), seed=4).draw(update) for update in range(20)] != masks
    assert len(set(masks)) > 15


def test_a_stack_that_never_drops_runs_whole_and_changes_nothing_for_the_other():
    both, alone, none = (LayerDrop(config_with(*rates), seed=1) for rates in ((0.3, 0.5), (0.0, 0.5), (0.0, 0.0)))
    for update in range(10):
        assert alone.draw(update).encoder is None
        assert alone.draw(update).decoder == both.draw(update).decoder
        assert none.draw(update) == ActiveLayers(None, None)


@pytest.mark.parametrize(("schedule", "rates"), [
    ("constant", (0.4,) * 4), ("linear", (0.1, 0.2, 0.3, 0.4)), ("0,0.5,0.2,0", (0.0, 0.5, 0.2, 0.0)),
    ("exponential", (0.0, 0.4 * (2 ** (1 / 3) - 1), 0.4 * (2 ** (2 / 3) - 1), 0.4)), ("0.1,0,0,0.3/0.2", (0.1, 0.0, 0.0, 0.3))])
def test_rates(schedule, rates):
    assert rates_of("encoder", 0.4, 4, schedule) == pytest.approx(rates)
    assert rates_of("encoder", 0.0, 4, schedule) == (0.0,) * 4
    drop = LayerDrop(config_with(0.4, schedule=schedule, num_layers=4), seed=1)
    masks = torch.tensor([drop.draw(update).encoder for update in range(4000)]).float()
    assert (1 - masks.mean(dim=0)).tolist() == pytest.approx(rates, abs=0.03)


@pytest.mark.parametrize(("schedule", "message"), [
    ("0.1,0.2", "has 2 rates for the encoder, which has 6 layers"), ("0.1,0.2,0,0,0,1", r"every rate must lie in \[0, 1\)"),
    ("steep", "it must be constant, linear, exponential or a list of rates"), ("0/0/0", "it must be constant")])
def test_schedules_that_are_none(schedule, message):
    with pytest.raises(ConfigError, match=message):
        config_with(0.3, schedule=schedule)


def test_a_pruned_model_keeps_the_rates_of_the_layers_that_are_left():
    assert schedule_of_layers("linear", ((0, 2), (1,))) == "linear"
    assert schedule_of_layers("0,0.1,0.25", ((0, 2), (1,))) == "0,0.25/0.1"
    assert schedule_of_layers("0,0.1,0.25/0.5,0.6", ((0, 2), (1,))) == "0,0.25/0.6"
    config = config_with(0.3, 0.3, schedule="0,0.1,0.2", num_layers=3)
    pruned, _ = prune(config, dict(tiny_model(config).named_parameters()), Keep((0, 2), (1,)))
    assert pruned.layer_drop_rates == ((0.0, 0.2), (0.1,))


def test_a_rate_of_one_and_a_schedule_without_a_rate_are_refused():
    with pytest.raises(ConfigError, match=r"--encoder-layerdrop or --decoder-layerdrop is 1\.0; it must lie in"):
        config_with(encoder=1.0)
    with pytest.raises(ConfigError, match="--layerdrop-schedule has no effect without"):
        config_with(schedule="linear")


def test_each_batch_may_have_a_draw_of_its_own():
    one, each = (LayerDrop(config_with(0.5, 0.5), seed=3, is_by_batch=is_by_batch) for is_by_batch in (False, True))
    assert one.draws(7, 4) == [one.draw(7)]
    draws = each.draws(7, 4)
    assert len(set(draws)) > 1
    assert draws[0] == one.draw(7)
    assert each.draws(7, 2) == draws[:2]  # however many there are


def test_layers_that_some_batch_runs():
    draws = [ActiveLayers((True, False, False), None), ActiveLayers((False, False, True), None)]
    assert run_in_any(draws) == ActiveLayers((True, False, True), None)
    assert run_in_any([ALL_LAYERS]) == ALL_LAYERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_batches_with_draws_of_their_own_add_up(dtype):
    """To what updates with each of them alone give; a layer that one of them runs has a gradient."""
    draws = [ActiveLayers((True, False, False), (False, True, True)), ActiveLayers((False, False, True), (False, True, False))]
    batches = [batch_of(slice(0, 4)), batch_of(slice(4, 8))]
    precision = PrecisionConfig(fp16=dtype == torch.float16)

    def moved(batches, draws):
        updater = Updater(tiny_model(num_layers=3), SGD, precision, dtype)
        before = updater.weights.master.clone()
        result = updater.update(batches, 0.1, seed=1, draws=draws)
        return (updater.weights.master - before) * result.num_tokens, result

    both, result = moved(batches, draws)
    alone = [moved([batch], [active])[0] for batch, active in zip(batches, draws, strict=True)]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(both, sum(alone), **tolerance)
    norms = dict(zip(Updater(tiny_model(num_layers=3), SGD, precision, dtype).weights.names, result.grad_norms.tolist(),
                     strict=True))
    for name, norm in norms.items():
        assert (norm == 0.0) == name.startswith(("encoder.layers.1.", "decoder.layers.0.")), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_skipped_layer_has_a_zero_gradient_and_is_stepped(dtype):
    active = ActiveLayers(encoder=(True, False, True), decoder=(False, True, True))
    precision = PrecisionConfig(fp16=dtype == torch.float16)
    adam = OptimizationConfig(optimizer=Adam(weight_decay=0.1), lr=(0.1,), clip_norm=0.0)
    updater = Updater(tiny_model(num_layers=3), adam, precision, dtype)
    before = updater.weights.named(updater.weights.master.clone())
    for _ in range(2):
        result = updater.update([batch_of(slice(0, 4)), batch_of(slice(4, 8))], 0.1, seed=1, draws=[active])
    assert result.numbers[4].item() == 1.0
    norms = dict(zip(updater.weights.names, result.grad_norms.tolist(), strict=True))
    after = updater.weights.named(updater.weights.master)
    for name, norm in norms.items():
        is_skipped = name.startswith(("encoder.layers.1.", "decoder.layers.0."))
        assert (norm == 0.0) == is_skipped, name
        if is_skipped:
            # The step of a zero gradient: weight decay alone.
            torch.testing.assert_close(after[name], before[name] * 0.99**2)


def test_gradients_are_those_of_the_pruned_model():
    config = tiny_config(num_layers=3)
    whole = Updater(tiny_model(config), SGD, PrecisionConfig())
    pruned_config, weights = prune(config, dict(tiny_model(config).named_parameters()), Keep((0, 2), (1,)))
    small = build_model(pruned_config, VOCABULARY_SIZE, VOCABULARY_SIZE)
    small.load_state_dict(weights, strict=False)
    pruned = Updater(small, SGD, PrecisionConfig())
    one = whole.update([batch_of(slice(0, 8))], 0.1, seed=1, draws=[ActiveLayers((True, False, True), (False, True, False))])
    other = pruned.update([batch_of(slice(0, 8))], 0.1, seed=1)
    torch.testing.assert_close(one.numbers, other.numbers)
    after = {name: value.clone() for name, value in whole.weights.named(whole.weights.master).items()}
    _, expected = prune(config, after, Keep((0, 2), (1,)))
    torch.testing.assert_close(pruned.weights.named(pruned.weights.master), expected)
