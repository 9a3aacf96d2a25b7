"""Triton kernels that take rows and normalise them, and put both gradients back (nn/taken_norm.py says why)."""

# N rows of the whole, P rows taken, D numbers of a row; R rows of a tile
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# ruff: noqa: N803 (tile sizes are compile-time constants, written as Triton's users write them)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward(x, weight, bias, taken, normed, statistics, num_rows, num_taken, eps, D: tl.constexpr, BLOCK_D: tl.constexpr,
            BLOCK_R: tl.constexpr):
    """Each program normalises a tile of the rows that are taken."""
    rows, columns = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    is_row, is_column = rows < num_taken, columns < D
    is_in = is_row[:, None] & is_column[None, :]
    places = tl.minimum(tl.load(taken + rows, mask=is_row, other=0), num_rows - 1).to(tl.int64)
    values = tl.load(x + places[:, None] * D + columns[None, :], mask=is_in, other=0.0).to(tl.float32)
    mean = tl.sum(values, 1) / D
    values = tl.where(is_in, values - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(values * values, 1) / D + eps)
    factor = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    out = values * scale[:, None] * factor[None, :] + shift[None, :]
    tl.store(normed + rows.to(tl.int64)[:, None] * D + columns[None, :], out.to(normed.dtype.element_ty), mask=is_in)
    tl.store(statistics + rows, mean, mask=is_row)
    tl.store(statistics + num_taken + rows, scale, mask=is_row)


@triton.jit
def backward(normed_grad, own_grad, passed_grad, x, weight, statistics, back, x_grad, sums, num_rows, num_taken,
             D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr):
    """Each program goes over some tiles of the whole, so that sums over rows are few: one of each weight a program."""
    columns = tl.arange(0, BLOCK_D)
    is_column = columns < D
    factor = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    weight_sums = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    bias_sums = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_R, num_rows, tl.num_programs(0) * BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        is_row = rows < num_rows
        places = tl.load(back + rows, mask=is_row, other=num_taken)
        is_taken = places < num_taken
        there = rows.to(tl.int64)[:, None] * D + columns[None, :]
        here = places.to(tl.int64)[:, None] * D + columns[None, :]
        is_in = is_taken[:, None] & is_column[None, :]
        mean = tl.load(statistics + places, mask=is_taken, other=0.0)
        scale = tl.load(statistics + num_taken + places, mask=is_taken, other=0.0)
        values = tl.load(x + there, mask=is_in, other=0.0).to(tl.float32)
        gradient = tl.load(normed_grad + here, mask=is_in, other=0.0).to(tl.float32)
        passed = tl.load(own_grad + here, mask=is_in, other=0.0).to(tl.float32)
        passed += tl.load(passed_grad + there, mask=(is_row & (places >= num_taken))[:, None] & is_column[None, :],
                          other=0.0).to(tl.float32)
        values = tl.where(is_in, (values - mean[:, None]) * scale[:, None], 0.0)
        weight_sums += gradient * values
        bias_sums += gradient
        gradient *= factor[None, :]
        slope = tl.sum(gradient * values, 1) / D
        centre = tl.sum(gradient, 1) / D
        passed += scale[:, None] * (gradient - centre[:, None] - values * slope[:, None])
        tl.store(x_grad + there, passed.to(x_grad.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
    own = sums + tl.program_id(0) * 2 * D + columns
    tl.store(own, tl.sum(weight_sums, 0), mask=is_column)
    tl.store(own + D, tl.sum(bias_sums, 0), mask=is_column)
