"""The most likely next token, until every sentence has ended."""

# B batch, S source, T target

from __future__ import annotations

import torch
from torch import Tensor

from lamina.models.encoder_decoder import EncoderDecoder
from lamina.text.vocabulary import BOS, EOS, PAD

# How much longer than its source a translation may grow.
MAX_LENGTH_FACTOR, MAX_LENGTH_OFFSET = 2, 20


@torch.no_grad()
def translate_greedily(model: EncoderDecoder, source: Tensor) -> list[list[int]]:
    """The ids of each row's translation, without </s>. source: (B, S)"""
    limits = source.ne(PAD).sum(dim=1) * MAX_LENGTH_FACTOR + MAX_LENGTH_OFFSET  # (B,), from each row's own length
    limits = limits.clamp(max=model.max_target_positions - 1)
    longest = int(limits.max())
    state = model.start(source, longest + 1)
    tokens = torch.full_like(source[:, 0], EOS)
    is_finished = torch.zeros_like(tokens, dtype=torch.bool)
    steps: list[Tensor] = []
    for length in range(longest + 1):
        scores = model.step(tokens, state)
        scores[:, [BOS, PAD]] = -torch.inf
        tokens = torch.where(is_finished, PAD, torch.where(limits <= length, EOS, scores.argmax(dim=1)))
        is_finished |= tokens.eq(EOS)
        steps.append(tokens)
        if is_finished.all():
            break
    return [[token for token in row if token not in (EOS, PAD)] for row in torch.stack(steps, dim=1).tolist()]
