"""How sequences lie in a tensor."""

# B batch, T tokens of a row, N tokens of a packed row, H heads, C channels of a head

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.nn.dropout import check_can_draw_again, must_draw_again
from lamina.nn.flat_attention import Blocks
from lamina.nn.packed_attention import HAS_TRITON, packed_attention
from lamina.packed import PAD_POSITION, Packed, Rows

# Tokens for each sentence that there is room for: where there are more, a sentence fills tiles of its own.
LONG = 128
VECTOR = 16  # numbers of 32 bits in the widest registers of a CPU
# Flat rows are worth it where fewer places than this share of the padded ones are left. Their number is rounded up: a CPU's
# kernels are made for each number of rows.
FULL = 0.9
FLAT_MULTIPLE = 8
WIDEST_OF_FLASH = 256  # channels of a head
HALF_TYPES = (torch.float16, torch.bfloat16)


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

    def widened(self, width: int) -> Layout:
        """The same rows, with padding behind them up to this width."""
        missing = width - self.is_pad.size(1)
        if missing <= 0:
            return self
        nothing = -torch.inf if self.may_attend.is_floating_point() else False
        return Layout(F.pad(self.is_pad, (0, missing), value=True), F.pad(self.may_attend, (0, missing), value=nothing))

    def position_ids(self) -> Tensor:
        """The id of each token's position; only tokens count, so padding on the left shifts nothing. (B, T)"""
        is_token = (~self.is_pad).to(torch.long)
        return is_token.cumsum(dim=1) * is_token + PAD_POSITION

    def attend_within(self, qkv: Tensor, num_heads: int, *, is_causal: bool = False, dropout_p: float = 0.0) -> Tensor:
        """Every row looks at itself. qkv: (B, T, 3 * D), queries then keys then values -> (B, T, D)"""
        check_can_draw_again(dropout_p)
        width = qkv.size(1)
        if not is_causal:
            qkv, self = whole_vectors(qkv, self)
        query, key, value = (split_heads(part, num_heads) for part in qkv.chunk(3, dim=2))
        # Rows are padded on the right, so no token ever looks at a pad: the causal kernel needs no other mask.
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=None if is_causal else self.may_attend,
                                               is_causal=is_causal, dropout_p=dropout_p)
        return join_heads(mixed)[:, :width]

    def attend_across(self, query: Tensor, memory: Tensor, num_heads: int, *, reader: AnyLayout | None = None,
                      dropout_p: float = 0.0) -> Tensor:
        """Queries of other rows, which lie like `reader`, look at these. query: (B, T, D), memory: (B, S, 2 * D), keys then
        values -> (B, T, D)"""
        check_can_draw_again(dropout_p)
        key, value = (split_heads(part, num_heads) for part in memory.chunk(2, dim=2))
        return join_heads(F.scaled_dot_product_attention(split_heads(query, num_heads), key, value, attn_mask=self.may_attend,
                                                         dropout_p=dropout_p))


class PackedLayout(Packed):
    """A packed row as attention sees it: the same fields, by the same names."""

    def position_ids(self) -> Tensor:
        return self.positions

    @property
    def is_of_short(self) -> bool:
        """Whether there is room for so many sentences that they must be short: tiles that hold several suit them."""
        return self.bounds.size(0) * LONG >= self.sentences.size(0)

    def attend_within(self, qkv: Tensor, num_heads: int, *, is_causal: bool = False, dropout_p: float = 0.0) -> Tensor:
        """As for padded rows: every sentence looks at itself. (1, N, 3 * D) -> (1, N, D)"""
        return self._attend(qkv[0], None, self, num_heads, is_causal=is_causal, dropout_p=dropout_p)[None]

    def attend_across(self, query: Tensor, memory: Tensor, num_heads: int, *, reader: AnyLayout | None = None,
                      dropout_p: float = 0.0) -> Tensor:
        """Sentence i of the reader looks at sentence i here. (1, N, D), (1, M, 2 * D) -> (1, N, D)"""
        assert isinstance(reader, PackedLayout), "packed rows are read by packed rows"
        return self._attend(query[0], memory[0], reader, num_heads, dropout_p=dropout_p)[None]

    def _attend(self, query: Tensor, memory: Tensor | None, reader: PackedLayout, num_heads: int, *, is_causal: bool = False,
                dropout_p: float) -> Tensor:
        channels = query.size(1) // num_heads // (3 if memory is None else 1)
        is_flash = (query.dtype in HALF_TYPES and channels <= WIDEST_OF_FLASH and channels % 8 == 0
                    and not (self.is_of_short and HAS_TRITON) and not must_draw_again(dropout_p))
        if query.is_cuda and not is_flash:
            return packed_attention(query, memory, reader.sentences, reader.bounds, self.sentences, self.bounds, num_heads,
                                    is_causal, dropout_p)[0]
        check_can_draw_again(dropout_p)
        if query.is_cuda:
            # The kernel behind torch.nn.attention.varlen, called directly for its dropout.
            parts = query.chunk(3, dim=1) if memory is None else (query, *memory.chunk(2, dim=1))
            return torch.ops.aten._flash_attention_forward(
                *(part.unflatten(1, (num_heads, -1)) for part in parts), reader.bounds, self.bounds, reader.longest,
                self.longest, dropout_p, is_causal, False)[0].flatten(1)
        return self._blocks_of(reader).attend(query, memory, num_heads, is_causal=is_causal, dropout_p=dropout_p)

    def _blocks_of(self, reader: PackedLayout) -> Blocks:
        """Made at the first layer that attends, and kept as long as the layout."""
        known, key = reader._blocks, id(self.bounds)
        if key not in known:
            known[key] = (self, Blocks(reader.bounds, None if self is reader else self.bounds))
        return known[key][1]

    @cached_property
    def _blocks(self) -> dict[int, tuple[PackedLayout, Blocks]]:
        """By who is read, which is kept too, so that no other one takes its number."""
        return {}


