"""Language models on a GPU: the adaptive loss, half precision, stepwise generation."""

import numpy as np
import pytest
import torch

from lamina.config.model import LanguageModelConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import TokenBatch
from lamina.data.flat_texts import FlatTokens, TextShape, end_to_end, flat_row
from lamina.data.layer_subsets import LayerSubsets
from lamina.parts.criteria import CrossEntropy
from lamina.training.loss import batch_loss
from lamina.training.update import Updater
from tiny import VOCABULARY_SIZE, tiny_language_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BANDS = LanguageModelConfig(softmax_cutoff=(10, 20), softmax_factor=2.0, is_adaptive=True, input_cutoff=(10, 20),
                            input_factor=2.0, ties_weights=True, ties_projections=True)


def batch():
    tokens, target = tiny_pair(target_length=8)[1], tiny_pair(seed=1, target_length=8)[1]
    return TokenBatch(tokens, target, target.numel(), (0, 1, 2), target_on_host=target.numpy())


def gradients(model, device, own):
    model = model.to(device)
    model.zero_grad()
    sums = batch_loss(model, own.to(torch.device(device)), CrossEntropy())
    sums.loss.backward()
    # Copies: moving the model to another device moves its gradients along.
    return sums.loss.detach().cpu(), [parameter.grad.to("cpu", copy=True) for parameter in model.parameters()]


def test_adaptive_loss_and_gradients_equal_those_of_the_processor():
    model = tiny_language_model(lm=BANDS)
    (loss, grads), (gpu_loss, gpu_grads) = (gradients(model, device, batch()) for device in ("cpu", "cuda"))
    torch.testing.assert_close(gpu_loss, loss, rtol=1e-5, atol=0)
    for own, other in zip(gpu_grads, grads, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4)


def test_the_adaptive_loss_asks_the_device_nothing():
    model, own = tiny_language_model(lm=BANDS).cuda(), batch().to(torch.device("cuda"))
    batch_loss(model, own, CrossEntropy()).loss.backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch_loss(model, own, CrossEntropy()).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_close(dtype):
    model, tokens = tiny_language_model(lm=BANDS).cuda(), batch().tokens.cuda()
    whole = model.log_probs(tokens)
    half = model.to(dtype)
    torch.testing.assert_close(half.log_probs(tokens), whole, rtol=0.1, atol=0.2)
    state = half.start(tokens, 8)
    steps = torch.stack([half.step(tokens[:, place], state) for place in range(8)], dim=1)
    torch.testing.assert_close(steps, half.log_probs(tokens), rtol=0.05, atol=0.1)


def words(number, rare=0.2):
    """Blocks of text, with a share of rare words."""
    random = np.random.default_rng(number)
    target = np.where(random.random((8, 64)) < rare, random.integers(10, VOCABULARY_SIZE, (8, 64)),
                      random.integers(4, 10, (8, 64)))
    tokens = torch.from_numpy(random.integers(4, VOCABULARY_SIZE, (8, 64)))
    return TokenBatch(tokens, torch.from_numpy(target), target.size, tuple(range(8)), target_on_host=target)


def trained(rares, dtype=torch.bfloat16, **precision):
    """The way that the weights went, what updates told, and what was said."""
    model, notes = tiny_language_model(lm=BANDS).cuda(), []
    updater = Updater(model, OptimizationConfig(criterion=CrossEntropy(), lr=(1e-3,), clip_norm=1.0),
                      PrecisionConfig(**precision), dtype, note=notes.append)
    start = updater.weights.master.clone()
    results = [updater.update([words(number, rare).to(torch.device("cuda"))], 1e-3, 100 + number)
               for number, rare in enumerate(rares)]
    torch.cuda.synchronize()
    return updater.weights.master - start, [result.numbers.tolist() for result in results], notes


def distance(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("compiles", [False, True])
def test_captured_updates_of_an_adaptive_softmax_are_the_eager_ones(compiles):
    # Texts with more rare words than there is room for come now and then, and at the end for good.
    rares = [0.1] * 6 + [0.9] + [0.1] * 3 + [0.9] * 6
    captured, told, notes = trained(rares, compiles=compiles)
    eager, expected, _ = trained(rares, cuda_graphs=False)
    exact, _, _ = trained(rares, torch.float32)
    assert not any("is off" in note for note in notes), notes
    assert sum(note.startswith("captured updates") for note in notes) == 2, notes
    for one, other in zip(told, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02)
    assert distance(captured, exact) < max(0.02, 1.2 * distance(eager, exact))


def texts(number):
    """Of different lengths."""
    random = np.random.default_rng(number)
    rows = [random.integers(4, VOCABULARY_SIZE, length) for length in random.integers(2, 40, 20)]
    target = np.concatenate([np.roll(row, -1) for row in rows])[None]
    return FlatTokens(**flat_row(end_to_end(rows)), indices=tuple(range(20)), target=torch.from_numpy(target),
                      num_target_tokens=target.size, target_on_host=target)


SHAPE = TextShape(places=768, num_texts=32, longest=64, num_masked=0)


@pytest.mark.parametrize("is_drawn", [False, True], ids=["all layers", "LayerDrop"])
@pytest.mark.parametrize("lm", [LanguageModelConfig(), BANDS], ids=["softmax", "adaptive softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_texts_in_rows_of_one_shape_are_captured_and_equal_those_without_pads(lm, dtype, is_drawn):
    subsets, found, notes = LayerSubsets(((), (0.5, 0.3)), seed=1), [], []
    for is_captured in (False, True):
        updater = Updater(tiny_language_model(lm=lm).cuda(), OptimizationConfig(criterion=CrossEntropy(), lr=(1e-3,)),
                          PrecisionConfig(cuda_graphs=is_captured), dtype, note=notes.append)
        results = []
        for number in range(6):
            batch = texts(number).in_shape(SHAPE) if is_captured else texts(number)
            if is_drawn:
                batch = subsets.given_to(batch, 1, number, is_static=is_captured, capacities={0.5: 768, 0.3: 768})
            results.append(updater.update([batch.to(torch.device("cuda"))], 1e-3, number))
        torch.cuda.synchronize()
        found.append([result.numbers.tolist()[:3] for result in results])
    assert sum(note.startswith("captured updates") for note in notes) == 1, notes
    eager, captured = found
    for one, other in zip(captured, eager, strict=True):
        assert one == pytest.approx(other, rel=1e-5 if dtype == torch.float32 else 0.02)
