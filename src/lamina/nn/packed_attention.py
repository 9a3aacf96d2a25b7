"""Attention among packed sentences: sentence i of the queries looks at sentence i of the keys.

The usual kernels for sequences of different lengths give each sequence and head a tile of its own, which for sentences of
fifteen tokens is nearly empty: they took 40 % of an update. Here a tile holds as many sentences as fit, and goes over the
keys from the first one's start to the last one's end. As operators of torch, so that the compiler takes them as they are;
keys and values, or all three, come in one tensor, and so do their gradients, which then need not be joined.
"""

# N queries, M keys, H heads, C channels of a head, R sentences

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from shutil import which
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lamina.nn import dense_attention
from lamina.nn.compiling import is_strict
from lamina.nn.dropout import attention_seed

# It builds its launchers with a C compiler.
HAS_TRITON = find_spec("triton") is not None and any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))
WIDEST_OF_TILES = 512  # channels of a head; beyond, a mask over all pairs of tokens has to do


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
# Numbers of float32 take twice the room.
FLOAT32_TILES: dict[str, dict[int, Tiles]] = {
    "forward": {128: Tiles(32, 32, 4), 256: Tiles(32, 16, 4), 2**16: Tiles(16, 16, 8)},
    "backward_query": {128: Tiles(32, 32, 4), 256: Tiles(32, 16, 4), 2**16: Tiles(16, 16, 8)},
    "backward_memory": {128: Tiles(32, 32, 4), 256: Tiles(16, 32, 4), 2**16: Tiles(16, 16, 8)},
}
# Kernels that a thread compiles, by what they are for: device, type, channels of a head, is_causal, has_dropout.
_AHEAD: dict[tuple[Any, ...], Thread] = {}
FLOAT32_STAGES = 2  # tiles of keys that are on their way at once; torch's default of 3 would not fit


def tiles_for(kernel: str, channels: int, dtype: torch.dtype = torch.bfloat16) -> Tiles:
    tiles_of = FLOAT32_TILES if dtype == torch.float32 else TILES
    return next(tiles for most, tiles in tiles_of[kernel].items() if channels <= most)


def precision_of_products() -> str:
    """Of float32 numbers, as torch's own: exact, or of 10 bits where TF32 is asked for."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@torch.library.custom_op("lamina::packed_attention", mutates_args=())
def packed_attention(query: Tensor, memory: Tensor | None, query_sentences: Tensor, query_bounds: Tensor,
                     key_sentences: Tensor, key_bounds: Tensor, num_heads: int, is_causal: bool,
                     dropout_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """What each query makes of its sentence, and what else the gradient needs: normalisers (H, N) and a seed (1,).

    query: (N, D) and memory: (M, 2 * D), keys then values; or query: (N, 3 * D), queries then keys then values, and no memory
    """
    parts = _parts(query, memory)
    seed = attention_seed(query.device) if dropout_p else query.new_zeros(1, dtype=torch.int64)
    if not _has_kernels(query.device, query.dtype, parts[0].size(1) // num_heads, is_causal, dropout_p):
        out = dense_attention.forward(*parts, query_sentences, key_sentences, seed, num_heads, is_causal, dropout_p)
        return out, query.new_empty(num_heads, len(query), dtype=torch.float32), seed
    from lamina.nn import packed_kernels as kernels

    out = query.new_empty(len(query), parts[0].size(1))
    normaliser = query.new_empty(num_heads, len(query), dtype=torch.float32)
    _launch(kernels.forward, num_heads, *parts, out, normaliser, query_sentences,
            key_bounds, seed, *_sizes(parts), parts[0].size(1), is_causal, dropout_p)
    return out, normaliser, seed


@packed_attention.register_fake
def _(query: Tensor, memory: Tensor | None, query_sentences: Tensor, query_bounds: Tensor, key_sentences: Tensor,
      key_bounds: Tensor, num_heads: int, is_causal: bool, dropout_p: float) -> tuple[Tensor, Tensor, Tensor]:
    width = query.size(1) // (3 if memory is None else 1)
    compile_ahead(query.device, query.dtype, width // num_heads, is_causal=is_causal, has_dropout=dropout_p > 0)
    return (query.new_empty(len(query), width),
            query.new_empty(num_heads, len(query), dtype=torch.float32), query.new_empty(1, dtype=torch.int64))


@torch.library.custom_op("lamina::packed_attention_backward", mutates_args=())
def packed_attention_backward(out_grad: Tensor, query: Tensor, memory: Tensor | None, out: Tensor, normaliser: Tensor,
                              seed: Tensor, query_sentences: Tensor, query_bounds: Tensor, key_sentences: Tensor,
                              key_bounds: Tensor, num_heads: int, is_causal: bool, dropout_p: float) -> tuple[Tensor, Tensor]:
    """The gradients of query and memory, laid out like them; without a memory the second is empty."""
    out_grad = out_grad.contiguous()
    parts = _parts(query, memory)
    query_grad = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    memory_grad = query.new_empty(0) if memory is None else torch.empty(memory.shape, dtype=query.dtype, device=query.device)
    grads = _parts(query_grad, None if memory is None else memory_grad)
    if not _has_kernels(query.device, query.dtype, parts[0].size(1) // num_heads, is_causal, dropout_p):
        dense_attention.backward_(out_grad, *parts, out, *grads, query_sentences, key_sentences, seed, num_heads, is_causal,
                                  dropout_p)
        return query_grad, memory_grad
    from lamina.nn import packed_kernels as kernels

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


def _parts(query: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views. (N, D), (M, D), (M, D)"""
    query, key, value = query.chunk(3, dim=1) if memory is None else (query, *memory.chunk(2, dim=1))
    return query, key, value