class FlatLayout(NamedTuple):
    """Padded rows without their padding, one behind the other, as a search on a CPU encodes them: linear layers meet tokens
    alone, and attention the rows as wide as `whole_vectors` makes them. The last places may repeat a token."""

    ids: Tensor  # (1, N)
    positions: Tensor  # (1, N)
    taken: Tensor  # (B * T,): where in the flat row each place of the padded ones is; a pad takes the token before it
    back: Tensor  # (N,): where in the padded rows each token is
    wide: Layout  # the padded rows

    @classmethod
    def of(cls, ids: Tensor, layout: Layout) -> FlatLayout | None:
        """None where there is little padding, or another one than a search on a CPU has. ids: (B, T)"""
        if ids.device.type != "cpu" or torch.is_grad_enabled() or bool(layout.is_pad[:, 0].any()):
            return None
        tokens = (~layout.is_pad).flatten().nonzero()[:, 0]
        number = -(-len(tokens) // FLAT_MULTIPLE) * FLAT_MULTIPLE
        if number > FULL * ids.numel():
            return None
        tokens = torch.cat((tokens, tokens[:1].expand(number - len(tokens))))
        width = -(-ids.size(1) // VECTOR) * VECTOR
        wide = layout.widened(width)
        taken = (~wide.is_pad).flatten().cumsum(0) - 1
        back = tokens.div(ids.size(1), rounding_mode="floor") * width + tokens % ids.size(1)
        return cls(ids.flatten()[tokens][None], layout.position_ids().flatten()[tokens][None], taken, back, wide)

    def position_ids(self) -> Tensor:
        return self.positions

    def spread(self, x: Tensor) -> Tensor:
        """As padded rows. (1, N, D) -> (B, T, D)"""
        return x[0].index_select(0, self.taken).unflatten(0, self.wide.is_pad.shape)

    def attend_within(self, qkv: Tensor, num_heads: int, *, is_causal: bool = False, dropout_p: float = 0.0) -> Tensor:
        """Every row looks at itself. (1, N, 3 * D) -> (1, N, D)"""
        assert not is_causal, "sources are encoded"
        assert not dropout_p, "a search has no dropout"
        query, key, value = (split_heads(part, num_heads) for part in self.spread(qkv).chunk(3, dim=2))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.wide.may_attend)
        return join_heads(mixed).flatten(0, 1).index_select(0, self.back)[None]


AnyLayout = Layout | PackedLayout
L = TypeVar("L", Layout, PackedLayout, AnyLayout)


def whole_vectors(x: Tensor, layout: L) -> tuple[Tensor, L]:
    """Padding behind rows that are searched on a CPU, so that whole vectors of a CPU's registers hold them: the order in which
    attention adds up does not depend then on how wide the widest row is. x: (B, T, D)"""
    missing = -x.size(1) % VECTOR
    if not missing or x.device.type != "cpu" or torch.is_grad_enabled() or not isinstance(layout, Layout):
        return x, layout
    return F.pad(x, (0, 0, 0, missing)), layout.widened(x.size(1) + missing)  # type: ignore[return-value]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, C)"""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, T, C) -> (B, T, D)"""
    return x.transpose(1, 2).flatten(2)


def lay_out(rows: Rows, pad_id: int) -> tuple[Tensor, AnyLayout]:
    """The ids, and how they lie."""
    if isinstance(rows, Packed):
        return rows.ids, PackedLayout(*rows)
    return rows, Layout.of_ids(rows, pad_id)
