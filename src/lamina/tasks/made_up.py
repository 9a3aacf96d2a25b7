"""Batches of made-up tokens, to look at a model without a data folder: every sentence of one length, </s> at its end."""

# B batch, T tokens

from __future__ import annotations

import torch
from torch import Tensor

from lamina.data.batching import Batch, TokenBatch
from lamina.data.masked_blocks import MaskedBatch
from lamina.text.vocabulary import EOS, FIRST_WORD_ID

MASKED_EVERY = 7  # about the 15 % of words that masked language models guess


def made_up_pairs(vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> Batch:
    source, target = _sentences(vocab_sizes, num_sentences, length, seed)
    return Batch(source, _moved_right(target), target, source.numel(), target.numel(), tuple(range(num_sentences)))


def made_up_text(vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> TokenBatch:
    (text,) = _sentences(vocab_sizes[:1], num_sentences, length, seed)
    return TokenBatch(_moved_right(text), text, text.numel(), tuple(range(num_sentences)))


def made_up_gaps(vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> MaskedBatch:
    (text,) = _sentences(vocab_sizes[:1], num_sentences, length, seed)
    places = torch.arange(0, text.numel(), MASKED_EVERY)
    return MaskedBatch(text, places, text.flatten()[places], tuple(range(num_sentences)))


def _sentences(vocab_sizes: tuple[int, ...], num_sentences: int, length: int, seed: int) -> list[Tensor]:
    """Words drawn evenly. (B, T) for each vocabulary"""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for size in vocab_sizes:
        drawn = torch.randint(FIRST_WORD_ID, size, (num_sentences, length), generator=generator)
        drawn[:, -1] = EOS
        found.append(drawn)
    return found


def _moved_right(text: Tensor) -> Tensor:
    return torch.cat([torch.full_like(text[:, :1], EOS), text[:, :-1]], dim=1)
