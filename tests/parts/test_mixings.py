"""Fusion inside a stack: what DenseFormer, value residual, LIMe and attention residuals compute, and how they prune."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lamina.checkpoint.folding import fold
from lamina.checkpoint.format import load_weights_
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, ConfigError
from lamina.fields import build, flatten
from lamina.models.build import build_decoder_only, build_masked_model, build_model
from lamina.nn.compiling import parts_to_compile, replaced
from lamina.nn.depth_attention import DepthAttention, attend, residuals_of
from lamina.nn.depth_average import DepthAverage
from lamina.nn.head_router import matrix_by_channel, mix_heads
from lamina.nn.stack import ActiveLayers, stacks_of
from lamina.parts.attention_residuals import AttendOverDepth
from lamina.parts.denseformer import DenseFormer
from lamina.parts.keel import Keel
from lamina.parts.lime import LayerIntegratedMemory
from lamina.parts.residuals import Admin, DefaultInit, ReZeroPostNorm
from lamina.parts.value_residual import ValueResidual
from lamina.pruning.cut import Keep, prune
from tiny import FUSIONS, MIXINGS, VOCABULARY_SIZE, tiny_config, tiny_lm_config, tiny_model, tiny_pair

# Those that can begin as the plain model, and as which.
PLAIN_AT_FIRST = {
    "denseformer": {"mixing": DenseFormer()},
    "denseformer, dilated": {"mixing": DenseFormer(dilation=2, period=2)},
    "denseformer, Pre-LN": {"mixing": DenseFormer(), "is_pre_norm": True},
    "value residual": {"mixing": ValueResidual(share=0.0)},
    "lime": {"mixing": LayerIntegratedMemory(spread=0.0)},
    # An even mean and a sum differ by a scale, which Pre-LN's norms take away again.
    "attention residuals": {"mixing": AttendOverDepth(), "is_pre_norm": True},
    "attention residuals in blocks": {"mixing": AttendOverDepth(num_blocks=2), "is_pre_norm": True},
}


@pytest.fixture(params=MIXINGS.values(), ids=MIXINGS.keys())
def mixing(request):
    return request.param


def fresh(config, seed=0):
    torch.manual_seed(seed)
    return build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE).eval()


def copied_from(plain, config):
    """A fresh model of the configuration, with the plain one's weights wherever it has them."""
    model = fresh(config)
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(".mixing." in name or ".sharing." in name or name.endswith("_residual.query") for name in missing)
    return model


