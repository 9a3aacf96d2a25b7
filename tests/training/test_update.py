"""One update: flat weights, accumulation, clipping, half precision, loss scale, divergence."""

import math
from dataclasses import replace

import pytest
import torch

import lamina.training.update as update_module
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.distributed.weights import ALIGNMENT, FlatWeights
from lamina.errors import DivergenceError
from lamina.models.build import build_model
from lamina.parts.update_rules import Sgd
from lamina.training.divergence import MAX_BAD_IN_A_ROW, MAX_SKIPPED_IN_A_ROW, DivergenceWatch
from lamina.training.loss import batch_loss
from lamina.training.loss_scale import LossScale
from lamina.training.progress import Progress
from lamina.training.update import Updater, UpdateResult
from tiny import VOCABULARY_SIZE, batch_of, tiny_config, tiny_model

SGD = OptimizationConfig(optimizer=Sgd(), lr=(0.1,), clip_norm=0.0)


def new_updater(optimization=SGD, dtype=torch.float32, precision=None, **changes):
    return Updater(tiny_model(**changes), optimization, precision or PrecisionConfig(), dtype)


def test_parameters_are_views_of_one_tensor():
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = FlatWeights(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    weights.master.fill_(2.0)
    assert all((parameter == 2.0).all() for parameter in model.parameters())
    assert all(start % ALIGNMENT == 0 for start in weights.starts)
    assert weights.named(weights.master).keys() == dict(model.named_parameters()).keys()


def test_splitting_a_batch_changes_nothing():
    whole, split = new_updater(), new_updater()
    one = whole.update([batch_of(slice(0, 8))], 0.1, seed=1)
    two = split.update([batch_of(slice(0, 3)), batch_of(slice(3, 8))], 0.1, seed=1)
    torch.testing.assert_close(one.numbers, two.numbers, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.weights.master, split.weights.master, rtol=1e-5, atol=1e-6)
    assert (one.num_tokens, one.num_sentences) == (two.num_tokens, two.num_sentences) == (48, 8)


def test_whoever_copies_the_state_is_told_before_it_changes():
    updater, seen = new_updater(), []
    before = updater.weights.master.clone()
    updater.before_step = lambda: seen.append(updater.weights.master.clone())
    updater.update([batch_of(slice(0, 8))], 0.1, seed=1)
    assert len(seen) == 1
    assert torch.equal(seen[0], before)
    assert not torch.equal(updater.weights.master, before)


@pytest.mark.parametrize(("is_sentence_avg", "denominator"), [(False, 48), (True, 8)])
def test_step_is_the_mean_gradient_over_tokens_or_sentences(is_sentence_avg, denominator):
    updater, reference, batch = new_updater(replace(SGD, sentence_avg=is_sentence_avg)), tiny_model(), batch_of(slice(0, 8))
    before = updater.weights.master.clone()
    log_probs = reference.log_probs(batch.source, batch.target_in)
    loss = -log_probs.gather(2, batch.target_out[..., None]).sum() / denominator
    expected = torch.autograd.grad(loss, list(reference.parameters()))
    updater.update([batch], 0.1, seed=1)
    step = (before - updater.weights.master) / 0.1
    for view, gradient in zip(updater.weights.views(step), expected, strict=True):
        torch.testing.assert_close(view, gradient, rtol=1e-4, atol=1e-5)


def test_clipping():
    free, clipped = new_updater(), new_updater(replace(SGD, clip_norm=0.01))
    before = free.weights.master.clone()
    norm = free.update([batch_of(slice(0, 8))], 0.1, seed=1).numbers[2].item()
    clipped_norm = clipped.update([batch_of(slice(0, 8))], 0.1, seed=1).numbers[2].item()
    assert norm == pytest.approx(clipped_norm)
    assert norm > 0.01
    assert (before - clipped.weights.master).norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)
    assert (before - free.weights.master).norm().item() == pytest.approx(0.1 * norm, rel=1e-3)


def test_dropout_is_drawn_by_the_seed_of_the_update():
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        updater = Updater(build_model(tiny_config(dropout_p=0.3), VOCABULARY_SIZE, VOCABULARY_SIZE), SGD, PrecisionConfig())
        torch.rand(seed)  # whatever happened before must not matter
        results.append(updater.update([batch_of(slice(0, 8))], 0.1, seed=seed).numbers[0].item())
    assert results[0] == results[1] != results[2]


def test_bfloat16_keeps_float32_masters():
    full, half = new_updater(), new_updater(dtype=torch.bfloat16)
    for updater in (full, half):
        for number in range(3):
            updater.update([batch_of(slice(0, 8), seed=number)], 0.1, seed=1)
    assert half.model.output_weight.dtype == torch.bfloat16
    assert half.weights.master.dtype == torch.float32
    torch.testing.assert_close(half.weights.master, full.weights.master, rtol=0, atol=0.02)
    assert not torch.equal(half.weights.master, half.weights.compute.float())


def test_loss_scale_halves_and_doubles():
    scale = LossScale(PrecisionConfig(fp16=True, fp16_scale_window=2, threshold_loss_scale=64.0), torch.device("cpu"),
                      is_on=True, default_window=5)
    yes, no = torch.tensor(True), torch.tensor(False)
    values = []
    for ok in (yes, yes, yes, no, no, no, no, yes, yes):
        scale.update_(ok)
        values.append(scale.value.item())
    assert values == [128, 256, 256, 128, 64, 64, 64, 64, 128]


