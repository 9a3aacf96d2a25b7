"""Rows taken out of a whole and normalised, as a Pre-LN layer begins that some sentences leave out (LayerDrop).

A compiler makes of the gradient a kernel for the rows' own, two for each sum over rows, and one that puts them back among the
others. Here one kernel does all of it, and reads everything once. It also chooses among the gradients of rows that passed the
layer, which nn/subset.py's `put_begun` hands to it whole.
"""

# N rows of the whole, P rows taken, D numbers of a row, G programs

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.nn.packed_attention import HAS_TRITON

WIDEST = 4096  # numbers of a row that a program holds
TILE = 2048  # numbers of a tile: so many rows of a model that is 512 wide make four
A_WARP = 512  # numbers
MOST_PROGRAMS = 528  # of the gradient: four for each multiprocessor of an H200


@torch.library.custom_op("lamina::take_and_norm", mutates_args=())
def take_and_norm(x: Tensor, weight: Tensor, bias: Tensor, taken: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(P, D), and what the gradient needs: each row's mean, and what it is multiplied by. (2, P)"""
    normed = x.new_empty(len(taken), x.size(1))
    statistics = x.new_empty(2, len(taken), dtype=_exact(x))
    if not has_kernels(x):
        rows = x.index_select(0, taken.clamp(max=len(x) - 1)).to(statistics.dtype)
        mean = rows.mean(dim=1)
        scale = (rows.var(dim=1, correction=0) + eps).rsqrt()
        normed.copy_((rows - mean[:, None]) * scale[:, None] * weight + bias)
        return normed, torch.stack((mean, scale))
    from lamina.nn import taken_norm_kernels as kernels

    x, tile = x.contiguous(), _tile(x)
    kernels.forward[(-(-len(taken) // tile["BLOCK_R"]),)](x, weight, bias, taken, normed, statistics, len(x), len(taken), eps,
                                                          **tile)
    return normed, statistics


@take_and_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, taken: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(taken), x.size(1)), x.new_empty(2, len(taken), dtype=_exact(x))


@torch.library.custom_op("lamina::take_and_norm_backward", mutates_args=())
def take_and_norm_backward(normed_grad: Tensor, own_grad: Tensor, passed_grad: Tensor, x: Tensor, weight: Tensor,
                           statistics: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """x's gradient, and parts of weight's and bias' that are to be summed up. (N, D), (G, 2, D)

    `passed_grad` counts for those rows alone that are not taken.
    """
    normed_grad, own_grad, passed_grad, x = (rows.contiguous() for rows in (normed_grad, own_grad, passed_grad, x))
    x_grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = x.new_empty(_num_programs(x), 2, x.size(1), dtype=_exact(x))
    if not has_kernels(x):
        is_taken = (back < len(own_grad))[:, None]
        places = back.clamp(max=len(own_grad) - 1)
        mean, scale = statistics.index_select(1, places)[:, :, None]
        values = (x.to(sums.dtype) - mean) * scale
        gradient = normed_grad.index_select(0, places).to(sums.dtype).masked_fill(~is_taken, 0.0)
        sums.zero_()
        sums[0, 0], sums[0, 1] = (gradient * values).sum(dim=0), gradient.sum(dim=0)
        gradient = gradient * weight
        centre, slope = gradient.mean(dim=1, keepdim=True), (gradient * values).mean(dim=1, keepdim=True)
        gradient = own_grad.index_select(0, places) + scale * (gradient - centre - values * slope)
        return x_grad.copy_(torch.where(is_taken, gradient, passed_grad)), sums
    from lamina.nn import taken_norm_kernels as kernels

    kernels.backward[(len(sums),)](normed_grad, own_grad, passed_grad, x, weight, statistics, back, x_grad, sums, len(x),
                                   len(own_grad), **_tile(x))
    return x_grad, sums


@take_and_norm_backward.register_fake
def _(normed_grad: Tensor, own_grad: Tensor, passed_grad: Tensor, x: Tensor, weight: Tensor, statistics: Tensor,
      back: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(_num_programs(x), 2, x.size(1), dtype=_exact(x))


class TakeAndNorm(torch.autograd.Function):
    """The rows taken, the same normalised, and all rows, for `put` alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, taken: Tensor, back: Tensor,
                eps: float) -> tuple[Tensor, Tensor, Tensor]:
        normed, statistics = take_and_norm(x, weight, bias, taken, eps)
        ctx.save_for_backward(x, weight, statistics, back)
        return x.index_select(0, taken.clamp(max=x.size(0) - 1)), normed, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, own_grad: Tensor, normed_grad: Tensor, passed_grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, statistics, back = ctx.saved_tensors
        x_grad, sums = take_and_norm_backward(normed_grad, own_grad, passed_grad, x, weight, statistics, back)
        weight_grad, bias_grad = sums.sum(dim=0).to(weight.dtype)
        return x_grad, weight_grad, bias_grad, None, None, None


def has_kernels(x: Tensor) -> bool:
    """For rows like these; the operators do without them what they compute, for tests."""
    return x.device.type == "cuda" and HAS_TRITON and x.size(-1) <= WIDEST and x.dtype != torch.float64


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _tile(x: Tensor) -> dict[str, int]:
    block = max(16, 1 << (x.size(1) - 1).bit_length())
    rows = max(1, TILE // block)
    return {"D": x.size(1), "BLOCK_D": block, "BLOCK_R": rows, "num_warps": max(1, min(8, rows * block // A_WARP))}


def _num_programs(x: Tensor) -> int:
    return min(MOST_PROGRAMS, -(-len(x) // _tile(x)["BLOCK_R"]))
