"""What a search on a GPU does row by row, in one kernel each: embedding a token, and adding a branch before a norm.

Kernels of so few rows take as long as it takes to launch them. Sums are rounded where torch rounds them.
"""

# B sentences, K beams, T tokens, D model_dim

from __future__ import annotations

import torch
from torch import Tensor, nn

from lamina.nn.step_attention import TYPES, has_kernels
from lamina.packed import FIRST_POSITION

WIDEST = 4096
WIDE = 256  # from which on more warps pay
LARGEST_VOCABULARY = 2**14  # that one program can hold
VOCABULARY_WARPS = 16


def suits(x: Tensor, *others: Tensor, widest: int = WIDEST) -> bool:
    """Whether the kernels know such rows, and what goes with them. (..., D)"""
    return (has_kernels(x) and x.dtype in TYPES and x.size(-1) <= widest and x.is_contiguous()
            and all(other.dtype == x.dtype and other.is_contiguous() for other in others))


def add_norm(x: Tensor, branch: Tensor, norm: nn.LayerNorm, scale: Tensor | None = None) -> Tensor:
    """norm(scale * x + branch). x, branch: (B, T, D), scale: (D,)"""
    from lamina.nn import step_kernels as kernels

    out, dim = torch.empty_like(x), x.size(-1)
    if x.numel():
        kernels.add_norm[(x.numel() // dim,)](x, branch, x if scale is None else scale, norm.weight, norm.bias, out, norm.eps,
                                              D=dim, BLOCK_D=_power(dim), HAS_SCALE=scale is not None, num_warps=_warps(dim))
    return out


def log_softmax(scores: Tensor) -> Tensor:
    """In float32. (..., V)"""
    from lamina.nn import step_kernels as kernels

    vocab = scores.size(-1)
    out = torch.empty_like(scores, dtype=torch.float32)
    kernels.log_softmax[(scores.numel() // vocab,)](scores, out, V=vocab, BLOCK_V=_power(vocab), num_warps=VOCABULARY_WARPS)
    return out


def embed(ids: Tensor, num_before: Tensor, table: Tensor, positions: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Token vectors, scaled, and the same with their positions'. ids: (B, K), num_before: (B,) -> (B, K, D) each"""
    from lamina.nn import step_kernels as kernels

    batch, num_beams = ids.shape
    dim = table.size(1)
    tokens, out = (table.new_empty(batch, num_beams, dim) for _ in range(2))
    kernels.embed[(batch * num_beams,)](ids, num_before, table, positions, tokens, out, len(positions) - 1, scale, K=num_beams,
                                        D=dim, BLOCK_D=_power(dim), FIRST=FIRST_POSITION, num_warps=_warps(dim),
                                        enable_fp_fusion=False)  # the product is rounded before the sum, also in float32
    return tokens, out


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _warps(dim: int) -> int:
    return 4 if dim >= WIDE else 1
