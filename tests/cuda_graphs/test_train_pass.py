"""What captured updates rest on, as far as it can be seen without a GPU; tests/gpu/test_captured.py has the rest."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import lamina.cuda_graphs.train_pass as train_pass
from lamina.config.model import LanguageModelConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.cuda_graphs.static_batches import MAX_SHAPES, SIGHTINGS, StaticBatches, shape_of
from lamina.cuda_graphs.train_pass import COST_OF_EAGER, MISSES_TOLD, CapturedPasses, room_for
from lamina.data.batching import TokenBatch
from lamina.distributed.sharded import ShardedWeights
from lamina.distributed.weights import FlatWeights
from lamina.errors import LaminaError
from lamina.nn import cross_entropy
from lamina.nn.compiling import STRICT, compiled_parts, kind_of, parts_to_compile, replaced
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.update_rules import Sgd
from lamina.training.loss import batch_loss
from lamina.training.update import Updater
from replayed import Rerunning, sums_and_gradients, without_a_device
from tiny import VOCABULARY_SIZE, batch_of, tiny_language_model, tiny_model

SGD = OptimizationConfig(optimizer=Sgd(), lr=(0.1,), clip_norm=0.0)


@dataclass(frozen=True)
class Numbers:
    """A batch as far as its shape is concerned."""

    values: Tensor
    number: int
    recurs: bool = False


def test_a_shape_that_came_before_is_held_in_memory_that_stays():
    batches = StaticBatches()
    assert [batches.hold(Numbers(torch.zeros(3), 1)) for _ in range(SIGHTINGS - 1)] == [None] * (SIGHTINGS - 1)
    first = batches.hold(Numbers(torch.ones(3), 2))
    second = batches.hold(Numbers(torch.full((3,), 2.0), 3))
    assert first.values.data_ptr() == second.values.data_ptr()
    assert first.values.tolist() == [2.0] * 3  # overwritten: it is the same memory
    assert second.number == 3  # what the host knows is the batch's own


def test_a_shape_that_is_known_to_recur_is_held_at_once():
    given = Numbers(torch.ones(3), 1, recurs=True)
    held = StaticBatches().hold(given)
    assert held.values.tolist() == [1.0] * 3
    assert held.values.data_ptr() != given.values.data_ptr()


def test_ever_new_shapes_are_not_held_for_ever():
    batches = StaticBatches()
    held = [batches.hold(Numbers(torch.zeros(size), 1, recurs=True)) for size in range(1, MAX_SHAPES + 3)]
    assert [batch is not None for batch in held] == [True] * MAX_SHAPES + [False] * 2


def test_shapes_differ_by_size_and_type():
    shapes = [shape_of(Numbers(values, 1)) for values in (torch.zeros(3), torch.zeros(4), torch.zeros(3, dtype=torch.long))]
    assert len(set(shapes)) == 3
    assert shape_of(Numbers(torch.ones(3), 5)) == shapes[0]


def test_parts_run_other_functions_only_inside():
    model = tiny_model()
    layer = model.encoder.layers[0]
    own = layer.forward
    with replaced({layer: lambda x, *_: x * 0}):
        assert float(layer(torch.ones(1, 2, 16), None).abs().sum()) == 0.0
    assert layer.forward == own
    with pytest.raises(ZeroDivisionError), replaced({layer: None}):
        raise ZeroDivisionError
    assert layer.forward == own


def test_every_layer_and_embedding_is_compiled():
    model = tiny_model(num_layers=3)
    assert set(compiled_parts(model)) == {*model.encoder.layers, *model.decoder.layers, model.source_embedding,
                                          model.target_embedding}


@pytest.mark.parametrize(("fails", "told"), [
    (("DecoderLayer",), "--compile is off for DecoderLayer, since it failed: no code for DecoderLayer"),
    (("EncoderLayer", "DecoderLayer"), "--compile is off, since it failed: no code for EncoderLayer")])
def test_parts_that_do_not_compile_run_as_they_are_and_the_others_compiled(monkeypatch, fails, told):
    """Also if that shows only later, as of a broken result; the note names the kind and the place."""
    without_a_device(monkeypatch)
    monkeypatch.delenv(STRICT, raising=False)
    model, notes, compiled = tiny_model(), [], []
    updater = Updater(model, SGD, PrecisionConfig(), torch.bfloat16)
    monkeypatch.setattr(cross_entropy, "compiled_chunk", lambda: cross_entropy._score_chunk)
    monkeypatch.setattr(train_pass, "compiled_parts", lambda model: {
        part: compile_part(part, fails, compiled) for part in parts_to_compile(model)})
    passes = CapturedPasses(model, updater.weights, updater.forward_backward, notes.append, lambda seconds: None,
                            is_compiled=True)
    passes.recorder = Rerunning()
    batch = batch_of(slice(0, 4))
    replays = [passes.find(batch, ALL_LAYERS, updater.sums) for _ in range(SIGHTINGS)]
    compiled.clear()
    torch.testing.assert_close(*sums_and_gradients(updater, batch, replays[-1]), rtol=0.02, atol=0.02)
    assert set(compiled) == (set() if len(fails) > 1 else {"EncoderLayer", "InputEmbedding"})
    assert re.fullmatch(rf"{told} \(ValueError in run, test_train_pass.py:\d+\)", notes[1])


def compile_part(part, fails, compiled):
    forward, kind = part.forward, kind_of(part)

    def run(*arguments):
        compiled.append(kind)
        if kind in fails:
            raise ValueError(f"no code for {kind}\nand a long report")
        return forward(*arguments)

    return run


def gradients_of(weights: FlatWeights) -> Tensor:
    return torch.cat([view.flatten().float() for view in weights.views(weights.grad)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gathered_gradients_are_those_that_are_added_up_as_they_come(dtype):
    found = []
    for is_gathered in (True, False):
        model = tiny_model()
        weights = FlatWeights(model, dtype)
        if is_gathered and weights.is_half:
            weights.compute_grad.fill_(7.0)  # what lies there is replaced
        for rows in (slice(0, 4), slice(4, 8)):
            if is_gathered:
                with weights.gathering():
                    batch_loss(model, batch_of(rows), SGD.criterion).loss.backward()
            else:
                batch_loss(model, batch_of(rows), SGD.criterion).loss.backward()
                weights.collect_grad_()
        found.append(gradients_of(weights))
        # Eager passes go on as before.
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.equal(*found)


def test_a_parameter_without_a_gradient_gathers_zeros():
    model = tiny_model()
    weights = FlatWeights(model, torch.bfloat16)
    weights.compute_grad.fill_(7.0)
    with weights.gathering():
        model.head.table.weight.sum().backward()
    grads = weights.named(weights.grad)
    assert float(grads["encoder.layers.0.ffn.fc1.weight"].abs().sum()) == 0.0
    assert float(sum(grad.abs().sum() for grad in grads.values())) == model.head.table.weight.numel()


def test_one_batch_needs_no_copy_of_its_gradients():
    plain, lean = (Updater(model, SGD, PrecisionConfig(), torch.bfloat16,
                           weights=FlatWeights(model, torch.bfloat16, accumulates=accumulates))
                   for model, accumulates in ((tiny_model(), True), (tiny_model(), False)))
    assert lean.weights.grad is lean.weights.compute_grad
    for number in range(3):
        one, other = (of.update([batch_of(slice(0, 8))], 0.1, seed=number) for of in (plain, lean))
        torch.testing.assert_close(one.numbers, other.numbers, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(plain.weights.master, lean.weights.master, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError, match="gradients of one batch at most"):
        lean.update([batch_of(slice(0, 4)), batch_of(slice(4, 8))], 0.1, seed=1)


def test_what_stands_in_the_way_is_said():
    assert not FlatWeights.why_uncaptured
    assert "--fsdp" in ShardedWeights.why_uncaptured


BANDS = LanguageModelConfig(softmax_cutoff=(10, 20), softmax_factor=2.0)


def text_of(number: int, rare: float) -> TokenBatch:
    """Rows of text, with a share of rare words."""
    random = np.random.default_rng(number)
    is_rare = random.random((8, 50)) < rare
    target = np.where(is_rare, random.integers(10, VOCABULARY_SIZE, (8, 50)), random.integers(4, 10, (8, 50)))
    tokens = torch.from_numpy(random.integers(4, VOCABULARY_SIZE, (8, 50)))
    return TokenBatch(tokens, torch.from_numpy(target), target.size, tuple(range(8)), target_on_host=target)


def rare_texts(monkeypatch, rares: list[float]) -> tuple[list[bool], int]:
    """For each text whether its pass was replayed, and how often one was captured; the gradients are those of eager passes."""
    without_a_device(monkeypatch)
    model = tiny_language_model(lm=BANDS)
    updater = Updater(model, SGD, PrecisionConfig(), torch.bfloat16)
    passes = CapturedPasses(model, updater.weights, updater.forward_backward, lambda note: None, lambda seconds: None,
                            is_compiled=False)
    passes.recorder, is_replayed = Rerunning(), []
    for number, rare in enumerate(rares):
        batch = text_of(number, rare)
        replay = passes.find(batch, ALL_LAYERS, updater.sums)
        is_replayed.append(replay is not None)
        torch.testing.assert_close(*sums_and_gradients(updater, batch, replay), rtol=0.02, atol=0.02)
    return is_replayed, passes.recorder.num_captured


def test_passes_of_an_adaptive_softmax_are_captured_with_room_and_what_exceeds_it_is_eager(monkeypatch):
    rares = [0.1] * (SIGHTINGS + 1) + [0.95, 0.1]
    assert rare_texts(monkeypatch, rares) == ([False] * (SIGHTINGS - 1) + [True, True, False, True], 1)


def test_where_room_is_exceeded_again_and_again_more_is_made(monkeypatch):
    rares = [0.1] * SIGHTINGS + [0.95] * (SIGHTINGS + 2) + [0.1]
    expected = [False] * (SIGHTINGS - 1) + [True] + [False] * (SIGHTINGS - 1) + [True] * 4
    assert rare_texts(monkeypatch, rares) == (expected, 2)


def test_room_is_above_what_chance_needs():
    assert room_for((0, 40, 1000, 100_000)) == (128, 128, 1280, 125_056)
    assert room_for((40, 1000), least=(256, 384)) == (256, 1280)
    assert room_for(()) == ()


def test_whole_layers_that_are_left_out_are_eager(monkeypatch):
    model = tiny_model()
    updater = Updater(model, SGD, PrecisionConfig(), torch.bfloat16)
    passes = CapturedPasses(model, updater.weights, updater.forward_backward, lambda note: None, lambda seconds: None,
                            is_compiled=False)
    passes.recorder = Rerunning()
    assert passes.find(batch_of(slice(0, 4)), ActiveLayers((True, False), None), updater.sums) is None
    assert not passes.is_off


def test_batches_without_their_words_on_the_host_turn_capturing_off(monkeypatch):
    model, notes = tiny_language_model(lm=BANDS), []
    updater = Updater(model, SGD, PrecisionConfig(), torch.bfloat16)
    passes = CapturedPasses(model, updater.weights, updater.forward_backward, notes.append, lambda seconds: None,
                            is_compiled=False)
    batch = replace(text_of(0, 0.1), target_on_host=None)
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(LaminaError, match="target_on_host"):
        passes.find(batch, ALL_LAYERS, updater.sums)
    monkeypatch.setenv(STRICT, "0")
    assert passes.find(batch, ALL_LAYERS, updater.sums) is None
    assert passes.is_off
    assert "--cuda-graphs is off" in notes[0]


def test_batches_of_ever_new_shapes_are_told_once():
    said = []
    model = tiny_model()
    passes = CapturedPasses(model, FlatWeights(model, torch.bfloat16), lambda *_, **__: None, said.append, lambda _: None,
                            is_compiled=False)
    passes._batches.hold = lambda batch: None
    for _ in range(2 * MISSES_TOLD):
        assert passes.find(batch_of(slice(0, 4)), ALL_LAYERS, torch.zeros(2)) is None
    assert len(said) == 1
    assert "50 batches kept changing shape" in said[0]
    assert COST_OF_EAGER in said[0]


@pytest.mark.parametrize(("every", "is_told"), [(2, True), (20, False)])
def test_batches_of_other_shapes_than_those_that_are_captured_are_told_if_they_are_many(every, is_told, monkeypatch):
    without_a_device(monkeypatch)
    said, model = [], tiny_model()
    passes = CapturedPasses(model, FlatWeights(model, torch.bfloat16), lambda *_, **__: None, said.append, lambda _: None,
                            is_compiled=False)
    passes.recorder, hold = Rerunning(), passes._batches.hold
    for number in range(3 * every * MISSES_TOLD // 2):
        passes._batches.hold = hold if number % every or number < SIGHTINGS else lambda batch: None
        passes.find(batch_of(slice(0, 4)), ALL_LAYERS, torch.zeros(2))
    told = [text for text in said if "ran eagerly" in text]
    assert len(told) == is_told
    assert all(re.search(r"^5\d of \d+ batches ran eagerly: .* the one that is captured\. Small", text) for text in told)
