"""Attention among packed sentences in plain operations of torch, where the kernels for it (nn/packed_kernels.py) do not work.

A mask over all pairs of tokens, one head at a time. Shapes depend on those of the rows alone, so that a CUDA graph can hold it.
"""

# N queries, M keys, H heads, C channels of a head

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lamina.nn.dropout import NUM_COUNTED, drawn_levels

SPAN = 128  # channels whose products are added up together


def forward(query: Tensor, key: Tensor, value: Tensor, query_sentences: Tensor, key_sentences: Tensor, seed: Tensor,
            num_heads: int, is_causal: bool, dropout_p: float) -> Tensor:
    """What each query makes of its sentence. (N, D)"""
    may_attend = _may_attend(query_sentences, key_sentences, is_causal)
    outputs = []
    for head, (q, k, v) in enumerate(_heads(num_heads, query, key, value)):
        weights = _weights(q, k, may_attend)
        if dropout_p:
            weights = weights * _mask(seed, head, weights, dropout_p)
        outputs.append(weights @ v)
    return torch.cat(outputs, dim=1).to(query.dtype)


def backward_(out_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, query_grad: Tensor, key_grad: Tensor,
              value_grad: Tensor, query_sentences: Tensor, key_sentences: Tensor, seed: Tensor, num_heads: int,
              is_causal: bool, dropout_p: float) -> None:
    """Writes the gradients."""
    may_attend = _may_attend(query_sentences, key_sentences, is_causal)
    parts = _heads(num_heads, query, key, value, out, out_grad)
    grads = zip(*(grad.chunk(num_heads, dim=1) for grad in (query_grad, key_grad, value_grad)), strict=True)
    for head, ((q, k, v, mixed, mixed_grad), (q_grad, k_grad, v_grad)) in enumerate(zip(parts, grads, strict=True)):
        weights = _weights(q, k, may_attend)
        weights_grad, kept = _over_channels(mixed_grad, v), weights
        if dropout_p:
            mask = _mask(seed, head, weights, dropout_p)
            weights_grad, kept = weights_grad * mask, weights * mask
        scores_grad = weights * (weights_grad - (mixed * mixed_grad).sum(dim=1, keepdim=True)) * q.size(1) ** -0.5
        q_grad.copy_(scores_grad @ k)
        k_grad.copy_(scores_grad.t() @ q)
        v_grad.copy_(kept.t() @ mixed_grad)


def _weights(query: Tensor, key: Tensor, may_attend: Tensor) -> Tensor:
    """Zeros where a query has nothing to look at. (N, M)"""
    scores = _over_channels(query * query.size(1) ** -0.5, key)
    return scores.masked_fill_(~may_attend, -torch.inf).softmax(dim=1).masked_fill(~may_attend, 0.0)


def _over_channels(rows: Tensor, columns: Tensor) -> Tensor:
    """rows @ columns.t(), a span of channels after the other: a sum of 1,024 numbers one by one loses a digit of float32."""
    first, *others = zip(rows.split(SPAN, dim=1), columns.split(SPAN, dim=1), strict=True)
    total = first[0] @ first[1].t()
    for own, other in others:
        total.addmm_(own, other.t())
    return total


def _heads(num_heads: int, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """In float32 or better."""
    wide = (own.to(torch.promote_types(own.dtype, torch.float32)) for own in rows)
    return zip(*(own.chunk(num_heads, dim=1) for own in wide), strict=True)


def _may_attend(query_sentences: Tensor, key_sentences: Tensor, is_causal: bool) -> Tensor:
    """(N, M)"""
    may_attend = query_sentences[:, None] == key_sentences
    return may_attend.tril() if is_causal else may_attend


def _mask(seed: Tensor, head: int, weights: Tensor, dropout_p: float) -> Tensor:
    levels = drawn_levels(seed + head, weights.numel()).view_as(weights)
    return (levels >= round(dropout_p * NUM_COUNTED)).to(weights.dtype) / (1.0 - dropout_p)
