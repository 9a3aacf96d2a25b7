"""Some sentences of a batch, taken out of it and put back: a layer then runs for them alone (LayerDrop).

Places are unique, so that the gradient of taking is putting, and the other way round: nothing is added up, where torch's own
would do so atomically, and slowly. What stands at the pads of a subset comes from somewhere and goes nowhere: where there may
be some, all is gathered where a number is wanted, and a compiler joins that to what comes before and after.
"""

# N places of the whole, or padded rows; P places of the subset; W numbers at each: D, or T * D

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lamina.nn.layout import AnyLayout, Layout, PackedLayout
from lamina.nn.taken_norm import TakeAndNorm, has_kernels
from lamina.packed import PAD_POSITION, Places


def take(x: Tensor, places: Places) -> Tensor:
    """The subset's part of x. Packed (1, N, D) -> (1, P, D), or padded (N, T, D) -> (P, T, D)"""
    taken = _Take.apply(_places_of(x, places), places.taken, places.back, places.is_full)
    return taken.view(*x.shape[:-2], -1, x.size(-1)) if places.bounds is not None else taken.view(-1, *x.shape[1:])


def put(x: Tensor, own: Tensor, places: Places) -> Tensor:
    """x with the subset's part replaced."""
    found: Tensor = _Put.apply(_places_of(x, places), _places_of(own, places), places.taken, places.back, places.is_full)
    return found.view(x.shape)


class Begun(NamedTuple):
    """How a layer begins whose first norm is computed while the subset's part is taken."""

    own: Tensor  # (1, P, D)
    normed: Tensor  # (1, P, D)
    passed: Tensor  # (N, D), all of x: for put_begun alone


# On an H200 one kernel for both pays at 16,384 rows (18L-18L: 0.92 to 0.89 of the time without LayerDrop), and not at 4,096.
LEAST_ROWS = 8192


def begins_with_norm(x: Tensor, places: Places, norm: nn.LayerNorm) -> bool:
    """Whether taking and the norm are one kernel, which there is for many packed rows on a GPU."""
    return (has_kernels(x) and places.bounds is not None and x.size(1) >= LEAST_ROWS
            and norm.bias is not None and norm.weight.dtype == x.dtype)


def take_and_norm(x: Tensor, places: Places, norm: nn.LayerNorm) -> Begun:
    own, normed, passed = TakeAndNorm.apply(x.flatten(0, 1), norm.weight, norm.bias, places.taken, places.back, norm.eps)
    return Begun(own[None], normed[None], passed)


def put_begun(begun: Begun, own: Tensor, places: Places) -> Tensor:
    """What the layer made of its part, among all that passed it."""
    return _PutBegun.apply(begun.passed, own.flatten(0, 1), places.taken, places.back)[None]


def lay_out_part(layout: AnyLayout, places: Places) -> AnyLayout:
    """How the subset lies."""
    if isinstance(layout, Layout):
        rows = places.taken if places.is_full else places.taken.clamp(max=len(layout.is_pad) - 1)
        return Layout(layout.is_pad.index_select(0, rows), layout.may_attend.index_select(0, rows))
    assert places.sentences is not None
    assert places.bounds is not None
    num_places = layout.positions.size(1)
    tokens = places.taken.clamp(max=num_places - 1)
    positions = layout.positions.index_select(1, tokens).masked_fill((places.taken >= num_places)[None], PAD_POSITION)
    return PackedLayout(layout.ids.index_select(1, tokens), positions, places.sentences, places.bounds, places.longest)


def _places_of(x: Tensor, places: Places) -> Tensor:
    """(N, W)"""
    return x.flatten(0, 1) if places.bounds is not None else x.flatten(1)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taken: Tensor, back: Tensor, is_full: bool) -> Tensor:
        ctx.is_full = is_full
        ctx.save_for_backward(taken, back)
        return x.index_select(0, taken if is_full else taken.clamp(max=x.size(0) - 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        taken, back = ctx.saved_tensors
        if ctx.is_full:
            return grad.new_zeros(back.size(0), grad.size(1)).index_copy_(0, taken.long(), grad), None, None, None
        return _found_or_zero(grad, back), None, None, None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Tensor, taken: Tensor, back: Tensor, is_full: bool) -> Tensor:
        ctx.is_full = is_full
        ctx.save_for_backward(taken, back)
        if is_full:
            return x.index_copy(0, taken.long(), own)
        last = own.size(0) - 1
        return torch.where((back <= last)[:, None], own.index_select(0, back.clamp(max=last)), x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        taken, back = ctx.saved_tensors
        if ctx.is_full:
            return grad.index_fill(0, taken.long(), 0.0), grad.index_select(0, taken), None, None, None
        return grad.masked_fill((back < taken.size(0))[:, None], 0.0), _found_or_zero(grad, taken), None, None, None


class _PutBegun(torch.autograd.Function):
    """The gradient of what passed has that of all rows: TakeAndNorm knows which of them did."""

    @staticmethod
    def forward(ctx: Any, passed: Tensor, own: Tensor, taken: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(taken)
        last = own.size(0) - 1
        return torch.where((back <= last)[:, None], own.index_select(0, back.clamp(max=last)), passed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        taken, = ctx.saved_tensors
        return grad, _found_or_zero(grad, taken), None, None


def _found_or_zero(rows: Tensor, places: Tensor) -> Tensor:
    """The rows at these places; zeros where there is no such place."""
    last = rows.size(0) - 1
    return rows.index_select(0, places.clamp(max=last)).masked_fill((places > last)[:, None], 0.0)
