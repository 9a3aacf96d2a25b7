"""Attention over packed rows as a GPU computes it, here without its kernels: the numbers are those of flat and of padded rows.

tests/gpu/test_captured.py has the kernels.
"""

import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from lamina.cuda_graphs.capture_contract import NoQuestions
from lamina.data.batching import collate
from lamina.data.corpus import Example
from lamina.data.packing import PackedShape, Sentences, packed
from lamina.nn import packed_attention as kernels_module
from lamina.nn.flat_attention import Blocks
from lamina.nn.packed_attention import FLOAT32_TILES, TILES, packed_attention, precision_of_products, tiles_for
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.text.vocabulary import EOS
from lamina.training.loss import batch_loss
from tiny import FUSIONS, VOCABULARY_SIZE, tiny_model

SHAPE = PackedShape(places=256, max_sentences=24, longest=32)
NUMBER = 14


def sides_of(seed):
    """Sentences of a source and of a target."""
    random = np.random.default_rng(seed)
    for _ in range(2):
        sizes = random.integers(1, 20, NUMBER) + 1
        ids = random.integers(4, VOCABULARY_SIZE, sizes.sum())
        ids[np.cumsum(sizes) - 1] = EOS
        yield Sentences(ids, sizes)


def batch_of(seed=0):
    return packed(*sides_of(seed), SHAPE, range(NUMBER))


def attend(query, memory, reader, read, *, is_causal=False, dropout_p=0.0):
    return packed_attention(query, memory, reader.sentences, reader.bounds, read.sentences, read.bounds, 2, is_causal,
                            dropout_p)[0]


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_row_that_reads_itself(is_causal):
    target = batch_of().sides.target
    torch.manual_seed(0)
    qkv = torch.randn(SHAPE.places, 3 * 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(SHAPE.places, 16, dtype=torch.float64)
    found, expected = (attend(qkv, None, target, target, is_causal=is_causal),
                       Blocks(target.bounds).attend(qkv, None, 2, is_causal=is_causal, dropout_p=0.0))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad((out * weight).sum(), qkv) for out in (found, expected)))


def test_a_row_that_reads_another_one_and_pads_that_have_nothing_to_read():
    source, _, target = batch_of().sides
    torch.manual_seed(0)
    query, memory = (torch.randn(SHAPE.places, width, dtype=torch.float64, requires_grad=True) for width in (16, 32))
    found = attend(query, memory, target, source)
    expected = Blocks(target.bounds, source.bounds).attend(query, memory, 2, is_causal=False, dropout_p=0.0)
    number = int(target.bounds[NUMBER])  # behind it there are pads, which count for nothing
    assert found.isfinite().all()
    torch.testing.assert_close(found[:number], expected[:number])
    weight = torch.randn(number, 16, dtype=torch.float64)
    gradients = [torch.autograd.grad((out[:number] * weight).sum(), (query, memory)) for out in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_the_gradient_knows_which_weights_were_dropped():
    target = batch_of().sides.target
    torch.manual_seed(0)
    qkv = torch.randn(SHAPE.places, 3 * 16, dtype=torch.float64, requires_grad=True)

    def dropped(inputs):
        torch.manual_seed(3)
        return attend(inputs, None, target, target, dropout_p=0.3)

    assert torch.autograd.gradcheck(lambda part: dropped(torch.cat([part, qkv.detach()[4:]]))[:8], qkv.detach()[:4].clone()
                                    .requires_grad_())
    with torch.no_grad():
        plain = attend(qkv, None, target, target)
        torch.manual_seed(0)
        mean = torch.stack([attend(qkv, None, target, target, dropout_p=0.3) for _ in range(300)]).mean(dim=0)
        assert float((mean - plain).norm() / plain.norm()) < 0.1
        assert float((dropped(qkv) - plain).norm() / plain.norm()) > 0.1


@pytest.mark.parametrize("parts", [{}, FUSIONS["both"]], ids=["plain", "both"])
def test_a_packed_model_in_float32_is_the_padded_one_and_asks_the_device_nothing(parts, attention_of_a_gpu):
    model, criterion = tiny_model(**parts), LabelSmoothedCrossEntropy(smoothing=0.1)
    model.head.train()  # not all of it: transparent attention drops some of its weights
    source, target = sides_of(0)
    rows = [np.split(side.ids, np.cumsum(side.sizes)[:-1]) for side in (source, target)]
    padded = collate([Example(*pair) for pair in zip(*rows, strict=True)], range(NUMBER))
    found = []
    for batch in (batch_of(), padded):
        model.zero_grad()
        with NoQuestions():
            sums = batch_loss(model, batch, criterion)
            sums.loss.backward()
        found.append((sums.loss.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])))
    (loss, grad), (expected, wanted) = found
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert float((grad - wanted).norm() / wanted.norm()) < 1e-6


