"""Averaging: its laws, what it keeps, what it refuses."""

import weakref
from dataclasses import replace

import pytest
import torch

import lamina.checkpoint.averaging as average
from lamina.checkpoint.averaging import BY_EPOCH, BY_UPDATE, average_checkpoints, find_checkpoints, newest_checkpoints
from lamina.checkpoint.format import Checkpoint, load_checkpoint, save_checkpoint
from lamina.checkpoint.marks import layers_as_trained
from lamina.errors import CheckpointError
from lamina.fields import flatten
from lamina.pruning.cut import Keep, prune_checkpoint
from lamina.text.subword import Whitespace, subword_to_dict
from lamina.text.vocabulary import Vocabulary
from tiny import VOCABULARY_SIZE, tiny_config, tiny_model


def new_checkpoint(seed=0, updates=0, epoch=1, word="w", **config):
    words = [f"{word}{number}" for number in range(VOCABULARY_SIZE - 4)]
    text, subword = Vocabulary(words, [1] * len(words)).to_text(), subword_to_dict(Whitespace())
    weights = {name: value.detach() for name, value in tiny_model(seed=seed).named_parameters()}
    training = {"progress": {"updates": updates, "epoch": epoch}, "scale": {},
                "optimizer": {"exp_avg": {name: torch.full_like(value, 9.0) for name, value in weights.items()}}}
    return Checkpoint(config=flatten(tiny_config()) | config, languages=("en", "xx"), dictionaries=(text, text),
                      subwords=(subword, subword), weights=weights, training=training, metrics={"loss": 1.0})


def deep_checkpoint(num_encoder, num_decoder=None):
    config = tiny_config(num_layers=num_encoder)
    config = replace(config, decoder=replace(config.decoder, num_layers=num_decoder or num_encoder))
    weights = {name: value.detach() for name, value in tiny_model(config).named_parameters()}
    return replace(new_checkpoint(), config=flatten(config), weights=weights, training={})


def save_all(folder, checkpoints):
    paths = [folder / f"{number}.pt" for number in range(len(checkpoints))]
    for path, checkpoint in zip(paths, checkpoints, strict=True):
        save_checkpoint(path, checkpoint)
    return paths


def assert_same_weights(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **({"rtol": 0, "atol": 0} | tolerance))


# -- laws

def test_the_average_of_one_is_itself(tmp_path):
    checkpoint = new_checkpoint()
    assert_same_weights(average_checkpoints(save_all(tmp_path, [checkpoint])).weights, checkpoint.weights)


@pytest.mark.parametrize("number", [2, 3, 7, 10])
def test_the_average_of_equals_is_each_of_them(tmp_path, number):
    checkpoint = new_checkpoint()
    paths = save_all(tmp_path, [checkpoint]) * number
    assert_same_weights(average_checkpoints(paths).weights, checkpoint.weights)


def test_it_is_the_mean_in_any_order(tmp_path):
    checkpoints = [new_checkpoint(seed) for seed in range(5)]
    paths = save_all(tmp_path, checkpoints)
    plain = {name: torch.stack([item.weights[name].double() for item in checkpoints]).mean(0).float()
             for name in checkpoints[0].weights}
    # float32: a rounding error for each checkpoint
    assert_same_weights(average_checkpoints(paths).weights, plain, rtol=1e-6, atol=1e-7)
    assert_same_weights(average_checkpoints(paths[::-1]).weights, plain, rtol=1e-6, atol=1e-7)


def test_half_precision_is_summed_in_single(tmp_path):
    checkpoint = new_checkpoint()
    halves = replace(checkpoint, weights={name: value.half() for name, value in checkpoint.weights.items()})
    weights = average_checkpoints(save_all(tmp_path, [halves, halves])).weights
    assert_same_weights(weights, {name: value.float() for name, value in halves.weights.items()})


# -- what it holds and reads

def test_one_at_a_time(tmp_path, monkeypatch):
    """When the next file is opened, nothing of the last one is alive but plain values."""
    loaded = []

    def load(path):
        assert not [storage for storage in loaded if storage() is not None]
        checkpoint = load_checkpoint(path)
        loaded.extend(map(weakref.ref, checkpoint.weights.values()))
        loaded.extend(map(weakref.ref, checkpoint.training["optimizer"]["exp_avg"].values()))
        return checkpoint

    monkeypatch.setattr(average, "load_checkpoint", load)
    average_checkpoints(save_all(tmp_path, [new_checkpoint(seed) for seed in range(3)]))
    assert loaded


