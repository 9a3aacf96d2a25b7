"""Which runs pack their batches; a GPU is only asked for float32."""

import pytest
import torch

from lamina.config.parser import resolve
from lamina.config.train_options import TrainConfig
from lamina.training import packed_runs
from lamina.training.packed_runs import is_packed

GPU = torch.device("cuda")
MASKED = {"task": "masked_lm", "arch": "tiny_masked", "max-tokens": None, "batch-size": 8}


def config_of(**words):
    given = {"data": "data", "arch": "tiny", "max-tokens": 64} | words
    return resolve(TrainConfig, {name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize(("words", "device", "expected"), [
    ({}, GPU, True), ({}, torch.device("cpu"), False), ({"pack": False}, GPU, False),
    ({"max-tokens": None, "batch-size": 8}, GPU, True), (MASKED, GPU, True), ({**MASKED, "pack": False}, GPU, False)])
def test_half_precision_is_packed_on_a_gpu(words, device, expected):
    assert is_packed(config_of(**words), torch.bfloat16, device, pytest.fail) == expected


@pytest.mark.parametrize(("failing", "words", "asked"), [
    (None, {}, [64, 32]), (64, {}, [64]), (32, {}, [64, 32]), (None, MASKED, [32])])
def test_float32_is_packed_where_its_kernels_work(failing, words, asked, monkeypatch):
    said, found = [], []
    monkeypatch.setattr(packed_runs, "why_no_float32", lambda device, channels, *, has_dropout: (
        found.append((channels, has_dropout)) or "out of resource" * (channels == failing)))
    size = {"encoder-embed-dim": 128, "encoder-attention-heads": 4 if words else 2, "attention-dropout": 0.1}
    size |= {} if words else {"decoder-embed-dim": 128, "decoder-attention-heads": 4}
    assert is_packed(config_of(**words, **size), torch.float32, GPU, said.append) == (failing is None)
    assert found == [(channels, True) for channels in asked]
    assert [("out of resource" in text, "up to eight times" in text) for text in said] == [(True, True)] * (failing is not None)
