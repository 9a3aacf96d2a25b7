"""The parts compose: what the decoder and the softmax read, how a branch is added, which layers run, and how one decodes."""

import pytest
import torch

from lamina.config.search_options import SearchConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import Batch
from lamina.decode.scoring import token_log_probs
from lamina.decode.search import Search
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.residuals import Admin, DeepNet, DefaultInit, ReZeroInit
from lamina.training.update import Updater
from tiny import FUSIONS, MIXINGS, pad, tiny_model, tiny_pair

RESIDUALS = {
    "post": {"init": DefaultInit()},
    "pre": {"init": DefaultInit(), "is_pre_norm": True},
    "admin": {"init": Admin()},
    "rezero": {"init": ReZeroInit()},
    "deepnet": {"init": DeepNet()},
}
SKIPS = {"all": ALL_LAYERS, "some": ActiveLayers(encoder=(True, False, True), decoder=(False, True, False)),
         "ends": ActiveLayers(encoder=(False, True, False), decoder=(False, False, False))}


@pytest.fixture(params=FUSIONS.values(), ids=FUSIONS.keys())
def fusion(request):
    return request.param


@pytest.fixture(params=RESIDUALS.values(), ids=RESIDUALS.keys())
def residual(request):
    return request.param


@pytest.fixture
def model(fusion, residual):
    return tiny_model(num_layers=3, **fusion, **residual)


@pytest.mark.parametrize("active", SKIPS.values(), ids=SKIPS.keys())
def test_stepwise_decoding_matches_full_forward(model, active):
    source, target = tiny_pair()
    source = torch.cat([pad(source[:1, 2:], right=2), source[1:]])
    state = model.start(source, target.size(1), active=active)
    steps = torch.stack([model.step(target[:, position], state) for position in range(target.size(1))], dim=1)
    full = model.log_probs(source, target, active=active)
    # float32 with another order of sums on each path; scores of a model without norms are large
    torch.testing.assert_close(steps, full, rtol=2e-5, atol=2e-5)
    if active != ALL_LAYERS:
        assert not torch.allclose(full, model.log_probs(source, target))


@pytest.mark.parametrize("active", SKIPS.values(), ids=SKIPS.keys())
@pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS.keys())
def test_stepwise_decoding_matches_full_forward_with_a_mixing(mixing, fusion, active):
    model = tiny_model(num_layers=3, **{**fusion, **mixing})
    source, target = tiny_pair()
    source = torch.cat([pad(source[:1, 2:], right=2), source[1:]])
    state = model.start(source, target.size(1), active=active)
    steps = torch.stack([model.step(target[:, position], state) for position in range(target.size(1))], dim=1)
    torch.testing.assert_close(steps, model.log_probs(source, target, active=active), rtol=2e-5, atol=2e-5)


def test_a_skipped_layer_never_shifts_what_is_read(fusion):
    """Skipping a layer is the same as making it the identity, whoever reads its state."""
    from lamina.nn.stack import EncoderLayer

    model = tiny_model(num_layers=3, is_pre_norm=True, **fusion)
    source, target = tiny_pair()
    skipped = model.log_probs(source, target, active=ActiveLayers(encoder=(True, False, True), decoder=None))
    layer = model.encoder.layers[1]
    assert isinstance(layer, EncoderLayer)
    with torch.no_grad():
        # Pre-LN adds its branches: with nothing to add, the layer hands its input on.
        for linear in (layer.attention.out_proj, layer.ffn.fc2):
            linear.weight.zero_()
            linear.bias.zero_()
    torch.testing.assert_close(model.log_probs(source, target), skipped, rtol=1e-5, atol=1e-5)


def test_beams_ensembles_and_given_scores(fusion):
    one, other = (tiny_model(seed=seed, **fusion) for seed in (1, 2))
    source, target = tiny_pair()
    config = SearchConfig(beam=3, nbest=3, max_length_offset=8)
    for models in ([one], [one, other]):
        for found in Search(models, config).run(source):
            assert len(found) == 3
            assert found[0].score >= found[1].score >= found[2].score
    # Two of a kind say what one says.
    single, double = (token_log_probs(models, (source, target), target) for models in ([one], [one, one]))
    torch.testing.assert_close(single, double)
    assert (single <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("active", [ALL_LAYERS, ActiveLayers(encoder=(True, False, True), decoder=(False, True, True))],
                         ids=["all", "some"])
def test_an_update_reads_every_weight_but_those_of_skipped_layers(fusion, dtype, active):
    model = tiny_model(num_layers=3, dropout_p=0.1, **fusion)
    source, target = tiny_pair()
    batch = Batch(source, target, target.roll(-1, dims=1), num_source_tokens=source.numel(), num_target_tokens=target.numel(),
                  indices=(0, 1, 2))
    updater = Updater(model, OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1)), PrecisionConfig(), dtype)
    result = updater.update([batch], lr=1e-3, seed=1, draws=[active])
    assert result.numbers.isfinite().all()
    untouched = {name for name, norm in zip(updater.weights.names, result.grad_norms.tolist(), strict=True) if norm == 0.0}
    skipped = () if active == ALL_LAYERS else ("encoder.layers.1.", "decoder.layers.0.")
    assert untouched == {name for name in updater.weights.names if skipped and name.startswith(skipped)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("active", [ALL_LAYERS, ActiveLayers(encoder=(True, False, True), decoder=(True, True, False))],
                         ids=["all", "some"])
@pytest.mark.parametrize("name", [name for name in MIXINGS if "dilated" not in name])
def test_an_update_reads_every_weight_of_a_mixing_too(name, dtype, active, recomputes):
    mixing = MIXINGS[name]
    model = tiny_model(num_layers=3, dropout_p=0.1, **mixing)
    model.encoder.recomputes = model.decoder.recomputes = recomputes
    source, target = tiny_pair()
    batch = Batch(source, target, target.roll(-1, dims=1), num_source_tokens=source.numel(), num_target_tokens=target.numel(),
                  indices=(0, 1, 2))
    updater = Updater(model, OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1)), PrecisionConfig(), dtype)
    result = updater.update([batch], lr=1e-3, seed=1, draws=[active])
    assert result.numbers.isfinite().all()
    untouched = {name for name, norm in zip(updater.weights.names, result.grad_norms.tolist(), strict=True) if norm == 0.0}
    skipped = ["encoder.layers.1.", "decoder.layers.2."] if active != ALL_LAYERS else []
    if "attention" in name:
        # Below the first sub-layer there is the input alone, and a softmax over one.
        skipped += [f"{stack}.layers.0.attn_residual.query" for stack in ("encoder", "decoder")]
    assert untouched == {name for name in updater.weights.names if name.startswith(tuple(skipped))}


@pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS.keys())
def test_recomputed_layers_have_the_gradients_of_kept_ones(mixing):
    source, target = tiny_pair()
    found = []
    for recomputes in (False, True):
        model = tiny_model(num_layers=3, dropout_p=0.2, **mixing).train()
        model.encoder.recomputes = model.decoder.recomputes = recomputes
        torch.manual_seed(3)
        model.log_probs(source, target)[..., 5].sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for kept, again in zip(*found, strict=True):
        torch.testing.assert_close(again, kept)
