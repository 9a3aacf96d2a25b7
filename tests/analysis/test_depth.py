"""What `lamina analyze depth` measures."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lamina.analysis.depth import (
    at_depth,
    gradient_norms,
    kinds_to_compare,
    layer_dependency,
    output_change,
    output_change_by_depth,
    sums_of,
    variances,
)
from lamina.config.model import EmbeddingConfig, ModelConfig, StackConfig
from lamina.models.build import build_model
from lamina.parts.criteria import CrossEntropy
from lamina.parts.encoder_fusion import LayerWiseFusion
from lamina.parts.residuals import Admin, AdminClosedForm, DeepNet, DefaultInit, ReZeroInit, ReZeroPostNorm
from lamina.parts.surface_fusion import AttendedFusion
from lamina.registry import register
from lamina.tasks.kinds import LanguageModelingKind, TranslationKind
from lamina.training.loss import batch_loss
from tiny import VOCABULARY_SIZE, tiny_config, tiny_model

PAIRS, TEXT = TranslationKind(), LanguageModelingKind()
BATCH = PAIRS.made_up_batch((VOCABULARY_SIZE,) * 2, 6, 10, seed=0)


def fresh(*, ffn_init=None, **changes):
    torch.manual_seed(0)
    return build_model(replace(tiny_config(**changes), ffn_init=ffn_init), VOCABULARY_SIZE, VOCABULARY_SIZE).eval()


# -- sums and dependency


@pytest.mark.parametrize("changes", [{}, {"is_pre_norm": True}, {"init": Admin()}, {"init": DeepNet()}, {"init": ReZeroInit()},
                                     {"init": ReZeroPostNorm(), "is_pre_norm": True}])
def test_sums_are_what_the_model_adds_up(changes):
    """Shaken weights: the sum of one sub-layer, normalised and with the norm's bias, is the shortcut of the next."""
    sums = sums_of(model := tiny_model(num_layers=2, **changes), BATCH)
    assert {name: len(own) for name, own in sums.items()} == {"encoder": 4, "decoder": 6}
    for own in sums.values():
        for one, following in pairwise(own):
            torch.testing.assert_close(following.stream, one.output)
            bias = 0.0 if one.norm is None else one.norm.bias
            torch.testing.assert_close(one.normalised(one.total) + bias, one.output)
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())


def test_padding_is_left_out():
    padded = torch.nn.functional.pad(BATCH.source, (0, 3), value=1)
    model = tiny_model()
    one, other = sums_of(model, BATCH), sums_of(model, replace(BATCH, source=padded))
    torch.testing.assert_close(other["encoder"][-1].branch, one["encoder"][-1].branch, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", [DefaultInit(), Admin(), DeepNet(), ReZeroPostNorm()])
def test_dependency_shares_sum_to_one(init):
    for own in sums_of(tiny_model(num_layers=3, init=init), BATCH).values():
        shares = layer_dependency(own)
        assert shares.shape == (len(own), len(own) + 1)
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(len(own)))
        assert not shares.triu(2).any()  # nothing depends on what comes later


def test_dependency_of_pre_norm_is_the_branches_own_variance():
    """Nothing rescales the stream of Pre-LN: Admin §4.1, eq. 2."""
    (own, _) = sums_of(tiny_model(num_layers=2, is_pre_norm=True), BATCH).values()
    parts = torch.stack([own[0].shortcut.var(correction=0), *(one.branch.var(correction=0) for one in own)])
    torch.testing.assert_close(layer_dependency(own)[-1], parts / parts.sum())


def test_post_norm_depends_on_the_newest_branches_and_closed_form_admin_does_not():
    own_share = {}
    for init in (DefaultInit(), AdminClosedForm()):
        # The start of the paper's code. Branches that begin as small as those of torch depend on nothing much.
        shares = layer_dependency(sums_of(fresh(num_layers=12, init=init, ffn_init="xavier"), BATCH)["encoder"])
        own_share[type(init)] = shares[-1, -3:].sum().item()
    assert own_share[DefaultInit] > 0.4
    assert own_share[AdminClosedForm] < 0.25


def test_variances():
    (encoder, _) = map(variances, sums_of(fresh(), BATCH).values())
    assert encoder["output"] == pytest.approx([1.0] * 4, rel=1e-3)
    assert encoder["shortcut"][1:] == pytest.approx([1.0] * 3, rel=1e-3)
    assert all(0 < value < 1 for value in encoder["branch"])


