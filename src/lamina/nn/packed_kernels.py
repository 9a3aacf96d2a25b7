"""Triton kernels for attention among packed sentences (nn/packed_attention.py says when and why)."""

# M queries of a tile, N keys of a tile, C channels of a head
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803 (tile sizes are compile-time constants, written as Triton's users write them)

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _keep(seed, head, rows, columns, num_columns, dropout_p):
    """Which weights stay: the same in all kernels, whatever their tiles."""
    return tl.rand(seed + head, rows[:, None] * num_columns + columns[None, :]) >= dropout_p


@triton.jit
def _load(start, places, stride, channels, is_place, C: tl.constexpr):
    """Rows of one head, zero where there are none. (places, channels)"""
    return tl.load(start + places[:, None] * stride + channels[None, :], mask=is_place[:, None] & (channels < C)[None, :],
                   other=0.0)


@triton.jit
def _store(start, places, stride, channels, is_place, values, C: tl.constexpr):
    tl.store(start + places[:, None] * stride + channels[None, :], values.to(start.dtype.element_ty),
             mask=is_place[:, None] & (channels < C)[None, :])


@triton.jit
def _ranges(sentences, bounds, places, is_place):
    """Where the sentence with the same number lies on the other side."""
    number = tl.load(sentences + places, mask=is_place, other=1)
    return (tl.where(is_place, tl.load(bounds + number - 1, mask=is_place, other=0), 0),
            tl.where(is_place, tl.load(bounds + number, mask=is_place, other=0), 0))


@triton.jit
def forward(query, key, value, out, normaliser, query_sentences, key_bounds, seed_at, num_queries, num_keys, query_stride,
            key_stride, value_stride, scale, dropout_p, C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
            BLOCK_N: tl.constexpr, IS_CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """A tile of queries goes over the keys that any of them may look at, with a running softmax (Dao et al. 2022)."""
    head = tl.program_id(1)
    rows, channels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_C)
    is_row = rows < num_queries
    first, stop = _ranges(query_sentences, key_bounds, rows, is_row)
    if IS_CAUSAL:
        stop = tl.minimum(stop, rows + 1)
    q = _load(query + head * C, rows, query_stride, channels, is_row, C)
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for start in range(tl.min(tl.where(is_row, first, num_keys)), tl.max(stop), BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        is_column = columns < num_keys
        k = _load(key + head * C, columns, key_stride, channels, is_column, C)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        scores = tl.where((columns[None, :] >= first[:, None]) & (columns[None, :] < stop[:, None]), scores, float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        # A row that has seen no key of its own yet has no maximum to subtract.
        safe = tl.where(new_most == float("-inf"), 0.0, new_most)
        weights, fade = tl.exp2(scores - safe[:, None]), tl.exp2(most - safe)
        total = total * fade + tl.sum(weights, 1)
        most = new_most
        if HAS_DROPOUT:
            keep = _keep(tl.load(seed_at), head, rows, columns, num_keys, dropout_p)
            weights = tl.where(keep, weights / (1.0 - dropout_p), 0.0)
        v = _load(value + head * C, columns, value_stride, channels, is_column, C)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    is_alone = total == 0.0
    mixed = mixed / tl.where(is_alone, 1.0, total)[:, None]
    _store(out + head * C, rows, tl.num_programs(1) * C, channels, is_row, mixed, C)
    tl.store(normaliser + head * num_queries + rows, tl.where(is_alone, 0.0, most + tl.log2(total)), mask=is_row)


@triton.jit
def backward_query(query, key, value, out, out_grad, normaliser, dots, query_grad, query_sentences, key_bounds, seed_at,
                   num_queries, num_keys, query_stride, key_stride, value_stride, grad_stride, scale, dropout_p,
                   C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                   IS_CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """The gradient of a tile of queries, and the product of each row with its gradient, which the other kernel reads."""
    head = tl.program_id(1)
    width = tl.num_programs(1) * C
    rows, channels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_C)
    is_row = rows < num_queries
    first, stop = _ranges(query_sentences, key_bounds, rows, is_row)
    if IS_CAUSAL:
        stop = tl.minimum(stop, rows + 1)
    q = _load(query + head * C, rows, query_stride, channels, is_row, C)
    mixed_grad = _load(out_grad + head * C, rows, width, channels, is_row, C)
    mixed = _load(out + head * C, rows, width, channels, is_row, C)
    dot = tl.sum(mixed.to(tl.float32) * mixed_grad.to(tl.float32), 1)
    tl.store(dots + head * num_queries + rows, dot, mask=is_row)
    log_total = tl.load(normaliser + head * num_queries + rows, mask=is_row, other=0.0)
    gradient = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for start in range(tl.min(tl.where(is_row, first, num_keys)), tl.max(stop), BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        is_column = columns < num_keys
        k = _load(key + head * C, columns, key_stride, channels, is_column, C)
        v = _load(value + head * C, columns, value_stride, channels, is_column, C)
        is_seen = (columns[None, :] >= first[:, None]) & (columns[None, :] < stop[:, None])
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        weights = tl.where(is_seen, tl.exp2(scores - log_total[:, None]), 0.0)
        weights_grad = tl.dot(mixed_grad, tl.trans(v), input_precision=PRECISION)
        if HAS_DROPOUT:
            keep = _keep(tl.load(seed_at), head, rows, columns, num_keys, dropout_p)
            weights_grad = tl.where(keep, weights_grad / (1.0 - dropout_p), 0.0)
        gradient += tl.dot((weights * (weights_grad - dot[:, None])).to(k.dtype), k, input_precision=PRECISION)
    _store(query_grad + head * C, rows, grad_stride, channels, is_row, gradient * scale, C)


@triton.jit
def backward_memory(query, key, value, out_grad, normaliser, dots, key_grad, value_grad, key_sentences, query_bounds, seed_at,
                    num_queries, num_keys, query_stride, key_stride, value_stride, grad_stride, scale, dropout_p,
                    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                    IS_CAUSAL: tl.constexpr, HAS_DROPOUT: tl.constexpr, PRECISION: tl.constexpr):
    """The gradients of a tile of keys and their values: it goes over the queries that may look at any of them."""
    head = tl.program_id(1)
    width = tl.num_programs(1) * C
    columns, channels = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    is_column = columns < num_keys
    first, stop = _ranges(key_sentences, query_bounds, columns, is_column)
    if IS_CAUSAL:
        first = tl.maximum(first, columns)
    k = _load(key + head * C, columns, key_stride, channels, is_column, C)
    v = _load(value + head * C, columns, value_stride, channels, is_column, C)
    own_key_grad = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    own_value_grad = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    for start in range(tl.min(tl.where(is_column, first, num_queries)), tl.max(stop), BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        is_row = rows < num_queries
        q = _load(query + head * C, rows, query_stride, channels, is_row, C)
        mixed_grad = _load(out_grad + head * C, rows, width, channels, is_row, C)
        log_total = tl.load(normaliser + head * num_queries + rows, mask=is_row, other=0.0)
        dot = tl.load(dots + head * num_queries + rows, mask=is_row, other=0.0)
        is_seen = (rows[:, None] >= first[None, :]) & (rows[:, None] < stop[None, :])
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        weights = tl.where(is_seen, tl.exp2(scores - log_total[:, None]), 0.0)
        weights_grad = tl.dot(mixed_grad, tl.trans(v), input_precision=PRECISION)
        kept = weights
        if HAS_DROPOUT:
            keep = _keep(tl.load(seed_at), head, rows, columns, num_keys, dropout_p)
            weights_grad = tl.where(keep, weights_grad / (1.0 - dropout_p), 0.0)
            kept = tl.where(keep, weights / (1.0 - dropout_p), 0.0)
        own_value_grad += tl.dot(tl.trans(kept.to(q.dtype)), mixed_grad, input_precision=PRECISION)
        own_key_grad += tl.dot(tl.trans((weights * (weights_grad - dot[:, None])).to(q.dtype)), q, input_precision=PRECISION)
    _store(key_grad + head * C, columns, grad_stride, channels, is_column, own_key_grad * scale, C)
    _store(value_grad + head * C, columns, grad_stride, channels, is_column, own_value_grad, C)
