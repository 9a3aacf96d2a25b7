"""Frozen weights: nothing moves them, nothing is kept for them, and the others move as they would."""

import re

import pytest
import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.distributed.weights import FlatWeights
from lamina.errors import ConfigError
from lamina.nn.stack import ActiveLayers
from lamina.parts.muon import Muon
from lamina.parts.update_rules import Sgd
from lamina.training.freezing import freeze_
from lamina.training.optimizers import build_optimizer
from lamina.training.update import Updater
from tiny import TINY_FLAGS, batch_of, make_data, tiny_model

SGD = OptimizationConfig(optimizer=Sgd(), lr=(0.1,), clip_norm=0.0)
CHOICES = {"nothing": (),
           "the bottom": ("source_embedding", "encoder.layers.0"), "the encoder": ("source_embedding", "encoder"),
           "one layer": ("encoder.layers.1",), "all but the top": ("source_embedding", "encoder", "decoder.layers.0"),
           "biases": ("*.bias",), "the table": ("head.table",)}


def frozen_model(patterns, **changes):
    model = tiny_model(**changes)
    freeze_(model, patterns, lambda note: None)
    return model.train()


# -- names

def test_a_name_freezes_a_weight_or_all_below_it_and_shared_ones_are_told():
    model, said = tiny_model(), []
    freeze_(model, ("encoder.layers.0", "target_embedding.table.weight", "decoder.layers.*.attention.in_proj.*"), said.append)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert "encoder.layers.0.attn_residual.norm.weight" in frozen
    assert "source_embedding.table.weight" in frozen
    assert {name for name in frozen if name.startswith("decoder")} == {
        f"decoder.layers.{number}.attention.in_proj.{kind}" for number in range(2) for kind in ("weight", "bias")}
    assert said[0].startswith(f"frozen: {len(frozen)} of {len(list(model.parameters()))} weights, ")
    assert said[1] == ("target_embedding.table.weight is shared: head.table.weight and source_embedding.table.weight are "
                       "frozen with it")


@pytest.mark.parametrize(("patterns", "message"), [
    (("encodr.layers.0",), r"--freeze encodr.layers.0 names none of the model's weights. Did you mean encoder.layers.0"),
    (("zzz*",), "They begin with decoder, encoder, head, source_embedding, target_embedding"),
    (("*",), "leaves nothing to train")])
def test_patterns_that_make_no_sense_are_refused(patterns, message):
    with pytest.raises(ConfigError, match=message):
        freeze_(tiny_model(), patterns, lambda note: None)


# -- updates

@pytest.mark.parametrize("choice", [choice for choice in CHOICES if CHOICES[choice]])
def test_an_update_moves_the_others_as_if_nothing_were_frozen(choice):
    whole, part = tiny_model().train(), frozen_model(CHOICES[choice])
    before = {name: value.detach().clone() for name, value in part.named_parameters()}
    is_frozen = {name: not value.requires_grad for name, value in part.named_parameters()}
    for model in (whole, part):
        updater = Updater(model, SGD, PrecisionConfig())
        updater.update([batch_of(slice(0, 4)), batch_of(slice(4, 8))], 0.1, seed=1)
    assert updater.weights.master.numel() < FlatWeights(tiny_model()).master.numel()
    moved = dict(whole.named_parameters())
    found = updater.weights.state_dict()
    assert list(found) == list(before)
    for name, value in part.named_parameters():
        expected = before[name] if is_frozen[name] else moved[name]
        torch.testing.assert_close(value, expected, rtol=0, atol=0 if is_frozen[name] else 1e-6, msg=name)
        assert torch.equal(found[name], value)