def test_files_are_mapped(tmp_path, monkeypatch):
    """So that optimizer states stay on disk; and the setting does not outlive the call."""
    seen = []

    def load(path):
        seen.append(average.torch_files.load.mmap)
        return load_checkpoint(path)

    monkeypatch.setattr(average, "load_checkpoint", load)
    average_checkpoints(save_all(tmp_path, [new_checkpoint(), new_checkpoint()]))
    assert seen == [True, True]
    assert not average.torch_files.load.mmap


def test_all_but_the_weights_comes_from_the_newest(tmp_path):
    checkpoints = [new_checkpoint(0, updates=10), new_checkpoint(1, updates=30, dropout=0.3), new_checkpoint(2, updates=20)]
    paths = save_all(tmp_path, checkpoints)
    steps, notes = [], []
    averaged = average_checkpoints(paths, advance=steps.append, note=notes.append)
    assert averaged.config["dropout"] == 0.3
    assert averaged.dictionaries == checkpoints[0].dictionaries
    assert averaged.training == {"averaged": ["0.pt", "1.pt", "2.pt"]}
    assert averaged.metrics == {}
    assert steps == [1, 1, 1]
    assert notes == []
    save_checkpoint(tmp_path / "model.pt", averaged)
    reloaded = load_checkpoint(tmp_path / "model.pt")
    assert_same_weights(dict(reloaded.build_model().named_parameters()), averaged.weights)
    # An average may itself be averaged.
    assert_same_weights(average_checkpoints([tmp_path / "model.pt"]).weights, averaged.weights)


def test_a_later_epoch_is_newer_than_more_updates(tmp_path):
    paths = save_all(tmp_path, [new_checkpoint(updates=5, epoch=3, dropout=0.3), new_checkpoint(updates=90, epoch=2)])
    assert average_checkpoints(paths).config["dropout"] == 0.3


# -- what it refuses

def test_parameters_that_differ_are_named(tmp_path):
    whole, name = new_checkpoint(), "encoder.layers.0.ffn.fc1.weight"
    fewer = replace(whole, weights={key: value for key, value in whole.weights.items() if key != name})
    other = replace(whole, weights={**whole.weights, name: torch.zeros(3, 3)})
    paths = save_all(tmp_path, [whole, fewer, other])
    with pytest.raises(CheckpointError, match=f"0.pt has {name}, which .*1.pt lacks"):
        average_checkpoints(paths[:2])
    with pytest.raises(CheckpointError, match=f"0.pt has {name}, which .*1.pt lacks"):
        average_checkpoints(paths[1::-1])
    with pytest.raises(CheckpointError, match=rf"^{name}: another shape .* is \(3, 3\) instead of \(32, 16\)"):
        average_checkpoints(paths[::2])


def test_many_names_are_counted(tmp_path):
    whole = new_checkpoint()
    paths = save_all(tmp_path, [whole, replace(whole, weights={})])
    with pytest.raises(CheckpointError, match=f"and {len(whole.weights) - 4} more, which"):
        average_checkpoints(paths)


def test_other_texts(tmp_path):
    one, words = new_checkpoint(), new_checkpoint(word="v")
    paths = save_all(tmp_path, [one, words, replace(one, languages=("xx", "en"))])
    with pytest.raises(CheckpointError, match=r"has the source dictionary .* stand for different words"):
        average_checkpoints(paths[:2])
    with pytest.raises(CheckpointError, match=r"0.pt translates en-xx and .*2.pt xx-en"):
        average_checkpoints(paths[::2])


def test_values_that_are_not_finite(tmp_path):
    whole, name = new_checkpoint(), "decoder.layers.1.ffn.fc2.bias"
    broken = replace(whole, weights={**whole.weights, name: torch.full_like(whole.weights[name], torch.nan)})
    with pytest.raises(CheckpointError, match=f"1.pt: {name} holds values that are not finite"):
        average_checkpoints(save_all(tmp_path, [whole, broken]))


@pytest.mark.parametrize(("one", "other", "words"), [
    (Keep(encoder=(0, 2)), Keep(encoder=(1, 3)), "layers 0,2 of 4 of its encoder and .* layers 1,3 of 4"),
    (Keep(decoder=(0, 1)), None, "layers 0,1 of 4 of its decoder and .* all layers"),
])
def test_checkpoints_pruned_to_different_layers_have_no_average(tmp_path, one, other, words):
    whole, small = deep_checkpoint(4), deep_checkpoint(2 if one.encoder else 4, 2 if one.decoder else 4)
    pair = [prune_checkpoint(whole, one), small if other is None else prune_checkpoint(whole, other)]
    with pytest.raises(CheckpointError, match=f"0.pt has {words}: these are not the same layers"):
        average_checkpoints(save_all(tmp_path, pair))
    same = average_checkpoints(save_all(tmp_path, [pair[0], pair[0]]))
    assert same.config == pair[0].config


