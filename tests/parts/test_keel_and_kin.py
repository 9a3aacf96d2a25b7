"""Keel, B2T and LayerNorm scaling: what they compute, and what becomes of it in a pruned, folded or analysed model."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lamina.analysis.depth import layer_dependency, sums_of
from lamina.checkpoint.folding import fold
from lamina.checkpoint.format import load_weights_
from lamina.cli import main
from lamina.config.model import ModelConfig
from lamina.errors import CheckpointError, ConfigError
from lamina.fields import build, flatten
from lamina.models.build import build_model
from lamina.nn.stack import ActiveLayers
from lamina.parts.bottom_to_top import BottomToTop
from lamina.parts.contracts import LayerPlace
from lamina.parts.keel import Keel
from lamina.parts.layernorm_scaling import LayerNormScaling
from lamina.parts.residuals import DefaultInit
from lamina.plug_ins import restored
from lamina.pruning.cut import Keep, prune
from lamina.tasks.kinds import TranslationKind
from tiny import FUSIONS, TINY_FLAGS, VOCABULARY_SIZE, make_data, tiny_config, tiny_model, tiny_pair

PARTS = {"keel": {"init": Keel()}, "b2t": {"init": BottomToTop()},
         "layernorm-scaling": {"init": LayerNormScaling(), "is_pre_norm": True}}
BATCH = TranslationKind().made_up_batch((VOCABULARY_SIZE,) * 2, 6, 10, seed=0)
SOURCES = Path(__file__).parents[2] / "src" / "lamina" / "parts"


@pytest.fixture(params=PARTS.values(), ids=PARTS.keys())
def part(request):
    return request.param


def place(**changes):
    return replace(LayerPlace(stack="encoder", index=0, num_layers=4, num_sub_layers=2, dim=8, is_pre_norm=False, dropout_p=0.0,
                              trained_depths=(4, 3)), **changes)


def shaken(modules):
    torch.manual_seed(0)
    for module in modules:
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
    return modules


X, LAYER_INPUT = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
BRANCH = torch.nn.Linear(8, 8)


def test_keel_is_its_formula():
    for module in shaken(Keel().build(place())):
        torch.testing.assert_close(module(X, BRANCH, LAYER_INPUT), module.norm(8 * X + BRANCH(module.inner(X))))
    (first, *_) = Keel().build(place(stack="decoder", num_sub_layers=3))
    assert first.add.alpha == 9


def test_b2t_brings_the_layers_input_back_ahead_of_its_last_norm_alone():
    *lower, last = shaken(BottomToTop().build(place(num_sub_layers=3)))
    for module in lower:
        torch.testing.assert_close(module(X, BRANCH, LAYER_INPUT), module.norm(X + BRANCH(X)))
    torch.testing.assert_close(last(X, BRANCH, LAYER_INPUT), last.norm(X + BRANCH(X) + LAYER_INPUT))


def test_layernorm_scaling_is_its_formula():
    for index in (0, 3):
        for module in shaken(LayerNormScaling().build(place(index=index, is_pre_norm=True))):
            plain = torch.nn.functional.layer_norm(X, (8,), module.norm.weight, module.norm.bias)
            torch.testing.assert_close(module(X, BRANCH, LAYER_INPUT), X + BRANCH(plain / (index + 1) ** 0.5))


def test_the_first_layer_of_layernorm_scaling_is_plain_pre_norm():
    scaled, plain = (tiny_model(num_layers=1, is_pre_norm=True, init=init) for init in (LayerNormScaling(), DefaultInit()))
    torch.testing.assert_close(scaled.log_probs(*tiny_pair()), plain.log_probs(*tiny_pair()), rtol=0, atol=0)


@pytest.mark.parametrize("fusion", [{}, FUSIONS["both"]], ids=["plain", "both fusions"])
def test_stepwise_decoding_matches_full_forward(part, fusion):
    model = tiny_model(num_layers=3, **part, **fusion)
    source, target = tiny_pair()
    state = model.start(source, target.size(1))
    steps = [model.step(target[:, position], state) for position in range(target.size(1))]
    # float32 with another order of sums on each path
    torch.testing.assert_close(torch.stack(steps, dim=1), model.log_probs(source, target), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fusion", [{}, FUSIONS["both"]], ids=["plain", "both fusions"])
def test_a_pruned_model_computes_what_the_whole_one_does_without_those_layers(part, fusion):
    config = tiny_config(num_layers=4, **part, **fusion)
    whole = tiny_model(config)
    once, weights = prune(config, dict(whole.named_parameters()), Keep(encoder=(1, 2, 3), decoder=(0, 2, 3)))
    twice, weights = prune(once, weights, Keep(encoder=(0, 2), decoder=(1, 2)))
    assert build(ModelConfig, flatten(twice)) == twice
    small = build_model(twice, VOCABULARY_SIZE, VOCABULARY_SIZE).eval()
    load_weights_(small, weights)
    active = ActiveLayers(encoder=(False, True, False, True), decoder=(False, False, True, True))
    expected = whole.log_probs(*tiny_pair(), active=active)
    torch.testing.assert_close(small.log_probs(*tiny_pair()), expected, rtol=1e-5, atol=1e-5)


def test_layernorm_scaling_folds_into_plain_pre_norm():
    config = tiny_config(num_layers=3, is_pre_norm=True, init=LayerNormScaling(), **FUSIONS["both"])
    model = tiny_model(config)
    plain, weights = fold(config, dict(model.named_parameters()))
    folded = build_model(plain, VOCABULARY_SIZE, VOCABULARY_SIZE).eval()
    load_weights_(folded, weights)
    assert plain.init == DefaultInit()
    torch.testing.assert_close(folded.log_probs(*tiny_pair()), model.log_probs(*tiny_pair()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "why"), [("keel", "the norm inside its branches"), ("b2t", "do not add their input again")])
def test_the_others_are_not_folded(name, why):
    config = tiny_config(**PARTS[name])
    with pytest.raises(CheckpointError, match=f"--init-type {name} cannot be folded: .*{why}"):
        fold(config, dict(tiny_model(config).named_parameters()))


def test_other_toolkits_refuse_them_by_name(part):
    assert re.search(f"--init-type {part['init'].name}", part["init"].not_in("CTranslate2"))


def test_their_sums_can_be_looked_into(part):
    for own in sums_of(tiny_model(num_layers=3, **part), BATCH).values():
        for number, (one, following) in enumerate(pairwise(own), start=1):
            again = following.returns_input
            stream = following.stream if not again else following.stream - own[number + 1 - again].stream
            torch.testing.assert_close(stream, one.output, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer_dependency(own).sum(dim=1), torch.ones(len(own)))


def test_the_dependency_of_b2t_is_that_of_its_sums():
    """But for the norms' biases, the parts of the last sum add up to it."""
    (own, _) = sums_of(tiny_model(num_layers=1, init=BottomToTop()), BATCH).values()
    first, last = own
    parts = [last.normalised(first.normalised(first.stream) + first.stream), last.normalised(first.normalised(first.branch)),
             last.normalised(last.branch)]
    spreads = torch.stack([part.var(correction=0) for part in parts])
    torch.testing.assert_close(layer_dependency(own)[1], spreads / spreads.sum())


