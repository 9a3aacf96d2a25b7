"""The attention of a decoding step on a GPU in one kernel each: a beam looks at its past, a sentence's beams at its source.

torch's attention is made for many queries and takes a mask over all beams' pasts. Here each beam reads its own past through
the ancestry, and stores its new entry on the way; beams of a sentence read its source together. Blocks have a fixed size and
are added up in order: what a sentence finds does not depend on how long or wide its neighbours are.

All kernels of a search's steps, these, nn/step_rows.py's and decode/fused_choice.py's, are on with LAMINA_STEP_KERNELS=1.
The attentions were compared with float64 on an H200, and all were timed there (notes/log.md); the tests have not run with them.
"""

# B sentences, K beams, H heads, S source, C channels of a head, D model_dim

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lamina.nn.packed_attention import HAS_TRITON, precision_of_products

if TYPE_CHECKING:
    from lamina.nn.cache import KeyValues, Turn

SWITCH = "LAMINA_STEP_KERNELS"
TYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 128  # channels of a head: tiles of wider ones exceed what a GPU has room for
MOST_BEAMS = 64
SMALLEST_TILE = 16  # rows and columns that matrix units multiply at least
# Steps of the past, and places of the source, that are looked at together.
STEPS = 32
PLACES = 32
WIDE = 64  # channels from which on more warps pay
WARPS = 4
FEW_WARPS = 2


def has_kernels(x: Tensor) -> bool:
    """Whether they are on. Only a search computes in inference mode: what has gradients or is compiled goes without."""
    return (not torch.compiler.is_compiling() and torch.is_inference_mode_enabled() and x.is_cuda and HAS_TRITON
            and os.environ.get(SWITCH) == "1")


def suits(query: Tensor) -> bool:
    """Whether the kernels know such queries. (B, H, K, C)"""
    return has_kernels(query) and query.dtype in TYPES and query.size(3) <= WIDEST and query.size(2) <= MOST_BEAMS


def look_back(query: Tensor, entries: Tensor, past: KeyValues, turn: Turn) -> Tensor:
    """Each beam stores its key and value, and looks at its past. query: (B, K, D), entries: (B, K, 2 * D) -> (B, K, D)"""
    from lamina.nn import step_kernels as kernels

    batch, num_beams, dim = query.shape
    channels = dim // past.num_heads
    out = query.new_empty(query.shape)
    kernels.look_back[(batch * num_beams, past.num_heads)](
        query, entries, past.data, turn.places, turn.ancestry, out, _stride(query), _stride(entries), past.data.size(1),
        channels**-0.5, K=num_beams, C=channels, BLOCK_C=_power(channels), BLOCK_T=STEPS, num_warps=_warps(channels))
    return out


def read_source(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """All beams of a sentence look at its source. query: (B, K, D), keys, values: (B, H, S, C), bias: (B, 1, 1, S)"""
    from lamina.nn import step_kernels as kernels

    (batch, num_beams, _), (_, num_heads, size, channels) = query.shape, keys.shape
    assert all(part.is_contiguous() for part in (keys, values, bias)), "memory lies in one piece"
    out = query.new_empty(query.shape)
    kernels.read_source[(batch, num_heads)](
        query, keys, values, bias, out, _stride(query), size, channels**-0.5, K=num_beams, C=channels,
        BLOCK_K=_power(num_beams), BLOCK_C=_power(channels), BLOCK_S=PLACES,
        PRECISION=precision_of_products() if query.dtype == torch.float32 else "tf32", num_warps=_warps(channels))
    return out


def _stride(rows: Tensor) -> int:
    """Between one beam's and the next one's."""
    batch, num_beams, _ = rows.shape
    stride = rows.stride(1) if num_beams > 1 else rows.stride(0)
    assert rows.stride(2) == 1, "channels lie side by side"
    assert batch == 1 or rows.stride(0) == num_beams * stride, "beams lie side by side"
    return stride


def _power(number: int) -> int:
    return max(SMALLEST_TILE, 1 << (number - 1).bit_length())


def _warps(channels: int) -> int:
    return WARPS if channels >= WIDE else FEW_WARPS
