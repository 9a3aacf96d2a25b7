"""Multi-head attention through torch's fused kernels (Vaswani et al. 2017, §3.2)."""

# B batch, T queries, S keys, K beams, D model_dim, H heads, C channels of a head

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn.cache import KeyValues, Turn
from lamina.nn.layout import AnyLayout, Layout


class Attention(nn.Module):
    """What self- and cross-attention share: heads, the fused kernel and the output projection."""

    def __init__(self, dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout_p = dropout_p
        self.out_proj = nn.Linear(dim, dim)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, C)"""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, may_attend: Tensor | None = None,
               is_causal: bool = False) -> Tensor:
        """Scales the query by C^-0.5, as the references do; (B, H, T, C) -> (B, T, D).

        `may_attend` is True where a query may look, or a bias on the scores that is -inf where it may not.
        """
        return self.join(F.scaled_dot_product_attention(query, key, value, attn_mask=may_attend, is_causal=is_causal,
                                                        dropout_p=self.active_dropout_p))

    def attend_by(self, layout: AnyLayout, query: Tensor, key: Tensor, value: Tensor, *, reader: AnyLayout | None = None,
                  is_causal: bool = False) -> Tensor:
        """The same where rows are as long as they come; keys lie like `layout`, queries like `reader` or alike."""
        return self.join(layout.attend(query, key, value, reader=reader, is_causal=is_causal, dropout_p=self.active_dropout_p))

    def join(self, mixed: Tensor) -> Tensor:
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    @property
    def active_dropout_p(self) -> float:
        return self.dropout_p if self.training else 0.0


class SelfAttention(Attention):
    """Queries, keys and values from one sequence, in one product."""

    def __init__(self, dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.in_proj = nn.Linear(dim, 3 * dim)  # rows: query, key, value

    def forward(self, x: Tensor, layout: AnyLayout) -> Tensor:
        query, key, value = map(self.split, self.in_proj(x).chunk(3, dim=2))
        return self.attend_by(layout, query, key, value)

    def causal(self, x: Tensor, layout: AnyLayout) -> Tensor:
        query, key, value = map(self.split, self.in_proj(x).chunk(3, dim=2))
        return self.attend_by(layout, query, key, value, is_causal=True)

    def read(self, x: Tensor, past: KeyValues) -> Tensor:
        """The first tokens of each text, which all its beams share and go on from. x: (B, T, D)"""
        projected = self.in_proj(x)
        past.begin_(projected[:, :, x.size(2) :])
        query, key, value = map(self.split, projected.chunk(3, dim=2))
        return self.attend(query, key, value, is_causal=True)

    def step(self, x: Tensor, past: KeyValues, turn: Turn) -> Tensor:
        """One new token a beam, after those in `past`, which grows by them. x: (B, K, D)"""
        query, entries = self.in_proj(x).tensor_split([x.size(2)], dim=2)
        keys, values = past.append_(entries, turn)
        return self.attend(self.split(query), keys, values, may_attend=turn.bias)


class MemoryAttention(Attention):
    """Queries from the decoder, keys and values from what it reads, projected once a sentence."""

    def __init__(self, dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.q_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, projected: tuple[Tensor, Tensor], memory_layout: AnyLayout,
                layout: AnyLayout | None = None) -> Tensor:
        """`layout` is that of x, which padded memories do not ask for."""
        return self.attend_by(memory_layout, self.split(self.q_proj(x)), *projected, reader=layout)

    def weights(self, x: Tensor, projected: tuple[Tensor, Tensor], memory_layout: Layout) -> Tensor:
        """How much each query looks at each key, over all heads. (B, T, S)"""
        query, key = self.split(self.q_proj(x)), projected[0]
        scores = query.float() @ key.float().transpose(2, 3) * query.size(3) ** -0.5
        return scores.masked_fill(~memory_layout.may_attend, -torch.inf).softmax(dim=-1).mean(dim=1)


class CrossAttention(MemoryAttention):
    """Keys and values from one memory, in one product."""

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.kv_proj = nn.Linear(memory_dim, 2 * dim)  # rows: key, value

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> (B, H, S, C) each"""
        key, value = map(self.split, self.kv_proj(memory).chunk(2, dim=2))
        return key, value


class SurfaceAttention(MemoryAttention):
    """Keys from one reading of the source, values from another."""

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.k_proj = nn.Linear(memory_dim, dim)
        self.v_proj = nn.Linear(memory_dim, dim)

    def project(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> (B, H, S, C) each"""
        return self.split(self.k_proj(keys)), self.split(self.v_proj(values))
