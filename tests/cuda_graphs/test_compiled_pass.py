"""Passes whose layers are compiled; test_ranks.py has them on sharded weights, and tests/gpu with real kernels."""

import re

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

import lamina.cuda_graphs.compiled_pass as compiled_pass
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.cuda_graphs.compiled_pass import CompiledPasses
from lamina.cuda_graphs.static_batches import SIGHTINGS
from lamina.nn.compiling import STRICT
from lamina.parts.update_rules import Sgd
from lamina.training.update import Updater
from tiny import batch_of, tiny_model


class Compiler:
    """Counts what it is given to compile, and what of that runs; fails where it is told to."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.num_run = 0

    def __call__(self, function):
        def run(*arguments):
            self.num_run += 1
            if self.num_run == self.fails_at:
                raise TorchDynamoException("no compiler for this\nand a long report")
            return function(*arguments)

        return run


def new_updater(monkeypatch, compiler, notes):
    monkeypatch.setattr(compiled_pass, "compiled", compiler)
    updater = Updater(tiny_model(), OptimizationConfig(optimizer=Sgd(), clip_norm=0.0), PrecisionConfig())
    updater._compiled = CompiledPasses(updater.model, updater.forward_backward, notes.append, lambda seconds: None)
    return updater


def weights_after(updater, sizes):
    for number, size in enumerate(sizes):
        updater.update([batch_of(slice(0, size))], 0.1, seed=number)
    return updater.weights.master


def expected_after(sizes):
    return weights_after(Updater(tiny_model(), OptimizationConfig(optimizer=Sgd(), clip_norm=0.0), PrecisionConfig()), sizes)


def test_shapes_that_come_again_are_compiled_and_others_are_not(monkeypatch):
    compiler, notes = Compiler(), []
    updater = new_updater(monkeypatch, compiler, notes)
    sizes = [8] * (SIGHTINGS - 1) + [2]
    weights_after(updater, sizes)
    assert (compiler.num_run, notes) == (0, [])
    again = [8, 8, 4]
    found = weights_after(updater, again)
    num_parts = 2 + 2 + 2  # layers of the encoder, of the decoder, and embeddings
    assert compiler.num_run == 2 * num_parts
    assert [note.split(" layers")[0] for note in notes] == ["compiling", "compiled"]
    updates = Updater(tiny_model(), OptimizationConfig(optimizer=Sgd(), clip_norm=0.0), PrecisionConfig())
    weights_after(updates, sizes)
    torch.testing.assert_close(found, weights_after(updates, again), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_where_the_compiler_fails_a_pass_continues_eagerly(monkeypatch, fails_at):
    """Also in its middle: other ranks may wait for what this one sends."""
    monkeypatch.delenv(STRICT, raising=False)
    compiler, notes = Compiler(fails_at), []
    updater = new_updater(monkeypatch, compiler, notes)
    sizes = [8] * (SIGHTINGS + 2)
    torch.testing.assert_close(weights_after(updater, sizes), expected_after(sizes), rtol=1e-5, atol=1e-6)
    assert compiler.num_run > fails_at  # what is of another kind
    kind = {1: "InputEmbedding", 2: "EncoderLayer"}[fails_at]
    place = r"\(TorchDynamoException in run, test_compiled_pass.py:\d+\)"
    assert re.fullmatch(f"--compile is off for {kind}, since it failed: no compiler for this {place}", notes[1])
    assert [note.split(" in ")[0] for note in notes[2:]] == ["compiled layers for batches of this shape,"]


def test_in_strict_mode_that_is_an_error(monkeypatch):
    monkeypatch.setenv(STRICT, "1")
    updater = new_updater(monkeypatch, Compiler(1), [])
    with pytest.raises(TorchDynamoException, match="no compiler for this"):
        weights_after(updater, [8] * SIGHTINGS)