def test_layers_of_twice_pruned_checkpoints_are_those_of_the_model_as_trained(tmp_path):
    """Their latest records are equal, their layers are not."""
    whole = deep_checkpoint(4)
    twice = [prune_checkpoint(prune_checkpoint(whole, Keep(encoder=first)), Keep(encoder=(1,)))
             for first in ((0, 1, 3), (0, 2, 3), (1, 2, 3))]
    assert {small.config["encoder-layers-to-keep"] for small in twice} == {"1 of 3"}
    assert [layers_as_trained(small)["encoder"] for small in twice] == ["1 of 4", "2 of 4", "2 of 4"]
    paths = save_all(tmp_path, twice)
    with pytest.raises(CheckpointError, match=r"layers 1 of 4 of its encoder and .* layers 2 of 4"):
        average_checkpoints(paths[:2])
    assert layers_as_trained(average_checkpoints(paths[1:])) == {"encoder": "2 of 4"}


def test_a_folded_checkpoint_and_one_that_was_not_have_no_average(tmp_path):
    plain = new_checkpoint()
    folded = replace(plain, training=plain.training | {"folded": "rezero_postln"})
    with pytest.raises(CheckpointError, match=r"0.pt was not and .*1.pt was folded \(--init-type rezero_postln\)"):
        average_checkpoints(save_all(tmp_path, [plain, folded]))
    assert average_checkpoints(save_all(tmp_path, [folded, folded])).training["folded"] == "rezero_postln"


def test_marks_that_differ_are_all_kept(tmp_path):
    checkpoints = [new_checkpoint(), new_checkpoint(), new_checkpoint()]
    for checkpoint, mark in zip(checkpoints, ({"pruned": "a.pt"}, {"pruned": "b.pt", "from": "fairseq"}, {"pruned": "a.pt"}),
                                strict=True):
        checkpoint.training |= mark
    paths = save_all(tmp_path, checkpoints)
    assert average_checkpoints(paths).training == {"averaged": ["0.pt", "1.pt", "2.pt"], "pruned": "a.pt, b.pt",
                                                   "from": "fairseq"}


def test_model_options_that_differ_are_told(tmp_path):
    paths = save_all(tmp_path, [new_checkpoint(), new_checkpoint(**{"encoder-attention-heads": 4, "dropout": 0.5})])
    notes = []
    average_checkpoints(paths, note=notes.append)
    (note,) = notes
    assert "differ in encoder-attention-heads (2 and 4)" in note


def test_files_that_are_no_checkpoints(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"text")
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint"):
        average_checkpoints([tmp_path / "x.pt"])


# -- which ones

@pytest.fixture
def run_folder(tmp_path):
    for name in ("1", "2", "9", "10", "11", "_1_5", "_1_100", "_2_20", "_best", "_last", "3.pt.bak", "_1_5_6"):
        (tmp_path / f"checkpoint{name}.pt").touch()
    (tmp_path / "model.pt").touch()
    return tmp_path


def names(paths):
    return [path.name for path in paths]


def test_the_newest_by_number(run_folder):
    assert names(newest_checkpoints(run_folder, BY_EPOCH, 3)) == ["checkpoint9.pt", "checkpoint10.pt", "checkpoint11.pt"]
    assert names(newest_checkpoints(run_folder, BY_EPOCH, 2, 10)) == ["checkpoint9.pt", "checkpoint10.pt"]
    assert names(newest_checkpoints(run_folder, BY_UPDATE, 2)) == ["checkpoint_2_20.pt", "checkpoint_1_100.pt"]
    assert names(newest_checkpoints(run_folder, BY_UPDATE, 2, 99)) == ["checkpoint_1_5.pt", "checkpoint_2_20.pt"]
    assert len(find_checkpoints(run_folder, BY_EPOCH)) == 5


def test_too_few(run_folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"--num-update-checkpoints asks for 4, but .* has 3 update checkpoints: "
                                              r"checkpoint_1_5.pt, checkpoint_2_20.pt, checkpoint_1_100.pt"):
        newest_checkpoints(run_folder, BY_UPDATE, 4)
    with pytest.raises(CheckpointError, match=r"asks for 3, but .* has 2 epoch checkpoints up to epoch 8: checkpoint1.pt, "
                                              r"checkpoint2.pt\. 3 more are above --checkpoint-upper-bound"):
        newest_checkpoints(run_folder, BY_EPOCH, 3, 8)
    for path in find_checkpoints(run_folder, BY_EPOCH):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"has no epoch checkpoints\. It has 3 update checkpoints: use --num-update-"):
        newest_checkpoints(run_folder, BY_EPOCH, 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no epoch checkpoints\.$"):
        newest_checkpoints(tmp_path / "empty", BY_EPOCH, 1)
