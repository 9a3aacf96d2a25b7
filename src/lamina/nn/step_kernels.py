"""Triton kernels for the attention of a decoding step (nn/step_attention.py says when and why)."""

# K beams, H heads, T steps so far, S source, C channels of a head
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803 (sizes known to the compiler are written as Triton's users write them)

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


# One kernel for all lengths.
@triton.jit(do_not_specialize=["capacity"])
def look_back(query, entries, past, places, ancestry, out, query_stride, entry_stride, capacity, scale, K: tl.constexpr,
              C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr):
    """One head of a beam: its new key and value are stored, and its query looks at them and at the beam's own past."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot, beam = (row // K).to(tl.int64), row % K
    width = tl.num_programs(1) * C
    channels = tl.arange(0, BLOCK_C)
    is_channel = channels < C
    channels += head * C
    place = tl.load(places + slot).to(tl.int32)
    q = tl.load(query + row * query_stride + channels, mask=is_channel, other=0.0).to(tl.float32) * (scale * LOG2_E)
    new_key = tl.load(entries + row * entry_stride + channels, mask=is_channel, other=0.0)
    new_value = tl.load(entries + row * entry_stride + width + channels, mask=is_channel, other=0.0)
    past += slot * capacity * K * 2 * width
    own = past + (place * K + beam) * 2 * width + channels
    tl.store(own, new_key, mask=is_channel)
    tl.store(own + width, new_value, mask=is_channel)
    if K > 1:
        ancestry += (slot * K + beam) * capacity
        tl.store(ancestry + place, beam.to(tl.int16), mask=head == 0)
    # The own entry begins: there is always something to look at. A running softmax continues from there (Dao et al. 2022).
    most = tl.sum(q * new_key.to(tl.float32), 0)
    total = tl.full([], 1.0, tl.float32)
    mixed = new_value.to(tl.float32)
    for start in range(0, place, BLOCK_T):
        steps = start + tl.arange(0, BLOCK_T)
        is_past = steps < place
        entry = steps * K
        if K > 1:
            # Of a slot that is empty nothing need be written there.
            entry += tl.maximum(tl.load(ancestry + steps, mask=is_past, other=0).to(tl.int32), 0)
        at = past + entry[:, None] * (2 * width) + channels[None, :]
        mask = is_past[:, None] & is_channel[None, :]
        k = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(at + width, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(is_past, tl.sum(q[None, :] * k, 1), float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 0))
        weights, fade = tl.exp2(scores - new_most), tl.exp2(most - new_most)
        total = total * fade + tl.sum(weights, 0)
        mixed = mixed * fade + tl.sum(weights[:, None] * v, 0)
        most = new_most
    tl.store(out + row * width + channels, (mixed / total).to(out.dtype.element_ty), mask=is_channel)


@triton.jit
def read_source(query, keys, values, bias, out, query_stride, size, scale, K: tl.constexpr, C: tl.constexpr,
                BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr):
    """One head of all beams of a sentence looks at its source, which is read once."""
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_heads = tl.num_programs(1)
    beams, channels = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_C)
    is_channel = channels < C
    is_row = (beams < K)[:, None] & is_channel[None, :]
    rows = slot * K + beams
    q = tl.load(query + rows[:, None] * query_stride + head * C + channels[None, :], mask=is_row, other=0.0)
    first = (slot * num_heads + head) * size * C
    most = tl.full([BLOCK_K], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_K], tl.float32)
    mixed = tl.zeros([BLOCK_K, BLOCK_C], tl.float32)
    for start in range(0, size, BLOCK_S):
        places = start + tl.arange(0, BLOCK_S)
        is_place = places < size
        at = first + places[:, None] * C + channels[None, :]
        mask = is_place[:, None] & is_channel[None, :]
        k = tl.load(keys + at, mask=mask, other=0.0)
        v = tl.load(values + at, mask=mask, other=0.0)
        added = tl.load(bias + slot * size + places, mask=is_place, other=float("-inf")).to(tl.float32)
        scores = (tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + added[None, :]) * LOG2_E
        new_most = tl.maximum(most, tl.max(scores, 1))
        # Padding on the left may fill a whole block: there is no maximum to subtract yet.
        safe = tl.where(new_most == float("-inf"), 0.0, new_most)
        weights, fade = tl.exp2(scores - safe[:, None]), tl.exp2(most - safe)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        most = new_most
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + rows[:, None] * (num_heads * C) + head * C + channels[None, :], mixed.to(out.dtype.element_ty), mask=is_row)


@triton.jit
def add_norm(x, branch, scale, weight, bias, out, epsilon, D: tl.constexpr, BLOCK_D: tl.constexpr,
             HAS_SCALE: tl.constexpr):
    """norm(scale * x + branch) of one row, the sum rounded as it is where it is stored."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BLOCK_D)
    is_channel = channels < D
    own = tl.load(x + row * D + channels, mask=is_channel, other=0.0).to(tl.float32)
    added = tl.load(branch + row * D + channels, mask=is_channel, other=0.0).to(tl.float32)
    w = tl.load(weight + channels, mask=is_channel, other=0.0).to(tl.float32)
    b = tl.load(bias + channels, mask=is_channel, other=0.0).to(tl.float32)
    if HAS_SCALE:
        own *= tl.load(scale + channels, mask=is_channel, other=0.0).to(tl.float32)
    total = (own + added).to(x.dtype.element_ty).to(tl.float32)
    mean = tl.sum(total, 0) / D
    centred = tl.where(is_channel, total - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / D
    normed = centred * (1.0 / tl.sqrt(variance + epsilon)) * w + b
    tl.store(out + row * D + channels, normed.to(out.dtype.element_ty), mask=is_channel)


@triton.jit
def embed(ids, places, table, positions, tokens, out, last, scale, K: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
          FIRST: tl.constexpr):
    """The vector of one beam's token, scaled, and the same with its position's, each rounded as it is where it is stored."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BLOCK_D)
    is_channel = channels < D
    position = tl.minimum(tl.load(places + row // K) + FIRST, last)
    token = tl.load(table + tl.load(ids + row) * D + channels, mask=is_channel, other=0.0)
    scaled = (token.to(tl.float32) * scale).to(token.dtype)
    added = tl.load(positions + position * D + channels, mask=is_channel, other=0.0).to(token.dtype)
    tl.store(tokens + row * D + channels, scaled, mask=is_channel)
    tl.store(out + row * D + channels, (scaled.to(tl.float32) + added.to(tl.float32)).to(token.dtype), mask=is_channel)


@triton.jit
def log_softmax(scores, out, V: tl.constexpr, BLOCK_V: tl.constexpr):
    """Of one row, which a program holds whole."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK_V)
    is_place = places < V
    own = tl.load(scores + row * V + places, mask=is_place, other=float("-inf")).to(tl.float32)
    own -= tl.max(own, 0)
    tl.store(out + row * V + places, own - tl.log(tl.sum(tl.exp(own), 0)), mask=is_place)