@pytest.mark.parametrize("parts", PLAIN_AT_FIRST.values(), ids=PLAIN_AT_FIRST.keys())
@pytest.mark.parametrize("fusion", [{}, FUSIONS["both"]], ids=["plain", "both fusions"])
def test_it_begins_as_the_plain_model(parts, fusion):
    plain = tiny_model(num_layers=4, is_pre_norm=parts.get("is_pre_norm", False), **fusion)
    model = copied_from(plain, tiny_config(num_layers=4, **parts, **fusion))
    for part in (*model.modules(), *plain.modules()):
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = 0.0  # against a stream that has shrunk to its mean, it would count for more
    torch.testing.assert_close(model.log_probs(*tiny_pair()), plain.log_probs(*tiny_pair()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("parts", [{"mixing": ValueResidual()}, {"mixing": LayerIntegratedMemory()}], ids=["value", "lime"])
def test_the_published_start_is_another_model(parts):
    plain = tiny_model(num_layers=4)
    model = copied_from(plain, tiny_config(num_layers=4, **parts))
    assert not torch.allclose(model.log_probs(*tiny_pair()), plain.log_probs(*tiny_pair()), atol=1e-3)


# -- formulas


def test_a_depth_average_is_its_formula():
    states = list(torch.randn(4, 2, 3, 8))
    average = DepthAverage(3, dilation=1, period=1, scales_input=False, has_output=True)
    torch.nn.init.normal_(average.weight)
    assert average(states[:1], 0) is states[0]
    for index in (1, 2, 3):
        expected = sum(average.weight[index, number] * states[number] for number in range(index + 1))
        torch.testing.assert_close(average(states[: index + 1], index), expected)


def test_dilation_and_period_leave_states_out():
    states = list(torch.randn(5, 2, 3, 8))
    average = DepthAverage(4, dilation=2, period=2, scales_input=False, has_output=True)
    torch.nn.init.normal_(average.weight)
    weight = average.weight
    expected = weight[4, 0] * states[0] + weight[4, 2] * states[2] + weight[4, 4] * states[4]
    torch.testing.assert_close(average(states, 4), expected)
    assert average(states[:4], 3) is states[3]


def qkv_of(layer, x):
    return layer.attention.in_proj(x).chunk(3, dim=-1)


def attention_by_hand(layer, query, key, value):
    heads = [part.unflatten(2, (2, -1)).transpose(1, 2) for part in (query, key, value)]
    mixed = F.scaled_dot_product_attention(*heads)
    return layer.attention.out_proj(mixed.transpose(1, 2).flatten(2))


def encoder_of(**parts):
    """Two Post-LN layers and their input, without padding."""
    model = tiny_model(num_layers=2, **parts)
    source, _ = tiny_pair()
    x = model.source_embedding(source, model.encode(source).layout).input
    return model, source, x


def finished(layer, x, attended):
    x = layer.attn_residual.norm(x + attended)
    return layer.ffn_residual.norm(x + layer.ffn(x))


def test_value_residual_is_its_formula():
    model, source, x = encoder_of(mixing=ValueResidual())
    first, second = model.encoder.layers
    query, key, values = qkv_of(first, x)
    x = finished(first, x, attention_by_hand(first, query, key, values))
    query, key, own = qkv_of(second, x)
    of_first, of_own = second.attention.sharing.weight
    x = finished(second, x, attention_by_hand(second, query, key, of_first * values + of_own * own))
    torch.testing.assert_close(model.encode(source).output.final, x, rtol=1e-5, atol=1e-5)


def test_lime_is_its_formula():
    model, source, x = encoder_of(mixing=LayerIntegratedMemory())
    first, second = model.encoder.layers
    query, *below = qkv_of(first, x)
    x = finished(first, x, attention_by_hand(first, query, *below))
    query, *own = qkv_of(second, x)
    router, mixed = second.attention.sharing, []
    for lower, upper in zip(below, own, strict=True):
        lower, upper = (part.unflatten(2, (2, -1)) for part in (lower, upper))
        heads = [sum(router.lower[head, 0, other] * lower[:, :, other] + router.own[head, other] * upper[:, :, other]
                     for other in range(2)) for head in range(2)]
        mixed.append(torch.cat(heads, dim=2))
    x = finished(second, x, attention_by_hand(second, query, *mixed))
    torch.testing.assert_close(model.encode(source).output.final, x, rtol=1e-5, atol=1e-5)


def depth_softmax(query, sources):
    keys = [source * (source.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt() for source in sources]
    shares = torch.stack([key @ query for key in keys]).softmax(dim=0)
    return (shares[..., None] * torch.stack(sources)).sum(dim=0)


def in_groups(sources):
    return [tuple(sources[:1]), *(tuple(sources[start : start + 2]) for start in range(1, len(sources), 2))]


def test_a_prior_and_its_normaliser_are_a_softmax_over_sources():
    queries, sources = torch.randn(2, 8).unbind(), torch.randn(5, 2, 5, 8).unbind()
    for found in (attend(queries, *sources), DepthAttention().over(queries, in_groups(sources))):
        for query, mix in zip(queries, found.mixes, strict=True):
            torch.testing.assert_close(mix, depth_softmax(query, sources))
        assert [normaliser.shape for normaliser in found.normalisers] == [(2, 5, 1)] * 2


def attended(part, weights, sources):
    found = part.over(weights, in_groups(sources))
    return torch.cat((*found.mixes, *found.normalisers), dim=-1)


def result_and_gradients(part, queries, sources):
    own = [tensor.clone().requires_grad_() for tensor in (*queries, *sources)]
    result = attended(part, own[: len(queries)], own[len(queries) :])
    (result * torch.linspace(-1, 1, result.numel()).view_as(result)).sum().backward()
    return [result.detach(), *(tensor.grad for tensor in own)]


@pytest.mark.parametrize("number", [1, 2, 7])
def test_what_a_compiler_is_given_is_the_same(number):
    """In small steps, and in groups."""
    torch.manual_seed(0)
    part, queries, sources = DepthAttention(), torch.randn(2, 16).unbind(), torch.randn(number, 2, 5, 16).unbind()
    eager = result_and_gradients(part, queries, sources)
    with replaced({part: torch.compile(part.forward, backend="aot_eager", dynamic=False)}):
        compiled = result_and_gradients(part, queries, sources)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", MIXINGS.values(), ids=MIXINGS)
def test_a_model_computes_the_same_with_what_a_compiler_is_given(parts):
    """Without the compiler."""
    model = tiny_model(num_layers=4, **parts)
    expected = model.log_probs(*tiny_pair())
    with replaced({part: part.forward for part in parts_to_compile(model)}):
        torch.testing.assert_close(model.log_probs(*tiny_pair()), expected, rtol=1e-5, atol=1e-5)


def test_heads_are_mixed_the_same_in_one_product():
    """As a GPU does in half precision."""
    weights, heads = torch.randn(2, 6, dtype=torch.float64), torch.randn(3, 4, 6 * 5, dtype=torch.float64)
    torch.testing.assert_close(heads @ matrix_by_channel(weights, 5), mix_heads(weights, heads))


@pytest.mark.parametrize("num_blocks", [0, 2])
def test_attention_residuals_are_their_formula(num_blocks):
    model = tiny_model(num_layers=4, is_pre_norm=True, mixing=AttendOverDepth(num_blocks=num_blocks))
    source, _ = tiny_pair()
    encoded = model.encode(source)
    sources, partial = [model.source_embedding(source, encoded.layout).input], None
    for index, layer in enumerate(model.encoder.layers):
        if num_blocks and index == 2:
            sources, partial = [*sources, partial], None
        for residual, branch in zip(residuals_of(layer), (lambda x, layer=layer: layer.attention(x, encoded.layout), layer.ffn),
                                    strict=True):
            now = [*sources, *([] if partial is None else [partial])]
            output = branch(residual.norm(depth_softmax(residual.query, now)))
            if num_blocks:
                partial = output if partial is None else partial + output
            else:
                sources.append(output)
    final = depth_softmax(model.encoder.mixing.query, [*sources, *([] if partial is None else [partial])])
    torch.testing.assert_close(encoded.output.final, model.encoder.norm(final), rtol=1e-5, atol=1e-5)


# -- pruning


@pytest.mark.parametrize("fusion", [{}, FUSIONS["both"], FUSIONS["transparent"]], ids=["plain", "both fusions", "transparent"])
def test_a_pruned_model_computes_what_the_whole_one_does_without_those_layers(mixing, fusion):
    config = tiny_config(num_layers=5, **mixing, **fusion)
    whole = tiny_model(config)
    once, weights = prune(config, dict(whole.named_parameters()), Keep(encoder=(1, 2, 4), decoder=(0, 2, 3)))
    twice, weights = prune(once, weights, Keep(encoder=(0, 2), decoder=(1, 2)))
    assert build(ModelConfig, flatten(twice)) == twice
    small = fresh(twice)
    load_weights_(small, weights)
    active = ActiveLayers(encoder=(False, True, False, False, True), decoder=(False, False, True, True, False))
    expected = whole.log_probs(*tiny_pair(), active=active)
    assert not torch.allclose(expected, whole.log_probs(*tiny_pair()), atol=1e-3)
    torch.testing.assert_close(small.log_probs(*tiny_pair()), expected, rtol=1e-5, atol=2e-5)


def test_pruning_one_stack_leaves_the_other_as_it_was(mixing):
    config = tiny_config(num_layers=4, **mixing)
    whole = tiny_model(config)
    pruned, weights = prune(config, dict(whole.named_parameters()), Keep(decoder=(2, 3)))
    small = fresh(pruned)
    load_weights_(small, weights)
    expected = whole.log_probs(*tiny_pair(), active=ActiveLayers(decoder=(False, False, True, True)))
    torch.testing.assert_close(small.log_probs(*tiny_pair()), expected, rtol=1e-5, atol=2e-5)


# -- one stack, other tasks, other residuals


@pytest.mark.parametrize("stacks", ["encoder", "decoder"])
def test_one_stack_may_have_it_alone(mixing, stacks):
    model = tiny_model(replace(tiny_config(num_layers=3, **mixing), mixing_stacks=stacks))
    assert {name for name, stack in stacks_of(model).items() if stack.mixing is not None} == {stacks}
    plain = tiny_model(num_layers=3, is_pre_norm=mixing.get("is_pre_norm", False))
    assert len(list(model.encoder.parameters())) + len(list(model.decoder.parameters())) > (
        len(list(plain.encoder.parameters())) + len(list(plain.decoder.parameters())))
    source, target = tiny_pair()
    state = model.start(source, target.size(1))
    steps = torch.stack([model.step(target[:, position], state) for position in range(target.size(1))], dim=1)
    torch.testing.assert_close(steps, model.log_probs(source, target), rtol=1e-5, atol=1e-5)


def test_language_models_step_as_they_read(mixing):
    config = tiny_lm_config(num_layers=3, is_pre_norm=mixing.get("is_pre_norm", False))
    torch.manual_seed(0)
    model = build_decoder_only(replace(config, mixing=mixing["mixing"]), VOCABULARY_SIZE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    _, target = tiny_pair(target_length=8)
    full = model.log_probs(target)
    state = model.start(target, 8)
    read = model.read(target[:, :3], target[:, 1:4], state)
    torch.testing.assert_close(read, full[:, :3].gather(2, target[:, 1:4, None])[..., 0], rtol=1e-5, atol=1e-5)
    steps = [model.step(target[:, position], state) for position in range(3, 8)]
    torch.testing.assert_close(torch.stack(steps, dim=1), full[:, 3:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["denseformer", "value-residual", "lime"])
@pytest.mark.parametrize("init", [Admin(), Keel(), ReZeroPostNorm()], ids=["admin", "keel", "rezero"])
def test_they_go_with_other_residuals(name, init):
    model = tiny_model(num_layers=3, init=init, **MIXINGS[name])
    source, target = tiny_pair()
    state = model.start(source, target.size(1))
    steps = torch.stack([model.step(target[:, position], state) for position in range(target.size(1))], dim=1)
    torch.testing.assert_close(steps, model.log_probs(source, target), rtol=2e-5, atol=2e-5)


# -- folding and refusals


@pytest.mark.parametrize("name", ["value-residual", "lime"])
def test_admin_folds_where_keys_and_values_alone_are_shared(name):
    config = tiny_config(num_layers=3, init=Admin(), **MIXINGS[name])
    model = tiny_model(config)
    plain, weights = fold(config, dict(model.named_parameters()))
    folded = fresh(plain)
    load_weights_(folded, weights)
    assert plain.init == DefaultInit()
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


def test_a_depth_average_of_scaled_states_is_not_folded():
    config = tiny_config(init=Admin(), mixing=DenseFormer())
    with pytest.raises(CheckpointError, match="--mixing denseformer cannot be folded"):
        fold(config, dict(tiny_model(config).named_parameters()))


def test_other_toolkits_refuse_them_by_name(mixing):
    part = mixing["mixing"]
    assert part.not_in("CTranslate2") == f"CTranslate2 has no --mixing {part.name}"


@pytest.mark.parametrize(("flags", "why"), [
    ({"mixing": "attention-residuals"}, "Add --encoder-normalize-before"),
    ({"mixing": "attention-residuals", "encoder-normalize-before": True, "init-type": "rezero_postln"},
     "--init-type rezero_postln scales"),
    ({"mixing": "attention-residuals", "encoder-normalize-before": True, "attnres-blocks": -1}, "--attnres-blocks is -1"),
    ({"mixing": "attention-residuals", "encoder-normalize-before": True, "attnres-blocks": 2,
      "attnres-encoder-blocks": (2, 1)}, "must not fall"),
    ({"mixing": "denseformer", "dwa-dilation": 0}, "--dwa-dilation is 0"),
    ({"mixing": "value-residual", "value-residual-share": 1.5}, "--value-residual-share is 1.5"),
    ({"mixing": "lime", "lime-spread": -1.0}, "--lime-spread is -1.0"),
    ({"mixing-stacks": "encoder"}, "--mixing-stacks encoder has no effect without --mixing"),
])
def test_what_makes_no_sense_is_refused(flags, why):
    with pytest.raises(ConfigError, match=why):
        build(ModelConfig, flags)


def test_attention_residuals_refuse_a_post_norm_stack():
    config = tiny_config(is_pre_norm=True, mixing=AttendOverDepth())
    half = replace(config, decoder=replace(config.decoder, is_pre_norm=False))
    with pytest.raises(ConfigError, match=r"the decoder is Post-LN\. Add --decoder-normalize-before, or"):
        fresh(half)
    fresh(replace(half, mixing_stacks="encoder"))


def test_masked_models_have_them_too(mixing):
    from lamina.config.presets import roberta_base

    base = roberta_base()
    small = replace(base.encoder, num_layers=3, model_dim=16, ffn_dim=32, num_heads=2,
                    is_pre_norm=mixing.get("is_pre_norm", False))
    config = replace(base, encoder=small, mixing=mixing["mixing"])
    torch.manual_seed(0)
    model = build_masked_model(config, VOCABULARY_SIZE).eval()
    source, _ = tiny_pair()
    padded = F.pad(source, (0, 3), value=1)
    torch.testing.assert_close(model.logits(padded)[:, :7], model.logits(source), rtol=1e-4, atol=1e-4)