@pytest.mark.parametrize(("flags", "why"), [
    ({"init-type": "keel", "encoder-normalize-before": True}, "--init-type keel normalises.*--no-encoder-normalize-before"),
    ({"init-type": "b2t", "decoder-normalize-before": True}, "--init-type b2t leads.*--no-decoder-normalize-before"),
    ({"init-type": "layernorm-scaling"}, "scales the norms of Pre-LN. Add --encoder-normalize-before"),
    ({"init-type": "keel", "keel-layers": (3,)}, "--keel-layers needs two numbers"),
    ({"init-type": "layernorm-scaling", "encoder-normalize-before": True, "lns-encoder-layers": (0,)}, "counted from 1"),
])
def test_what_makes_no_sense_is_refused(flags, why):
    with pytest.raises(ConfigError, match=why):
        build(ModelConfig, flags)


@pytest.mark.parametrize("changes", [{"encoder": (1, 2, 3)}, {"is_pre_norm": False}])
def test_layernorm_scaling_refuses_a_stack_it_does_not_fit(changes):
    part = LayerNormScaling(encoder_layers=changes.get("encoder", ()))
    with pytest.raises(ConfigError, match=r"--lns-encoder-layers names 3|the encoder is Post-LN"):
        part.build(place(is_pre_norm=changes.get("is_pre_norm", True)))


@pytest.mark.parametrize("file", ["keel", "bottom_to_top", "layernorm_scaling"])
def test_the_same_file_works_from_outside(file, tmp_path):
    """One file is all there is to it: under another name it comes in through --user-dir."""
    text = (SOURCES / f"{file}.py").read_text(encoding="utf-8")
    text = re.sub(r'@register.residual\("([\w-]+)"\)', r'@register.residual("my-\1")', text)
    (tmp_path / "own.py").write_text(text.replace('name="', 'name="my-'), encoding="utf-8")
    (name,) = re.findall(r'residual\("([\w-]+)"\)', text)
    norm = [f"--{side}-normalize-before" for side in ("encoder", "decoder")] if "layernorm" in name else []
    with restored():
        assert main(["train", str(make_data(tmp_path)), *TINY_FLAGS, *norm, "--init-type", name, "--user-dir",
                     str(tmp_path / "own.py"), "--max-update", "1", "--save-dir", str(tmp_path / "ck"), "--cpu"]) == 0