# -- gradients


def test_gradient_norms_are_those_of_the_mean_loss():
    model = tiny_model(num_layers=2)
    found = gradient_norms(model, BATCH)
    assert all(weight.grad is None for weight in model.parameters())
    (batch_loss(model, BATCH, CrossEntropy()).loss / BATCH.num_target_tokens).backward()
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for layer, norm in zip(stack.layers, found[name]["weights"], strict=True):
            assert norm == pytest.approx(math.sqrt(sum(weight.grad.square().sum().item() for weight in layer.parameters())))
        assert len(found[name]["output"]) == 2
        assert min(found[name]["output"]) > 0


# -- output change


def test_only_weight_matrices_move_and_they_move_back():
    model = tiny_model(init=Admin())
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    seen = []
    hook = model.encoder.register_forward_pre_hook(
        lambda *_: seen.append({name: weight.clone() for name, weight in model.encoder.named_parameters()}))
    assert output_change(model, model.encoder, BATCH, step=1e-3) > 0
    hook.remove()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    for name, weight in seen[0].items():
        moved = (seen[1][name] - weight).abs()
        wanted = torch.full_like(moved, 1e-3 if weight.dim() == 2 else 0.0)
        torch.testing.assert_close(moved, wanted, rtol=1e-3, atol=0)
    assert output_change(model, model.encoder, BATCH, step=1e-12) == 0.0


def test_padding_does_not_count_in_the_change():
    model = tiny_model()
    padded = replace(BATCH, source=torch.nn.functional.pad(BATCH.source, (0, 5), value=1))
    plain, found = (output_change(model, model.encoder, batch, step=1e-2) for batch in (BATCH, padded))
    assert found == pytest.approx(plain, rel=1e-4)


def test_output_change_grows_with_depth_in_post_norm_and_with_its_logarithm_in_admin():
    """The published shape, at width 64: from 20 to 200 sub-layers, Post-LN's change grows tenfold or more, Admin's about as
    ln 200 / ln 20. Single models scatter, so six of each are averaged."""
    stack = StackConfig(model_dim=64, ffn_dim=64, num_heads=8)
    config = ModelConfig(encoder=stack, decoder=stack, embedding=EmbeddingConfig(max_source_positions=32,
                                                                                 max_target_positions=32))
    batch = PAIRS.made_up_batch((100, 100), 4, 16, seed=0)
    changes = output_change_by_depth(PAIRS, config, (100, 100), batch, (20, 200), repeats=6)
    growth = {name: deep / shallow for name, (shallow, deep) in changes.items()}
    assert growth["Post-LN"] > 3 * growth["Admin"]
    assert growth["Post-LN"] > 3 * growth["Pre-LN"]
    assert growth["Admin"] < 4


def test_a_configuration_at_another_depth():
    config = tiny_config(num_layers=3, fusion=LayerWiseFusion(), surface=AttendedFusion(layer=2), dropout_p=0.1)
    deep = at_depth(PAIRS, config, 40, False, Admin())
    assert (deep.encoder.num_layers, deep.decoder.num_layers, deep.dropout.dropout_p) == (20, 1, 0.0)
    assert at_depth(TEXT, tiny_config(), 40, True, DefaultInit()).decoder.num_layers == 20
    assert list(kinds_to_compare(config)) == ["Post-LN", "Pre-LN", "Admin"]
    assert kinds_to_compare(tiny_config(init=DeepNet(layers=(9, 9))))["deepnet"] == (False, DeepNet())
    assert list(kinds_to_compare(tiny_config(init=DeepNet()))) == ["Post-LN", "Pre-LN", "Admin", "deepnet"]


# -- samples


@pytest.mark.parametrize("task", list(register.task))
def test_made_up_batches_run(task):
    config = replace(tiny_config(share_all=False), embedding=replace(tiny_config(share_all=False).embedding, max_positions=64))
    kind = register.task[task]()
    sizes = kind.vocab_sizes(VOCABULARY_SIZE)
    model, batch = kind.build_model(config, sizes).eval(), kind.made_up_batch(sizes, 3, 9, seed=0)
    sums = batch_loss(model, batch, CrossEntropy())
    assert sums.loss.isfinite()
    assert set(gradient_norms(model, batch)) == set(sums_of(model, batch)) == set(kind.stacks)
