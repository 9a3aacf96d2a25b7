"""Attention among packed sentences: sentence i of the queries looks at sentence i of the keys.

The usual kernels for sequences of different lengths give each sequence and head a tile of its own, which for sentences of
fifteen tokens is nearly empty: they took 40 % of an update. Here a tile holds as many sentences as fit, and goes over the
keys from the first one's start to the last one's end. As operators of torch, so that the compiler takes them as they are;
keys and values, or all three, come in one tensor, and so do their gradients, which then need not be joined.
"""

# N queries, M keys, H heads, C channels of a head, R sentences

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.nn.dropout import attention_seed


class Tiles(NamedTuple):
    """Queries and keys of a tile, and warps that work on it."""

    queries: int
    keys: int
    warps: int


# By kernel: for heads of up to so many channels. Up to 128 by measurement on an H200; wider ones (surface fusion has one head)
# by what a multiprocessor holds.
TILES: dict[str, dict[int, Tiles]] = {
    "forward": {128: Tiles(64, 32, 4), 256: Tiles(32, 32, 4), 2**16: Tiles(32, 16, 8)},
    "backward_query": {128: Tiles(64, 32, 4), 256: Tiles(32, 32, 4), 2**16: Tiles(32, 16, 8)},
    "backward_memory": {128: Tiles(32, 32, 2), 256: Tiles(32, 32, 4), 2**16: Tiles(16, 16, 8)},
}


def tiles_for(kernel: str, channels: int) -> Tiles:
    return next(tiles for most, tiles in TILES[kernel].items() if channels <= most)


@torch.library.custom_op("lamina::packed_attention", mutates_args=())
def packed_attention(query: Tensor, memory: Tensor | None, query_sentences: Tensor, query_bounds: Tensor,
                     key_sentences: Tensor, key_bounds: Tensor, num_heads: int, is_causal: bool,
                     dropout_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """What each query makes of its sentence, and what else the gradient needs: normalisers (H, N) and a seed (1,).

    query: (N, D) and memory: (M, 2 * D), keys then values; or query: (N, 3 * D), queries then keys then values, and no memory
    """
    from lamina.nn import packed_kernels as kernels

    parts = _parts(query, memory)
    out = query.new_empty(len(query), parts[0].size(1))
    normaliser = query.new_empty(num_heads, len(query), dtype=torch.float32)
    seed = attention_seed(query.device) if dropout_p else query.new_zeros(1, dtype=torch.int64)
    _launch(kernels.forward, num_heads, *parts, out, normaliser, query_sentences,
            key_bounds, seed, *_sizes(parts), parts[0].size(1), is_causal, dropout_p)
    return out, normaliser, seed


@packed_attention.register_fake
def _(query: Tensor, memory: Tensor | None, query_sentences: Tensor, query_bounds: Tensor, key_sentences: Tensor,
      key_bounds: Tensor, num_heads: int, is_causal: bool, dropout_p: float) -> tuple[Tensor, Tensor, Tensor]:
    return (query.new_empty(len(query), query.size(1) // (3 if memory is None else 1)),
            query.new_empty(num_heads, len(query), dtype=torch.float32), query.new_empty(1, dtype=torch.int64))


@torch.library.custom_op("lamina::packed_attention_backward", mutates_args=())
def packed_attention_backward(out_grad: Tensor, query: Tensor, memory: Tensor | None, out: Tensor, normaliser: Tensor,
                              seed: Tensor, query_sentences: Tensor, query_bounds: Tensor, key_sentences: Tensor,
                              key_bounds: Tensor, num_heads: int, is_causal: bool, dropout_p: float) -> tuple[Tensor, Tensor]:
    """The gradients of query and memory, laid out like them; without a memory the second is empty."""
    from lamina.nn import packed_kernels as kernels

    out_grad = out_grad.contiguous()
    parts = _parts(query, memory)
    query_grad = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    memory_grad = query.new_empty(0) if memory is None else torch.empty(memory.shape, dtype=query.dtype, device=query.device)
    grads = _parts(query_grad, None if memory is None else memory_grad)
    dots = torch.empty_like(normaliser)
    num_queries, num_keys, *strides = _sizes(parts)
    _launch(kernels.backward_query, num_heads, *parts, out, out_grad, normaliser, dots,
            grads[0], query_sentences, key_bounds, seed, num_queries, num_keys, *strides, grads[0].stride(0),
            parts[0].size(1), is_causal, dropout_p)
    _launch(kernels.backward_memory, num_heads, *parts, out_grad, normaliser, dots,
            *grads[1:], key_sentences, query_bounds, seed, num_queries, num_keys, *strides, grads[1].stride(0),
            parts[0].size(1), is_causal, dropout_p)
    return query_grad, memory_grad


@packed_attention_backward.register_fake
def _(out_grad: Tensor, query: Tensor, memory: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return (query.new_empty(query.shape), query.new_empty(0 if memory is None else memory.shape))


def _keep_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, memory, *layout, ctx.num_heads, ctx.is_causal, ctx.dropout_p = inputs
    ctx.has_memory = memory is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(query, *([memory] if ctx.has_memory else []), *output, *layout)


def _gradient(ctx: Any, out_grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    query, *rest = ctx.saved_tensors
    memory = rest.pop(0) if ctx.has_memory else None
    query_grad, memory_grad = packed_attention_backward(out_grad, query, memory, *rest, ctx.num_heads, ctx.is_causal,
                                                        ctx.dropout_p)
    return (query_grad, memory_grad if ctx.has_memory else None, *[None] * 7)


packed_attention.register_autograd(_gradient, setup_context=_keep_for_gradient)


def _parts(query: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys and values as views. (N, D), (M, D), (M, D)"""
    return query.chunk(3, dim=1) if memory is None else (query, *memory.chunk(2, dim=1))


def _sizes(parts: tuple[Tensor, ...]) -> list[int]:
    query, key, value = parts
    assert all(part.stride(1) == 1 for part in parts), "channels lie side by side"
    return [len(query), len(key), query.stride(0), key.stride(0), value.stride(0)]


def _launch(kernel: Any, num_heads: int, query: Tensor, key: Tensor, *arguments: Any) -> None:
    *others, width, is_causal, dropout_p = arguments
    channels = width // num_heads
    name = kernel.fn.__name__
    tiles = tiles_for(name, channels)
    # One program a tile of what the kernel computes: keys, or else queries.
    count = -(-len(key) // tiles.keys) if name == "backward_memory" else -(-len(query) // tiles.queries)
    kernel[(count, num_heads)](query, key, *others, channels**-0.5, dropout_p, C=channels,
                               BLOCK_C=max(16, 1 << (channels - 1).bit_length()), BLOCK_M=tiles.queries, BLOCK_N=tiles.keys,
                               IS_CAUSAL=is_causal, HAS_DROPOUT=dropout_p > 0, num_warps=tiles.warps)
