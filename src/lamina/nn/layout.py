"""How sequences lie in a tensor."""

# B batch, T tokens of a row, N tokens of a packed row, H heads, C channels of a head

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.rows import PAD_POSITION, Packed, Rows


class Layout(NamedTuple):
    """Padded rows. Attention, positions and losses ask the layout, never a bare mask."""

    is_pad: Tensor  # (B, T)
    may_attend: Tensor  # (B, 1, 1, T): keys that a query of the same row may look at, over all heads

    @classmethod
    def of_ids(cls, ids: Tensor, pad_id: int) -> Layout:
        is_pad = ids.eq(pad_id)
        return cls(is_pad, ~is_pad[:, None, None, :])

    def as_bias(self, dtype: torch.dtype) -> Layout:
        """What attention adds to its scores in place of a yes or no, made once where many steps look at it."""
        bias = torch.zeros_like(self.may_attend, dtype=dtype).masked_fill_(~self.may_attend, -torch.inf)
        return self._replace(may_attend=bias)

    def clear_(self, rows: Tensor) -> None:
        """Nothing but padding in these rows."""
        self.is_pad.index_fill_(0, rows, True)
        self.may_attend.index_fill_(0, rows, -torch.inf if self.may_attend.is_floating_point() else False)

    def positions(self) -> Tensor:
        """The id of each token's position; only tokens count, so padding on the left shifts nothing. (B, T)"""
        is_token = (~self.is_pad).to(torch.long)
        return is_token.cumsum(dim=1) * is_token + PAD_POSITION

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, reader: AnyLayout | None = None, is_causal: bool = False,
               dropout_p: float = 0.0) -> Tensor:
        """Keys and values lie like this; the queries, of the same rows, like `reader`. (B, H, T, C) -> (B, H, T, C)"""
        # Rows are padded on the right, so no token ever looks at a pad: the causal kernel needs no other mask.
        return F.scaled_dot_product_attention(query, key, value, attn_mask=None if is_causal else self.may_attend,
                                              is_causal=is_causal, dropout_p=dropout_p)


class PackedLayout(NamedTuple):
    """Sentences one behind the other in a single row, whose length and number of bounds stay the same from batch to batch.

    What is left at the end is filled with pads, which form sentences of their own: no place is outside a sentence, so none
    ever holds what no kernel has written.
    """

    is_pad: Tensor  # (1, N)
    position_ids: Tensor  # (1, N)
    bounds: Tensor  # (R + 1,), int32: sentence i lies at bounds[i] : bounds[i + 1]; of those that are not there, both are N
    longest: int  # no sentence is longer

    def positions(self) -> Tensor:
        return self.position_ids

    def sentences(self) -> Tensor:
        """The number of each token's sentence. (N,)"""
        places = torch.arange(self.is_pad.size(1), device=self.bounds.device, dtype=self.bounds.dtype)
        return torch.searchsorted(self.bounds, places, right=True)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, reader: AnyLayout | None = None, is_causal: bool = False,
               dropout_p: float = 0.0) -> Tensor:
        """As for padded rows: sentence i of the reader looks at sentence i here. (1, H, N, C) -> (1, H, N, C)"""
        reader = self if reader is None else reader
        assert isinstance(reader, PackedLayout), "packed rows read packed rows"
        if query.is_cuda and query.dtype != torch.float32:
            # The kernel behind torch.nn.attention.varlen, called directly for its dropout.
            mixed = torch.ops.aten._flash_attention_forward(
                *(part.transpose(1, 2)[0] for part in (query, key, value)), reader.bounds, self.bounds, reader.longest,
                self.longest, dropout_p, is_causal, False)[0]  # (N, H, C)
            return mixed.transpose(0, 1)[None]
        may_attend = reader.sentences()[:, None] == self.sentences()
        if is_causal:
            may_attend = may_attend.tril()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=may_attend, dropout_p=dropout_p)


AnyLayout = Layout | PackedLayout


def lay_out(rows: Rows, pad_id: int) -> tuple[Tensor, AnyLayout]:
    """The ids, and how they lie."""
    if isinstance(rows, Packed):
        return rows.ids, PackedLayout(rows.ids.eq(pad_id), rows.positions, rows.bounds, rows.longest)
    return rows, Layout.of_ids(rows, pad_id)
