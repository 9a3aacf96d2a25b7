"""The log-probabilities of given texts: translations of their sources, or a language model's blocks."""

# B batch, T target, V vocabulary, D model_dim

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import ChooseBatches, length_batches, pad_rows
from lamina.nn.adaptive import AdaptiveHead
from lamina.nn.cross_entropy import Term
from lamina.nn.heads import log_probs, normalise
from lamina.nn.prepacked import Prepacked
from lamina.text.vocabulary import EOS

# Entries of (B, T, V) held at once.
CHUNK_SIZE = 2**25


def score_rows(models: Sequence[Any], rows: Sequence[tuple[np.ndarray, ...]], *, device: torch.device | str,
               max_tokens: int | None = None, batch_size: int | None = None,
               choose: ChooseBatches = list) -> Iterator[tuple[int, list[float]]]:
    """Each row's index and the log-probabilities of its target's tokens, batch by batch: the longest first.

    A row is what the model reads before the target, if anything, and the target: (source, target), or (text,).
    `choose` leaves out batches that others score.
    """
    for indices in choose(length_batches([max(row, key=len) for row in rows], max_tokens, batch_size)):
        *read, targets = zip(*(rows[index] for index in indices), strict=True)
        target_in, target_out = pad_targets([target.tolist() for target in targets], device)
        inputs = [torch.from_numpy(pad_rows(side)).to(device) for side in read]
        scores = token_log_probs(models, (*inputs, target_in), target_out).tolist()
        for index, own, target in zip(indices, scores, targets, strict=True):
            yield index, own[: len(target)]


def pad_targets(rows: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """What the decoder reads, </s> first, and what it should say. rows end in </s> -> (B, T) each"""
    target_in = pad_rows([np.array([EOS, *row[:-1]]) for row in rows])
    return torch.from_numpy(target_in).to(device), torch.from_numpy(pad_rows([np.array(row) for row in rows])).to(device)


@torch.no_grad()
def token_log_probs(models: Sequence[Any], inputs: tuple[Tensor, ...], target: Tensor,
                    softmax_batch: int | None = None) -> Tensor:
    """Of each target token given those before it; several models count by their mean probability. (B, T)

    These are true log-probabilities: hard surface fusion, whose scores are none, is normalised over the vocabulary here.
    `softmax_batch` limits how many tokens look at the vocabulary at once, besides what memory allows.
    """
    single = [_of_model(model, model(*inputs), target, softmax_batch) for model in models]
    return torch.logsumexp(torch.stack(single), dim=0) - math.log(len(single))


def _of_model(model: Any, terms: list[Term], target: Tensor, softmax_batch: int | None) -> Tensor:
    if not isinstance(model.head, AdaptiveHead):
        return target_log_probs(terms, model.output_weight, target, softmax_batch)
    (term,) = terms
    features, flat = term.features.flatten(0, 1), target.flatten()
    size = min(softmax_batch or len(flat), max(1, CHUNK_SIZE // model.head.widest))
    parts = [model.head.target_log_probs(features[start : start + size], flat[start : start + size])
             for start in range(0, len(flat), size)]
    return torch.cat(parts).view_as(target)


def target_log_probs(terms: list[Term], output_weight: Tensor | Prepacked, target_out: Tensor,
                     softmax_batch: int | None = None) -> Tensor:
    """A few positions at a time, so that the whole (B, T, V) is never there. (B, T)"""
    limit = min(softmax_batch or target_out.numel(), CHUNK_SIZE // output_weight.size(0))
    width = max(1, limit // len(target_out))
    parts = []
    for start in range(0, target_out.size(1), width):
        span = slice(start, start + width)
        chunk = [Term(term.features[:, span], term.weight[:, span] if isinstance(term.weight, Tensor) else term.weight)
                 for term in terms]
        parts.append(normalise(log_probs(chunk, output_weight), chunk).gather(2, target_out[:, span, None])[:, :, 0])
    return torch.cat(parts, dim=1)
