"""Recorded updates are the eager ones: packed attention, whole passes, compiled or not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from descent import LEAST_KEPT, sgd_updater, share_kept
from lamina.config.model import DropoutConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import Batch, collate
from lamina.data.corpus import Example
from lamina.data.packing import PackedShape, Sentences, packed
from lamina.models.build import build_model
from lamina.nn.layout import PackedLayout, lay_out
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.residuals import Admin
from lamina.text.vocabulary import EOS, PAD
from lamina.training.compute_type import products_of_float32
from lamina.training.update import Updater
from tiny import FUSIONS, MIXINGS, VOCABULARY_SIZE, tiny_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

OPTIMIZATION = OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1), lr=(1e-3,), clip_norm=1.0)
SHAPE = PackedShape(places=256, max_sentences=24, longest=32)
STARTS: dict[int, torch.Tensor] = {}  # the weights that each updater began with


def sides_of(seed: int, longest: int = 20) -> list[Sentences]:
    random = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        sizes = random.integers(1, longest, 14) + 1
        ids = random.integers(4, VOCABULARY_SIZE, sizes.sum())
        ids[np.cumsum(sizes) - 1] = EOS
        sides.append(Sentences(ids, sizes))
    return sides


def batch_of(seed: int, longest: int = 20, shape: PackedShape = SHAPE):
    return packed(*sides_of(seed, longest), shape, range(14)).to(torch.device("cuda"))


def padded_batch_of(seed: int) -> Batch:
    """The same sentences."""
    rows = [np.split(side.ids, np.cumsum(side.sizes)[:-1]) for side in sides_of(seed)]
    return collate([Example(*pair) for pair in zip(*rows, strict=True)], range(14)).to(torch.device("cuda"))


def updater(parts: dict | None = None, *, dtype: torch.dtype = torch.bfloat16, dropout_p: float = 0.0, **precision) -> Updater:
    torch.manual_seed(1)
    config = tiny_config(num_layers=3, dropout_p=dropout_p, **(parts or {}))
    model = build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE).cuda()
    made = Updater(model, OPTIMIZATION, PrecisionConfig(**precision), dtype, note=print)
    STARTS[id(made)] = made.weights.master.clone()
    return made


def some_of(*seed: int) -> ActiveLayers:
    random = np.random.default_rng(seed)
    return ActiveLayers(tuple(random.random(3) < 0.6), tuple(random.random(3) < 0.6))


def train(of: Updater, *, draws=lambda number: [ALL_LAYERS], updates: int = 6, per_update: int = 1,
          batches=batch_of) -> list[list[float]]:
    results = [of.update([batches(number * per_update + place) for place in range(per_update)], 1e-3, 100 + number,
                         draws(number)) for number in range(updates)]
    torch.cuda.synchronize()
    return [result.numbers.tolist() for result in results]


def assert_close(found: list[list[float]], expected: list[list[float]], tolerance: float = 0.02) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=tolerance)


def assert_same_way(found: Updater, expected: Updater, *, exact: Updater | None = None) -> None:
    """They moved the same way; or, where rounding differs, at least as much the way of float32."""
    start = STARTS[id(expected)]
    ways = [None if of is None else of.weights.master - start for of in (found, expected, exact)]
    if exact is None:
        assert float((ways[0] - ways[1]).norm() / ways[1].norm()) < 0.1
    else:
        own, eager = (float((way - ways[2]).norm() / ways[2].norm()) for way in ways[:2])
        assert own < max(0.02, 1.2 * eager)


@pytest.mark.parametrize("longest", [20, 400], ids=["tiles of several", "one after the other"])
@pytest.mark.parametrize(("num_heads", "channels"), [(2, 8), (4, 128), (8, 64), (1, 256), (1, 512), (1, 1024)])
@pytest.mark.parametrize("kind", ["within", "causal", "across"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.01), (torch.float32, 1e-6)], ids=["bf16", "fp32"])
def test_packed_attention(longest, num_heads, channels, kind, dtype, tolerance):
    shape = PackedShape(places=5120, max_sentences=24, longest=512) if longest > 20 else SHAPE
    source, target = (lay_out(side, PAD)[1] for side in batch_of(0, longest, shape).inputs)
    assert isinstance(source, PackedLayout)
    torch.manual_seed(0)
    width = num_heads * channels
    inputs = [torch.randn(1, shape.places, size * width, device="cuda").to(dtype).requires_grad_()
              for size in ([1, 2] if kind == "across" else [3])]

    def attend(*tensors):
        if kind == "across":
            return source.attend_across(*tensors, num_heads, reader=target)
        return target.attend_within(*tensors, num_heads, is_causal=kind == "causal")

    found = attend(*inputs)
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = attend(*wide)  # without kernels of its own
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, inputs, weight.to(dtype))
    expected_gradients = torch.autograd.grad(expected, wide, weight)
    for one, other in zip((found, *gradients), (expected, *expected_gradients), strict=True):
        assert float((one.detach().double() - other.detach()).norm() / other.detach().norm()) < tolerance


def test_dropout_of_packed_attention_keeps_the_mean_and_its_gradient():
    _, target = (lay_out(side, PAD)[1] for side in batch_of(0).inputs)
    torch.manual_seed(0)
    qkv = torch.randn(1, 256, 3 * 64, device="cuda").bfloat16()
    plain = target.attend_within(qkv, 2).float()
    draws = torch.stack([target.attend_within(qkv, 2, dropout_p=0.2).float() for _ in range(400)])
    assert float((draws.mean(dim=0) - plain).norm() / plain.norm()) < 0.05
    assert float((draws[0] - plain).norm() / plain.norm()) > 0.1
    # The output is linear in the values: so is the gradient, under the same mask.
    values = qkv.clone().requires_grad_()
    torch.manual_seed(7)
    out = target.attend_within(values, 2, dropout_p=0.2)
    (gradient,) = torch.autograd.grad(out, values, torch.ones_like(out))
    by_values = (gradient.float() * qkv.float())[..., 128:].sum()
    torch.testing.assert_close(by_values, out.detach().float().sum(), rtol=0.02, atol=2.0)


@pytest.mark.parametrize("parts", [{}, {"init": Admin()}, *FUSIONS.values(), *MIXINGS.values()],
                         ids=["plain", "admin", *FUSIONS, *MIXINGS])
def test_recorded_updates_are_the_eager_ones(parts):
    eager, recorded = updater(parts, cuda_graphs=False), updater(parts, compiles=False)
    assert_close(train(recorded), train(eager))
    assert_same_way(recorded, eager)


@pytest.mark.parametrize("name", ["plain", "both", *MIXINGS])
def test_compiled_updates_are_the_eager_ones(name, capsys):
    parts = {**FUSIONS, **MIXINGS}.get(name, {})
    eager, compiled, exact = updater(parts, cuda_graphs=False), updater(parts), updater(parts, dtype=torch.float32)
    assert_close(train(compiled), train(eager))
    train(exact)
    assert_same_way(compiled, eager, exact=exact)
    assert "is off" not in capsys.readouterr().out


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("name", ["plain", "att hard"])
def test_float32_is_captured_and_equals_padded_rows(name, compiles, capsys):
    parts = FUSIONS.get(name, {})
    eager, captured = updater(parts, dtype=torch.float32, cuda_graphs=False), updater(parts, dtype=torch.float32,
                                                                                       compiles=compiles)
    expected, found = train(eager, batches=padded_batch_of), train(captured)
    said = capsys.readouterr().out
    assert "captured updates" in said
    assert "is off" not in said
    for one, other in zip(found, expected, strict=True):
        assert one[:2] == pytest.approx(other[:2], rel=1e-6)
        assert one[2:] == pytest.approx(other[2:], rel=1e-5)


def test_tf32_is_captured_and_close_to_float32(capsys):
    exact = train(updater(dtype=torch.float32, cuda_graphs=False))
    with products_of_float32(PrecisionConfig(tf32=True)):
        found = train(updater(dtype=torch.float32))
    assert "is off" not in capsys.readouterr().out
    assert_close(found, exact, 0.005)
    assert found != exact


def test_updates_that_leave_out_whole_layers_are_eager(capsys):
    def draws(number: int) -> list[ActiveLayers]:
        return [some_of(number, place) for place in range(3)]

    eager, other = updater(cuda_graphs=False), updater()
    found, expected = (train(of, draws=draws, per_update=3) for of in (other, eager))
    assert_close(found, expected)
    assert_same_way(other, eager)
    out = capsys.readouterr().out
    assert "captured updates" not in out
    assert "is off" not in out


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("drops", [DropoutConfig(dropout_p=0.5), DropoutConfig(dropout_p=0.0, attention_p=0.5)],
                         ids=["dropout", "dropout of attention"])
def test_the_dropout_of_a_recorded_pass_is_that_of_its_gradient(drops, compiles, capsys):
    config = replace(tiny_config(num_layers=3), dropout=drops)
    model = build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE).cuda()
    updater = sgd_updater(model, torch.bfloat16, compiles=compiles)
    assert share_kept(updater, map(batch_of, range(4))) > LEAST_KEPT
    assert "is off" not in capsys.readouterr().out


def test_padded_batches_of_one_shape_are_recorded_too(capsys):
    def padded(seed: int) -> Batch:
        random = np.random.default_rng(seed)
        sizes = [[9, *random.integers(2, 9, 5)] for _ in range(2)]  # each side has a longest row of the same length
        pairs = [Example(*(np.append(random.integers(4, VOCABULARY_SIZE, size - 1), EOS) for size in both))
                 for both in zip(*sizes, strict=True)]
        return collate(pairs, range(6)).to(torch.device("cuda"))

    def losses(of: Updater) -> list[list[float]]:
        results = [of.update([padded(number)], 1e-3, number) for number in range(8)]
        torch.cuda.synchronize()
        return [result.numbers.tolist() for result in results]

    assert_close(losses(updater(compiles=False)), losses(updater(cuda_graphs=False)))
    assert capsys.readouterr().out.count("captured ") == 1


def test_gradients_of_several_batches_and_float16():
    eager, recorded = (updater(dtype=torch.float16, fp16=True, compiles=False, cuda_graphs=graphs) for graphs in (False, True))
    assert_close(train(recorded, per_update=3), train(eager, per_update=3))
    assert_same_way(recorded, eager)


def test_an_overflow_is_skipped_inside_the_recording():
    recorded = updater(dtype=torch.float16, fp16=True, fp16_init_scale=2.0**25, compiles=False)
    numbers = train(recorded, updates=30)
    taken = [row[4] for row in numbers]
    assert taken[0] == 0.0
    assert taken[-1] == 1.0
    assert numbers[1][3] == numbers[0][3] / 2
    assert recorded.weights.master.isfinite().all()


def test_dropout_is_drawn_anew_for_each_update_and_again_for_the_same_one():
    first, second = (train(updater(dropout_p=0.3, compiles=False)) for _ in range(2))
    assert_close(first, second, 1e-3)
    other = updater(dropout_p=0.3, compiles=False)
    same_batch = [other.update([batch_of(0)], 0.0, seed) for seed in range(5)]
    torch.cuda.synchronize()
    assert len({result.numbers[0].item() for result in same_batch}) == 5


def test_memory_that_runs_out_cuts_a_packed_batch():
    whole, cut = updater(compiles=False), updater(compiles=False)
    cut.memory.trying = batch_of(0)
    assert cut.memory.can_cut_smaller()
    assert_close(train(cut), train(whole))


def test_the_compiled_loss_is_the_plain_one():
    from lamina.nn.cross_entropy import _score_chunk, compiled_chunk

    torch.manual_seed(0)
    scores = torch.randn(64, 1000, device="cuda").bfloat16()
    target, weight = torch.randint(1000, (64,), device="cuda"), torch.rand(64, device="cuda")
    expected = _score_chunk(scores.clone(), target, weight, 0.1, True)
    found = compiled_chunk()(scores.clone(), target, weight, 0.1, True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=1e-3)
    plain = F.cross_entropy(scores.float(), target, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(found[0], plain, rtol=1e-3, atol=1e-3)


def test_layers_that_are_computed_again_drop_the_same_weights_of_long_sentences(capsys):
    """For which torch's kernel would be taken, whose random numbers cannot be drawn again."""
    config = replace(tiny_config(num_layers=2, max_source_positions=512, max_target_positions=512),
                     dropout=DropoutConfig(dropout_p=0.0, attention_p=0.5))
    model = build_model(config, VOCABULARY_SIZE, VOCABULARY_SIZE).cuda()
    for stack in (model.encoder, model.decoder):
        stack.recomputes = True
    shape = PackedShape(places=5120, max_sentences=24, longest=512)
    batches = [batch_of(seed, 400, shape) for seed in range(2)]
    assert not lay_out(batches[0].inputs[0], PAD)[1].is_of_short
    assert share_kept(sgd_updater(model, torch.bfloat16, compiles=False), batches, ALL_LAYERS) > LEAST_KEPT
    assert "is off" not in capsys.readouterr().out


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_layers_that_are_computed_again_are_captured(dropout_p, compiles, capsys):
    """With dropout, the gradient is that of what the forward pass drew: a step along it lowers the very same loss."""
    model = build_model(tiny_config(num_layers=3, dropout_p=dropout_p), VOCABULARY_SIZE, VOCABULARY_SIZE).cuda()
    for stack in (model.encoder, model.decoder):
        stack.recomputes = True
    made = sgd_updater(model, torch.bfloat16, compiles=compiles)
    assert share_kept(made, map(batch_of, range(4)), ALL_LAYERS) > LEAST_KEPT
    said = capsys.readouterr().out
    assert "captured updates" in said
    assert "is off" not in said
