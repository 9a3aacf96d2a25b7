"""Layers that some sentences of a batch run: the same as computing all of them and choosing."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from lamina.data.batching import TokenBatch, collate, pad_rows
from lamina.data.corpus import Example
from lamina.data.labelled_sentences import SentenceBatch
from lamina.data.layer_subsets import Draw, LayerSubsets
from lamina.data.masked_blocks import MaskedBatch
from lamina.data.packing import PackedShape, Sentences, flat, packed
from lamina.nn import stack as stack_module
from lamina.nn.compiling import parts_to_compile, replaced
from lamina.nn.layout import PackedLayout
from lamina.nn.mixing import StackMixing
from lamina.nn.stack import ActiveLayers, stacks_of
from lamina.nn.subset import put, take, take_and_norm
from lamina.packed import Places
from lamina.parts.criteria import CrossEntropy, SentenceLoss
from lamina.parts.keel import Keel
from lamina.parts.residuals import Admin, DeepNet, DefaultInit
from lamina.text.vocabulary import EOS
from lamina.training.loss import batch_loss
from tiny import FUSIONS, VOCABULARY_SIZE, tiny_language_model, tiny_masked_model, tiny_model

RATES = (0.3, 0.0, 0.6)
SHAPE = PackedShape(places=160, max_sentences=12, longest=32)
CAPACITIES = {0.3: 160, 0.6: 128}
RESIDUALS = {"post": {"init": DefaultInit()}, "pre": {"is_pre_norm": True}, "admin": {"init": Admin()},
             "deepnet": {"init": DeepNet()}, "keel": {"init": Keel()}}


def pairs(number=9, seed=0):
    random = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        sides = [np.append(random.integers(4, VOCABULARY_SIZE, random.integers(1, 14)), EOS) for _ in range(2)]
        found.append(Example(*sides))
    return found


def pair_batch(kind):
    examples = pairs()
    if kind == "padded":
        return collate(examples, range(len(examples)))
    sides = [Sentences(np.concatenate(rows), np.array([len(row) for row in rows])) for rows in zip(*examples, strict=True)]
    return flat(*sides, range(len(examples))) if kind == "flat" else packed(*sides, SHAPE, range(len(examples)))


def drawn(batch, rates=(RATES, RATES), number=0, *, is_static=False):
    return LayerSubsets(rates, seed=5).given_to(batch, 1, number, is_static=is_static, capacities=CAPACITIES)


class ReadsAll(StackMixing):
    """A mixing: each layer reads the mean of what is below it."""

    def forward(self, below, index):
        return torch.stack(below).mean(dim=0)


def of_tokens(batch, chosen, stack):
    """Of a yes or no for each sentence, one for each place."""
    chosen = torch.from_numpy(chosen)
    if not hasattr(batch, "sides"):
        return chosen[:, None, None]
    side = batch.sides.source if stack == "encoder" else batch.sides.target
    sizes = torch.diff(side.bounds[: len(chosen) + 1]).long()
    is_kept = torch.zeros(len(side.sentences), dtype=torch.bool)
    is_kept[: int(sizes.sum())] = chosen.repeat_interleave(sizes)
    return is_kept[:, None]


@contextmanager
def computing_all(model, batch):
    """Inside, layers run for all sentences, and each takes its new state or keeps its old one."""
    stacks = stacks_of(model)

    def choosing(layer, chosen):
        def forward(x, layout, *others):
            *others, _, passed = others
            return torch.where(chosen, layer._all(x, layout, *others), passed)
        return forward

    for name, stack in stacks.items():
        own = batch.draw.chosen[0 if name == "encoder" else 1]
        for layer, chosen in zip(stack.layers, own, strict=True):
            if chosen is not None:
                layer.forward = choosing(layer, of_tokens(batch, chosen, name))
    try:
        yield
    finally:
        for stack in stacks.values():
            for layer in stack.layers:
                layer.__dict__.pop("forward", None)


def loss_and_gradients(model, batch, criterion):
    model.double()
    model.zero_grad()
    sums = batch_loss(model, batch, criterion)
    sums.loss.backward()
    return [sums.loss.detach(), *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]


def assert_same(model, batch, criterion=None):
    criterion = criterion or CrossEntropy()
    assert any(not own.all() for stack in batch.draw.chosen for own in stack or () if own is not None)
    found = loss_and_gradients(model, batch, criterion)
    with computing_all(model, batch):
        expected = loss_and_gradients(model, batch, criterion)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    batch_without = type(batch)(**{**batch.__dict__, "draw": None, "drawn": None}) if not hasattr(batch, "sides") else None
    if batch_without is not None:  # a check that can fail: the draw matters
        assert not torch.allclose(found[0], loss_and_gradients(model, batch_without, criterion)[0])


@pytest.mark.parametrize("kind", ["padded", "flat", "packed"])
@pytest.mark.parametrize("fusion", FUSIONS.values(), ids=FUSIONS.keys())
def test_fusions(kind, fusion):
    assert_same(tiny_model(num_layers=3, **fusion), drawn(pair_batch(kind), is_static=kind == "packed"))


@pytest.mark.parametrize("kind", ["padded", "flat", "packed"])
@pytest.mark.parametrize("residual", RESIDUALS.values(), ids=RESIDUALS.keys())
def test_residuals(kind, residual):
    assert_same(tiny_model(num_layers=3, **residual), drawn(pair_batch(kind), is_static=kind == "packed"))


@pytest.fixture
def norm_of_a_gpu(monkeypatch):
    """Pre-LN layers take their part and normalise it at once, here in plain operations."""
    monkeypatch.setattr(stack_module, "begins_with_norm", lambda x, places, norm: places.bounds is not None)


@pytest.mark.parametrize("kind", ["flat", "packed"])
@pytest.mark.parametrize("fusion", [{}, FUSIONS["both"]], ids=["plain", "both"])
def test_a_norm_that_comes_with_taking(norm_of_a_gpu, monkeypatch, kind, fusion):
    begun = []
    monkeypatch.setattr(stack_module, "take_and_norm", lambda *of: begun.append(of) or take_and_norm(*of))
    assert_same(tiny_model(num_layers=3, is_pre_norm=True, **fusion), drawn(pair_batch(kind), is_static=kind == "packed"))
    assert len(begun) == 4  # of each stack the two layers with a rate


def test_a_norm_that_comes_with_taking_in_layers_that_are_compiled_or_computed_again(norm_of_a_gpu, monkeypatch):
    # A CPU's attention over packed rows remembers its blocks, which torch 2.11 does not compile, and a GPU does not use.
    monkeypatch.setattr(PackedLayout, "_blocks_of", torch.compiler.disable(PackedLayout._blocks_of))
    model = tiny_model(num_layers=3, is_pre_norm=True, dropout_p=0.1).train()
    batch = drawn(pair_batch("packed"), is_static=True)
    found = []
    for recomputes, compiles in ((False, False), (True, False), (False, True)):
        for stack in stacks_of(model).values():
            stack.recomputes = recomputes
        forwards = {part: torch.compile(part.forward, backend="aot_eager") for part in parts_to_compile(model) if compiles}
        torch.manual_seed(1)
        with replaced(forwards):
            found.append(loss_and_gradients(model, batch, CrossEntropy()))
    for other in found[1:]:
        for one, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("kind", ["padded", "flat", "packed"])
def test_static_shapes_and_shapes_of_a_draw_s_own_compute_the_same(kind):
    model = tiny_model(num_layers=3)
    for number in range(6):
        one, other = (drawn(pair_batch(kind), number=number, is_static=is_static) for is_static in (False, True))
        if kind != "flat":
            assert one.draw.shape != other.draw.shape
        for found, expected in zip(loss_and_gradients(model, one, CrossEntropy()),
                                   loss_and_gradients(model, other, CrossEntropy()), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_mixings(kind):
    model = tiny_model(num_layers=3)
    model.encoder.mixing, model.decoder.mixing = ReadsAll(), ReadsAll()
    batch = drawn(pair_batch(kind), is_static=kind == "packed")
    found = loss_and_gradients(model, batch, CrossEntropy())
    for name, stack in stacks_of(model).items():
        for layer in stack.layers:
            layer.forward = lambda x, layout, *others, layer=layer: layer._all(x, layout, *(
                others[:-2] if others and others[-1] is None else others))
        chosen = batch.draw.chosen[0 if name == "encoder" else 1]
        stack.mixing.part = lambda read, places: read
        stack.mixing.note_part = lambda kept, index, output, places, chosen=chosen, name=name: kept.append(
            torch.where(of_tokens(batch, chosen[index], name), output, kept[-1]))
    expected = loss_and_gradients(model, batch, CrossEntropy())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("is_static", [False, True])
def test_language_models_masked_ones_and_classifiers(is_static):
    rows = [example.source for example in pairs()]
    tokens = torch.from_numpy(pad_rows(rows))
    text = TokenBatch(tokens, tokens.roll(-1, dims=1), int(tokens.ne(1).sum()), tuple(range(len(rows))))
    assert_same(tiny_language_model(num_layers=3), drawn(text, ((), RATES), is_static=is_static))
    places = torch.arange(0, tokens.numel(), 3)
    masked = MaskedBatch(tokens, places, tokens.flatten()[places], tuple(range(len(rows))))
    assert_same(tiny_masked_model(num_layers=3), drawn(masked, (RATES, ()), is_static=is_static))
    labelled = SentenceBatch(tokens, torch.arange(len(rows)) % 3, tuple(range(len(rows))))
    assert_same(tiny_masked_model(num_layers=3, num_classes=3), drawn(labelled, (RATES, ()), is_static=is_static),
                SentenceLoss())


@pytest.mark.parametrize("kind", ["padded", "flat", "packed"])
def test_recomputed_layers(kind):
    model, batch = tiny_model(num_layers=3, dropout_p=0.1).train(), drawn(pair_batch(kind), is_static=kind == "packed")
    found = []
    for recomputes in (False, True):
        for stack in stacks_of(model).values():
            stack.recomputes = recomputes
        torch.manual_seed(1)
        found.append(loss_and_gradients(model, batch, CrossEntropy()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_layer_that_no_sentence_runs_still_has_a_gradient_and_changes_nothing():
    for kind in ("padded", "flat", "packed"):
        model, batch = tiny_model(num_layers=3), pair_batch(kind)
        none = np.zeros(batch.num_sentences, dtype=bool)
        draw = Draw([(none, None, None), (none, None, None)])
        given = (draw.given_to(batch, CAPACITIES, (RATES, RATES)) if kind == "packed" else draw.given_to(batch))
        skipped = ActiveLayers((False, True, True), (False, True, True))
        found, expected = batch_loss(model, given, CrossEntropy()), batch_loss(model, batch, CrossEntropy(), skipped)
        torch.testing.assert_close(found.loss, expected.loss)
        found.loss.backward()
        for stack in (model.encoder, model.decoder):
            assert all(parameter.grad is not None and not parameter.grad.any() for parameter in stack.layers[0].parameters())


def test_pads_of_a_subset_take_and_give_nothing():
    x = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    places = Places(torch.tensor([1, 4, 6, 6]), torch.tensor([4, 0, 4, 4, 1, 4]), torch.tensor([1, 2, 3, 3]),
                    torch.tensor([0, 1, 2, 4]), 8)
    taken = take(x, places)
    torch.testing.assert_close(taken[0, :2], x[0, [1, 4]])
    own = torch.full_like(taken, torch.nan)
    own[:, :2] = 7.0
    own.requires_grad_()
    found = put(x, own, places)
    assert found[0, [1, 4]].eq(7.0).all()
    assert found[0, [0, 2, 3, 5]].equal(x[0, [0, 2, 3, 5]])
    found_grad, own_grad = torch.autograd.grad(found.sum(), [x, own])
    assert found_grad[0, :, 0].tolist() == [1, 0, 1, 1, 0, 1]
    assert own_grad[0, :, 0].tolist() == [1, 1, 0, 0]
    torch.autograd.gradcheck(lambda x: take(x, places)[:, :2], x)