def test_numbers_of_float32_have_tiles_and_products_of_their_own(monkeypatch):
    for kernel in TILES:
        for channels in (64, 256, 512):
            assert tiles_for(kernel, channels) in TILES[kernel].values()
            assert tiles_for(kernel, channels, torch.float32) in FLOAT32_TILES[kernel].values()
    assert precision_of_products() == "ieee"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert precision_of_products() == "tf32"


def test_where_a_kernel_for_float32_does_not_work_plain_operations_serve(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels_module, "HAS_TRITON", True)
    monkeypatch.setattr(kernels_module, "_failure", lambda *arguments: asked.append(arguments) or "out of memory")
    device = torch.device("cuda")
    has = kernels_module._has_kernels
    assert has(device, torch.bfloat16, 64, False, 0.0)
    with pytest.warns(UserWarning, match="several times as long: out of memory"):
        assert not has(device, torch.float32, 64, True, 0.1)
    assert asked == [(device, torch.float32, 64, True, True)]
    assert not has(device, torch.bfloat16, 1024, False, 0.0)
    assert not has(torch.device("cpu"), torch.bfloat16, 64, False, 0.0)


def test_kernels_are_compiled_once_beside_the_compiler_of_the_rest_and_are_waited_for(monkeypatch):
    tried, may_end = [], threading.Event()

    def failure(*use):
        may_end.wait(5)
        tried.append(use)
        raise RuntimeError("is told where the kernels are used")

    monkeypatch.setattr(kernels_module, "HAS_TRITON", True)
    monkeypatch.setattr(kernels_module, "_AHEAD", {})
    monkeypatch.setattr(kernels_module, "_failure", failure)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    device = torch.device("cuda")
    for is_causal in (False, True, False):
        kernels_module.compile_ahead(device, torch.bfloat16, 64, is_causal=is_causal, has_dropout=True)
    kernels_module.compile_ahead(device, torch.float32, 64, is_causal=False, has_dropout=True)  # tried when a run begins
    kernels_module.compile_ahead(torch.device("cpu"), torch.bfloat16, 64, is_causal=False, has_dropout=True)
    assert tried == []
    may_end.set()
    for is_causal in (False, True):
        assert kernels_module._has_kernels(device, torch.bfloat16, 64, is_causal, 0.1)
        assert (device, torch.bfloat16, 64, is_causal, True) in tried
    assert len(tried) == 2


@pytest.mark.parametrize(("has_triton", "channels", "failure", "said"), [
    (False, 64, "", "a C compiler"), (True, 1024, "", "up to 512 channels"), (True, 64, "out of resource", "out of resource"),
    (True, 64, "", "")])
def test_a_run_knows_ahead_why_float32_has_no_kernels(has_triton, channels, failure, said, monkeypatch):
    monkeypatch.setattr(kernels_module, "HAS_TRITON", has_triton)
    monkeypatch.setattr(kernels_module, "_failure", lambda *_: failure)
    found = kernels_module.why_no_float32(torch.device("cuda"), channels, has_dropout=False)
    assert said in found
    assert bool(found) == bool(said)
