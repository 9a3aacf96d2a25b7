"""The log-probabilities of given translations."""

# B batch, S source, T target, V vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import pad_rows
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.heads import Term, log_probs, normalise
from lamina.text.vocabulary import EOS

# Entries of (B, T, V) held at once.
CHUNK_SIZE = 2**25


def pad_targets(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """What the decoder reads, </s> first, and what it should say. rows end in </s> -> (B, T) each"""
    target_in = pad_rows([np.array([EOS, *row[:-1]]) for row in rows])
    return torch.from_numpy(target_in).to(device), torch.from_numpy(pad_rows([np.array(row) for row in rows])).to(device)


@torch.no_grad()
def token_log_probs(models: Sequence[EncoderDecoder], source: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
    """Of each target token given those before it; several models count by their mean probability. (B, T)

    These are true log-probabilities: hard surface fusion, whose scores are none, is normalised over the vocabulary here.
    """
    single = [target_log_probs(model(source, target_in), model.output_weight, target_out) for model in models]
    return torch.logsumexp(torch.stack(single), dim=0) - math.log(len(single))


def target_log_probs(terms: list[Term], output_weight: Tensor, target_out: Tensor) -> Tensor:
    """A few positions at a time, so that the whole (B, T, V) is never there. (B, T)"""
    width = max(1, CHUNK_SIZE // (len(target_out) * len(output_weight)))
    parts = []
    for start in range(0, target_out.size(1), width):
        span = slice(start, start + width)
        chunk = [Term(term.features[:, span], term.weight[:, span] if isinstance(term.weight, Tensor) else term.weight)
                 for term in terms]
        parts.append(normalise(log_probs(chunk, output_weight), chunk).gather(2, target_out[:, span, None])[:, :, 0])
    return torch.cat(parts, dim=1)
