"""Attention over packed rows where no kernel reads them as they lie, as on a CPU.

Linear layers and norms work on the flat row, in which hardly anything is padding. Attention alone pads: sentences of about one
length form a block, and the blocks of a row are filled by one gather and emptied by another.
"""

# N tokens of the reader's row, M of the row that is read, G sentences of a block, T the longest of them (S: of what is read),
# P places of all blocks together, D model_dim, H heads, C channels of a head

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# What one more block costs, in scores: rather than that, a block takes in shorter sentences and pads them.
BLOCK_COST = 3000
# What a padded place costs besides its scores, likewise: it is gathered, split into heads and joined again.
PLACE_COST = 16
# Lengths at which a block may end: their squared number is what looking for the best ones takes.
MAX_CUTS = 16


class Block(NamedTuple):
    """Sentences of about one length."""

    num_sentences: int
    longest: int  # T
    longest_read: int  # S
    may_attend: Tensor | None  # (G, 1, 1, S); None where all are as long as the longest


class Gather(NamedTuple):
    """Between a flat row and the places of blocks."""

    taken: Tensor  # (P,): where in the row the place's token is; some token where the place is a pad
    back: Tensor  # (N,): where in the blocks a token is


class Blocks:
    """Of the sentences of two rows, or of one row that reads itself; made once for all layers."""

    def __init__(self, bounds: Tensor, read_bounds: Tensor | None = None) -> None:
        starts, sizes = _sentences(bounds)
        read_starts, read_sizes = (starts, sizes) if read_bounds is None else _sentences(read_bounds)
        order = np.lexsort((read_sizes, sizes))
        order = order[(sizes[order] > 0) | (read_sizes[order] > 0)]  # a sentence that was left out has no tokens
        members = np.split(order, cut(sizes[order], read_sizes[order]))
        self.num_tokens = int(bounds[-1])
        self.blocks = [_block(sizes[own], read_sizes[own], bounds.device) for own in members]
        self.reader = _gather(starts, sizes, members, self.num_tokens, bounds.device)
        self.read = self.reader if read_bounds is None else _gather(read_starts, read_sizes, members, int(read_bounds[-1]),
                                                                    bounds.device)

    def attend(self, query: Tensor, memory: Tensor | None, num_heads: int, *, is_causal: bool, dropout_p: float) -> Tensor:
        """query: (N, D), or with keys and values (N, 3 * D); memory: (M, 2 * D), keys and values -> (N, D)"""
        # Split, not sliced block by block: the gradient of each slice would be as large as the whole.
        places = _Fill.apply(query, *self.reader).split([block.num_sentences * block.longest for block in self.blocks])
        read = places if memory is None else _Fill.apply(memory, *self.read).split(
            [block.num_sentences * block.longest_read for block in self.blocks])
        outputs = []
        for block, own, other in zip(self.blocks, places, read, strict=True):
            parts = own.chunk(3, dim=1) if memory is None else (own, *other.chunk(2, dim=1))
            # (G, H, T, C) and twice (G, H, S, C)
            query, key, value = (part.unflatten(1, (num_heads, -1)).unflatten(0, (block.num_sentences, -1)).transpose(1, 2)
                                 for part in parts)
            # Pads stand on the right, where causal attention does not look.
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=None if is_causal else block.may_attend,
                                                   is_causal=is_causal, dropout_p=dropout_p)
            outputs.append(mixed.transpose(1, 2).flatten(2).flatten(0, 1))  # (G * T, D)
        return _Empty.apply(torch.cat(outputs), *self.reader)  # type: ignore[no-any-return]


def _sentences(bounds: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Where they start, and their sizes."""
    ends = bounds.cpu().numpy().astype(np.int64)
    return ends[:-1], np.diff(ends)


def cut(sizes: np.ndarray, read_sizes: np.ndarray) -> list[int]:
    """Where blocks of sorted sentences end, so that all cost least; the last end is left out."""
    edges = np.flatnonzero(np.diff(sizes)) + 1  # between different lengths
    if len(edges) > MAX_CUTS:
        edges = edges[np.linspace(0, len(edges) - 1, MAX_CUTS).round().astype(int)]
    ends = [*edges.tolist(), len(sizes)]
    starts = [0, *ends[:-1]]
    longest_read = [int(read_sizes[start:end].max()) for start, end in zip(starts, ends, strict=True)]
    best: list[tuple[float, int]] = []  # of the sentences before each end: the least cost, and where the last block begins
    for last, end in enumerate(ends):
        longest, read, found = int(sizes[end - 1]), 0, (float("inf"), 0)
        for first in range(last, -1, -1):
            read = max(read, longest_read[first])
            cost = BLOCK_COST + (end - starts[first]) * (longest * (read + PLACE_COST) + read * PLACE_COST)
            found = min(found, (cost + (best[first - 1][0] if first else 0.0), first))
        best.append(found)
    cuts, piece = [], len(ends) - 1
    while best[piece][1] > 0:
        piece = best[piece][1] - 1
        cuts.append(ends[piece])
    return cuts[::-1]


def _block(sizes: np.ndarray, read_sizes: np.ndarray, device: torch.device) -> Block:
    read_sizes = np.maximum(read_sizes, 1)  # pads may have nothing to read, which no softmax likes
    longest_read = int(read_sizes.max())
    is_even = bool((read_sizes == longest_read).all())
    may_attend = None if is_even else torch.from_numpy(np.arange(longest_read) < read_sizes[:, None])[:, None, None].to(device)
    return Block(len(sizes), max(int(sizes.max()), 1), longest_read, may_attend)


def _gather(starts: np.ndarray, sizes: np.ndarray, members: Sequence[np.ndarray], num_tokens: int,
            device: torch.device) -> Gather:
    taken, back, first = [], np.zeros(num_tokens, dtype=np.int64), 0
    for own in members:
        longest = max(int(sizes[own].max()), 1)
        within = np.arange(longest)
        is_token = within < sizes[own, None]  # (G, T)
        tokens = np.where(is_token, starts[own, None] + within, 0)
        back[tokens[is_token]] = first + np.flatnonzero(is_token)
        taken.append(tokens.ravel())
        first += tokens.size
    return Gather(torch.from_numpy(np.concatenate(taken)).to(device), torch.from_numpy(back).to(device))


class _Fill(torch.autograd.Function):
    """(N, D) -> (P, D). Pads hold some token's vector; they are not read, so no gradient comes from there."""

    @staticmethod
    def forward(ctx: Any, row: Tensor, taken: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return row.index_select(0, taken)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad.index_select(0, back), None, None


class _Empty(torch.autograd.Function):
    """(P, D) -> (N, D)"""

    @staticmethod
    def forward(ctx: Any, places: Tensor, taken: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.num_places = len(taken)
        return places.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grad.new_zeros(ctx.num_places, grad.size(1)).index_copy_(0, back, grad), None, None