def _sizes(parts: tuple[Tensor, ...]) -> list[int]:
    query, key, value = parts
    assert all(part.stride(1) == 1 for part in parts), "channels lie side by side"
    return [len(query), len(key), query.stride(0), key.stride(0), value.stride(0)]


def _has_kernels(device: torch.device, dtype: torch.dtype, channels: int, is_causal: bool, dropout_p: float) -> bool:
    """Otherwise plain operations of torch do the same, with a mask over all pairs of tokens."""
    if device.type != "cuda" or not HAS_TRITON or channels > WIDEST_OF_TILES or dtype == torch.float64:
        return False
    if (thread := _AHEAD.get((device, dtype, channels, is_causal, dropout_p > 0))) is not None:
        thread.join()
    if dtype == torch.float32 and (reason := _failure(device, dtype, channels, is_causal, dropout_p > 0)):
        warnings.warn("attention over packed rows goes without its kernels for float32, which takes several times as long: "
                      f"{reason}", stacklevel=2)
        return False
    return True


def why_no_float32(device: torch.device, channels: int, *, has_dropout: bool) -> str:
    """Why attention over packed rows has no kernels for float32 on this GPU; empty if it has."""
    if not HAS_TRITON:
        return "they need Triton and a C compiler (gcc, clang or what CC names)"
    if channels > WIDEST_OF_TILES:
        return f"they are made for heads of up to {WIDEST_OF_TILES} channels, and the model's have {channels}"
    return _failure(device, torch.float32, channels, True, has_dropout)


def compile_ahead(device: torch.device, dtype: torch.dtype, channels: int, *, is_causal: bool, has_dropout: bool) -> None:
    """In another thread: the kernels are ready when torch.compile, which asks for shapes alone, is done with what is around
    them. Their compiler is no Python for most of its time, so both work at once.
    """
    use = (device, dtype, channels, is_causal, has_dropout)
    if device.type != "cuda" or not HAS_TRITON or channels > WIDEST_OF_TILES or dtype.itemsize != 2 or use in _AHEAD:
        return
    _AHEAD[use] = Thread(target=_compile, args=use, name="attention kernels")
    _AHEAD[use].start()


def _compile(device: torch.device, *use: Any) -> None:
    """What goes wrong here goes wrong again where the kernels are used, and is told there."""
    with torch.cuda.device(device), suppress(Exception):
        _failure(device, *use)


def _failure(device: torch.device, dtype: torch.dtype, channels: int, is_causal: bool, has_dropout: bool) -> str:
    """Why the kernels do not work, by trying them on a few numbers; empty if they do."""
    return _tried(device, dtype, channels, is_causal, has_dropout, precision_of_products())


@cache
def _tried(device: torch.device, dtype: torch.dtype, channels: int, is_causal: bool, has_dropout: bool, precision: str) -> str:
    """Tiles of float32, for one, may exceed what a GPU has room for. `precision` is part of what is compiled."""
    from lamina.nn import packed_kernels as kernels

    # As many as Triton takes for any multiple of 16, which the rows of a run are.
    num_tokens, dropout_p = 32, 0.5 if has_dropout else 0.0
    qkv = torch.zeros(num_tokens, 3 * channels, device=device, dtype=dtype)
    parts, grads = _parts(qkv, None), _parts(torch.empty_like(qkv), None)
    sentences = torch.ones(num_tokens, dtype=torch.int32, device=device)
    bounds = torch.zeros(2, dtype=torch.int32, device=device)
    bounds[1:].fill_(num_tokens)
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    out, normaliser = qkv.new_empty(num_tokens, channels), qkv.new_empty(1, num_tokens, dtype=torch.float32)
    num_queries, num_keys, *strides = _sizes(parts)
    size = (num_queries, num_keys, *strides)
    try:
        _launch(kernels.forward, 1, *parts, out, normaliser, sentences, bounds, seed, *size, channels, is_causal, dropout_p)
        for kernel, own in ((kernels.backward_query, (out, out, normaliser, normaliser, grads[0])),
                            (kernels.backward_memory, (out, normaliser, normaliser, *grads[1:]))):
            _launch(kernel, 1, *parts, *own, sentences, bounds, seed, *size, grads[0].stride(0), channels, is_causal, dropout_p)
    except Exception as error:
        # Whatever a compiler or a driver says.
        if is_strict():
            raise
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _launch(kernel: Any, num_heads: int, query: Tensor, key: Tensor, *arguments: Any) -> None:
    *others, width, is_causal, dropout_p = arguments
    channels = width // num_heads
    name = kernel.fn.__name__
    tiles = tiles_for(name, channels, query.dtype)
    is_wide = query.dtype == torch.float32
    stages = {"num_stages": FLOAT32_STAGES} if is_wide else {}
    # One program a tile of what the kernel computes: keys, or else queries.
    count = -(-len(key) // tiles.keys) if name == "backward_memory" else -(-len(query) // tiles.queries)
    kernel[(count, num_heads)](query, key, *others, channels**-0.5, dropout_p, C=channels,
                               BLOCK_C=max(16, 1 << (channels - 1).bit_length()), BLOCK_M=tiles.queries, BLOCK_N=tiles.keys,
                               IS_CAUSAL=is_causal, HAS_DROPOUT=dropout_p > 0,
                               PRECISION=precision_of_products() if is_wide else "tf32", num_warps=tiles.warps, **stages)
