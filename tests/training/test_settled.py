"""What a run takes for options that were left out."""

from pathlib import Path

import pytest

from lamina.checkpoint.format import Checkpoint
from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.training.restore import StartingPoint
from lamina.training.settled import settled


def config_of(**given):
    return resolve(TrainConfig, {"data": "folder", "max-tokens": 64, **{name.replace("_", "-"): value
                                                                       for name, value in given.items()}})


def start_of(is_resumed=True, **config):
    stored = {name.replace("_", "-"): value for name, value in config.items()}
    return StartingPoint(Path("old.pt"), Checkpoint(stored, (), (), (), {}), is_resumed)


def settle(config, start=None, is_packed=False):
    notes = []
    found = settled(config, start, notes.append, was_packed=is_packed)
    return (found.batches.order, found.model.ffn_init), notes


def test_a_new_run_takes_todays():
    assert settle(config_of()) == (("mixed", "torch"), [])
    assert settle(config_of(batch_order="length", ffn_init="xavier")) == (("length", "xavier"), [])
    assert settle(config_of(init_type="deepnet")) == (("mixed", None), [])
    assert settle(config_of(task="masked_lm")) == (("mixed", None), [])


@pytest.mark.parametrize(("is_packed", "order"), [(False, "length"), (True, "mixed")])
def test_a_checkpoint_of_the_time_before_keeps_what_there_was(is_packed, order):
    assert settle(config_of(), start_of(), is_packed) == ((order, "xavier"), [])


def test_a_resumed_run_keeps_what_its_checkpoint_says():
    start = start_of(batch_order="length", ffn_init="torch")
    assert settle(config_of(), start) == (("length", "torch"), [])
    assert settle(config_of(batch_order="mixed"), start) == (("mixed", "torch"), [])


def test_weights_that_are_there_begin_no_other_way():
    (_, began), (note,) = settle(config_of(ffn_init="torch"), start_of(ffn_init="xavier"))
    assert began == "xavier"
    assert note == "--ffn-init torch has no effect: the weights are those of old.pt"
    # A run that only takes weights is a new one in all that comes after.
    assert settle(config_of(), start_of(is_resumed=False, batch_order="length", ffn_init="xavier")) == (("mixed", "xavier"), [])
