"""Shared by all tests: one thread, since small tensors gain nothing from two, and lose much on a busy machine; one width of the
terminal, which parallel workers otherwise take from elsewhere than a single process does; and strictness: what a CUDA graph or
the compiler cannot hold is an error, where users get a notice and a slower run."""

import os

import pytest
import torch

from lamina.nn.compiling import STRICT
from lamina.nn.layout import PackedLayout
from lamina.nn.packed_attention import packed_attention

os.environ["COLUMNS"] = "100"
os.environ[STRICT] = "1"
torch.set_num_threads(1)


@pytest.fixture
def attention_of_a_gpu(monkeypatch):
    """Packed rows go through the operator that has kernels on a GPU; here it does the same in plain operations."""
    def attend(self, query, memory, reader, num_heads, *, is_causal=False, dropout_p):
        return packed_attention(query, memory, reader.sentences, reader.bounds, self.sentences, self.bounds, num_heads,
                                is_causal, dropout_p)[0]

    monkeypatch.setattr(PackedLayout, "_attend", attend)