@pytest.mark.parametrize(("dtype", "advice"), [(torch.float32, "lower --lr"), (torch.float16, "--bf16")])
def test_divergence_names_update_and_parameter_and_keeps_the_weights(dtype, advice):
    precision = PrecisionConfig(fp16=dtype == torch.float16, fp16_init_scale=1.0, min_loss_scale=0.6)
    updater = new_updater(dtype=dtype, precision=precision)
    progress = Progress(updates=7)
    watch = DivergenceWatch(progress, precision, updater.weights.names, torch.device("cpu"), dtype)
    with torch.no_grad():
        updater.model.decoder.layers[1].ffn.fc1.weight[0, 0] = math.nan
    before = updater.weights.master.clone()
    result = updater.update([batch_of(slice(0, 8))], 0.1, seed=1)
    progress.updates += 1
    for _ in range(0 if dtype == torch.float16 else MAX_BAD_IN_A_ROW - 1):
        watch.add(result, 0.1)
        assert watch.doubt
    with pytest.raises(DivergenceError, match=rf"update 8: the gradient of .*\.weight overflowed.*{advice}"):
        watch.add(result, 0.1)
    assert torch.equal(updater.weights.master.nan_to_num(5.0), before.nan_to_num(5.0))


def test_endless_overflows_are_divergence_even_at_the_threshold():
    precision = PrecisionConfig(fp16=True, threshold_loss_scale=0.03125)
    progress = Progress()
    watch = DivergenceWatch(progress, precision, ("w",), torch.device("cpu"), torch.float16)
    skipped = UpdateResult(torch.tensor([1.0, 1.0, math.inf, 0.03125, 0.0]), torch.tensor([math.inf]), 5, 1)
    taken = UpdateResult(torch.tensor([1.0, 1.0, 1.0, 0.03125, 1.0]), torch.tensor([1.0]), 5, 1)
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        watch.add(skipped, 0.1)
    watch.add(taken, 0.1)
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        watch.add(skipped, 0.1)
    with pytest.raises(DivergenceError, match="64 updates in a row were skipped"):
        watch.add(skipped, 0.1)


def test_an_overflow_in_float16_is_skipped_and_counted_as_no_step():
    precision = PrecisionConfig(fp16=True, fp16_init_scale=2.0**40)
    updater = new_updater(dtype=torch.float16, precision=precision)
    before = updater.weights.master.clone()
    result = updater.update([batch_of(slice(0, 8))], 0.1, seed=1)
    assert result.numbers[4].item() == 0.0
    assert torch.equal(updater.weights.master, before)
    assert updater.scale.value.item() == 2.0**39
    progress = Progress()
    DivergenceWatch(progress, precision, updater.weights.names, torch.device("cpu"), torch.float16).add(result, 0.1)
    assert progress.epoch_tokens == 0


class SmallMemory:
    """A loss that runs out of memory on batches above some number of rows, before or in the middle of backward."""

    def __init__(self, monkeypatch, max_rows, where):
        self.rows = []
        monkeypatch.setattr(update_module, "batch_loss", self)
        self.max_rows, self.where = max_rows, where

    def __call__(self, model, batch, *rest, **options):
        self.rows.append(batch.num_sentences)
        sums = batch_loss(model, batch, *rest, **options)
        if batch.num_sentences <= self.max_rows:
            return sums
        if self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return sums._replace(loss=FailsBackward.apply(sums.loss, model.source_embedding.table.weight))


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, weight):
        ctx.weight = weight
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.weight.grad.add_(1e6)  # what was added before memory ran out
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_computed_in_halves(monkeypatch, where, dtype):
    whole, halves, notes = new_updater(dtype=dtype), new_updater(dtype=dtype), []
    halves.memory.note = notes.append
    batches = [batch_of(slice(0, 2)), batch_of(slice(0, 8), seed=1)]
    one = whole.update(batches, 0.1, seed=1)
    small = SmallMemory(monkeypatch, max_rows=3, where=where)
    two = halves.update(batches, 0.1, seed=1)
    assert small.rows == [2, 8, 2, 4, 2, 2, 2, 2, 2]  # all of it, then in halves, then in quarters
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(one.numbers, two.numbers, **close)
    torch.testing.assert_close(whole.weights.master, halves.weights.master, **close)
    assert (one.num_tokens, one.num_sentences) == (two.num_tokens, two.num_sentences)
    # From now on such batches are cut at once, and nothing more is said.
    small.rows.clear()
    halves.update(batches, 0.1, seed=2)
    assert small.rows == [2, 2, 2, 2, 2]
    assert len(notes) == 1
    assert "memory ran out on a batch of 8 rows" in notes[0]


def test_a_single_row_that_does_not_fit_is_an_error(monkeypatch):
    SmallMemory(monkeypatch, max_rows=0, where="forward")
    with pytest.raises(torch.OutOfMemoryError):
        new_updater().update([batch_of(slice(0, 4))], 0.1, seed=1)