def test_what_computes_in_half_precision_is_kept_as_it_was():
    model = frozen_model(("encoder",))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    weights = FlatWeights(model, torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    found = weights.state_dict()
    assert all(torch.equal(found[name], value) for name, value in before.items())


def test_muon_moves_its_own_of_what_is_left():
    model = frozen_model(("encoder", "*.bias"))
    weights = FlatWeights(model)
    optimizer = build_optimizer(Muon(), weights.master, weights)
    kinds = {number: weights.described[number].kind for group in optimizer.groups for number in group.numbers}
    assert len(kinds) == len(weights.names) == sum(parameter.requires_grad for parameter in model.parameters())
    before = weights.state_dict()["encoder.layers.0.ffn.fc1.weight"].clone()
    master = weights.master.clone()
    optimizer.step_(torch.randn_like(weights.master), 0.1)
    assert torch.equal(weights.state_dict()["encoder.layers.0.ffn.fc1.weight"], before)
    assert not torch.equal(weights.master, master)


def test_an_update_that_runs_no_trained_layer_moves_nothing():
    model = frozen_model(("source_embedding", "encoder", "decoder.layers.0"))
    updater = Updater(model, SGD, PrecisionConfig())
    before = updater.weights.master.clone()
    updater.update([batch_of(slice(0, 4))], 0.1, seed=1, draws=[ActiveLayers(None, (True, False))])
    assert torch.equal(updater.weights.master, before)


# -- by command

@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def train(data, folder, *words):
    return main(["train", str(data), *TINY_FLAGS, "--save-dir", str(folder), "--cpu", "--no-epoch-checkpoints", *words])


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_training_resumes_with_frozen_weights(data, tmp_path, capsys, optimizer):
    words = ("--freeze", "encoder", "--freeze", "*.norm.*,decoder.layers.0.ffn", "--optimizer", optimizer)
    assert train(data, tmp_path / "base", "--max-update", "2") == 0
    begin = ("--finetune-from-model", str(tmp_path / "base" / "checkpoint_last.pt"))
    assert train(data, tmp_path / "one", *begin, *words, "--max-update", "6") == 0
    said = capsys.readouterr().out
    frozen, everything = (int(number.replace(",", "")) for number in re.search(r"weights, (\S+) of (\S+) param", said).groups())
    assert f"num. model params: {everything} (num. trained: {everything - frozen})" in said
    assert train(data, tmp_path / "two", *begin, *words, "--max-update", "3") == 0
    assert train(data, tmp_path / "two", *begin, *words, "--max-update", "6") == 0
    base, one, two = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("base", "one", "two"))
    for name, weight in one.weights.items():
        assert torch.equal(weight, two.weights[name]), name
        is_frozen = name.startswith(("encoder", "decoder.layers.0.ffn.")) or ".norm." in name
        assert torch.equal(weight, base.weights[name]) == is_frozen, name
        assert any(name in own for own in one.training["optimizer"].values() if isinstance(own, dict)) != is_frozen
    assert one.config["freeze"] == ["encoder", "*.norm.*", "decoder.layers.0.ffn"]
    # Thawed, what was frozen has no state yet.
    capsys.readouterr()
    assert train(data, tmp_path / "two", "--optimizer", optimizer, "--max-update", "8") == 0
    assert "the optimizer starts from scratch for decoder.layers.0.attn_residual.norm.bias, " in capsys.readouterr().out
    assert not torch.equal(load_checkpoint(tmp_path / "two" / "checkpoint_last.pt").weights["encoder.layers.0.ffn.fc1.weight"],
                           base.weights["encoder.layers.0.ffn.fc1.weight"])


def test_a_mistaken_name_is_one_line(data, tmp_path, capsys):
    assert train(data, tmp_path / "none", "--freeze", "encoder.layer.0", "--max-update", "1") == 2
    assert "Did you mean encoder.layers.0" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_info_lists_the_names(data, tmp_path, capsys):
    assert train(data, tmp_path, "--max-update", "1") == 0
    capsys.readouterr()
    assert main(["info", str(tmp_path / "checkpoint_last.pt"), "--weights"]) == 0
    assert "encoder.layers.0.attention.in_proj.weight  48 x 16\n" in capsys.readouterr().out

