"""Multi-head attention through torch's fused kernels (Vaswani et al. 2017, §3.2)."""

# B batch, T queries, S keys, K beams, D model_dim, H heads, C channels of a head

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lamina.nn import step_attention
from lamina.nn.cache import KeyValues, Turn
from lamina.nn.joined_states import ByGroup, by_group
from lamina.nn.layout import AnyLayout, Layout, join_heads, split_heads
from lamina.nn.linear import Linear
from lamina.nn.mixing import Lower


def kernels_for_any_length() -> AbstractContextManager[None]:
    """Inside, attention does without cuDNN, which plans ahead for every new length: seconds, for a few hundred of them."""
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class Attention(nn.Module):
    """What self- and cross-attention share: heads, the fused kernel and the output projection."""

    def __init__(self, dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout_p = dropout_p
        self.out_proj = Linear(dim, dim)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, C)"""
        return split_heads(x, self.num_heads)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, may_attend: Tensor | None = None,
               is_causal: bool = False) -> Tensor:
        """Scales the query by C^-0.5, as fairseq does; (B, H, T, C) -> (B, T, D).

        `may_attend` is True where a query may look, or a bias on the scores that is -inf where it may not.
        """
        return self.out_proj(self.mixed(query, key, value, may_attend=may_attend, is_causal=is_causal))

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, *, may_attend: Tensor | None = None,
              is_causal: bool = False) -> Tensor:
        """`attend` before the output projection."""
        return join_heads(F.scaled_dot_product_attention(query, key, value, attn_mask=may_attend, is_causal=is_causal,
                                                         dropout_p=self.active_dropout_p))

    def has_step_kernels(self, query: Tensor) -> bool:
        """Whether a decoding step's attention is one kernel; a subclass that mixes otherwise keeps its own way. (B, H, K, C)"""
        return type(self).mixed is Attention.mixed and not self.active_dropout_p and step_attention.suits(query)

    @property
    def active_dropout_p(self) -> float:
        return self.dropout_p if self.training else 0.0


class SelfAttention(Attention):
    """Queries, keys and values from one sequence, in one product.

    With `sharing`, keys and values are those that sharing(keys and values, lower) makes of them and of lower layers'.
    """

    fused: ClassVar = {"in_proj": 3}

    def __init__(self, dim: int, num_heads: int, dropout_p: float, sharing: nn.Module | None = None) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.in_proj = Linear(dim, 3 * dim)  # rows: query, key, value
        self.sharing = sharing

    def project(self, x: Tensor, lower: Lower | None) -> Tensor:
        """(B, T, D) -> (B, T, 3 * D)"""
        projected: Tensor = self.in_proj(x)
        if self.sharing is None or lower is None:
            return projected
        query, entries = projected.tensor_split([x.size(2)], dim=2)
        entries, lower.offered = self.sharing(entries, lower)
        return torch.cat((query, entries), dim=2)

    def forward(self, x: Tensor, layout: AnyLayout, *, is_causal: bool = False, lower: Lower | None = None) -> Tensor:
        return self.out_proj(layout.attend_within(self.project(x, lower), self.num_heads, is_causal=is_causal,
                                                  dropout_p=self.active_dropout_p))

    def causal(self, x: Tensor, layout: AnyLayout, lower: Lower | None = None) -> Tensor:
        return self(x, layout, is_causal=True, lower=lower)

    def read(self, x: Tensor, past: KeyValues, lower: Lower | None = None) -> Tensor:
        """The first tokens of each text, which all its beams share and continue from. x: (B, T, D)"""
        projected = self.project(x, lower)
        past.begin_(projected[:, :, x.size(2) :])
        query, key, value = map(self.split, projected.chunk(3, dim=2))
        return self.attend(query, key, value, is_causal=True)

    def step(self, x: Tensor, past: KeyValues | ByGroup, turn: Turn | ByGroup, lower: Lower | None = None) -> Tensor:
        """One new token a beam, after those in `past`, which grows by them. x: (B, K, D)"""
        query, entries = self.project(x, lower).tensor_split([x.size(2)], dim=2)
        return self.out_proj(by_group(self._look_back, (self.split(query), entries), past, turn))

    def _look_back(self, query: Tensor, entries: Tensor, past: KeyValues, turn: Turn) -> Tensor:
        if self.has_step_kernels(query):
            return step_attention.look_back(join_heads(query), entries, past, turn)
        keys, values = past.append_(entries, turn)
        return self.mixed(query, keys, values, may_attend=turn.bias)


class MemoryAttention(Attention):
    """Queries from the decoder, keys and values from what it reads, projected once a sentence."""

    def __init__(self, dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.q_proj = Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, memory_layout: AnyLayout, layout: AnyLayout | None = None) -> Tensor:
        """`memory` is what `project` makes of it. `layout` is that of x, which padded memories do not ask for."""
        return self.out_proj(memory_layout.attend_across(self.q_proj(x), memory, self.num_heads, reader=layout,
                                                         dropout_p=self.active_dropout_p))

    def halves(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a projected memory. (B, S, 2 * D) -> (B, H, S, C) each"""
        key, value = map(self.split, memory.chunk(2, dim=2))
        return key, value

    def step(self, x: Tensor, halves: tuple[Tensor, Tensor] | ByGroup, memory_layout: Layout | ByGroup) -> Tensor:
        """The same as `forward` with keys and values that are kept ready."""
        return self.out_proj(by_group(self._read, (self.split(self.q_proj(x)),), halves, memory_layout))

    def _read(self, query: Tensor, halves: tuple[Tensor, Tensor], memory_layout: Layout) -> Tensor:
        if self.has_step_kernels(query) and memory_layout.may_attend.is_floating_point():
            return step_attention.read_source(join_heads(query), *halves, memory_layout.may_attend)
        return self.mixed(query, *halves, may_attend=memory_layout.may_attend)

    def weights(self, x: Tensor, memory: Tensor, memory_layout: Layout, layout: Layout | None = None) -> Tensor:
        """How much each query looks at each key, over all heads. (B, T, S)"""
        query, (key, _) = self.split(self.q_proj(x)), self.halves(memory)
        scores = query.float() @ key.float().transpose(2, 3) * query.size(3) ** -0.5
        return scores.masked_fill(~memory_layout.may_attend, -torch.inf).softmax(dim=-1).mean(dim=1)


class CrossAttention(MemoryAttention):
    """Keys and values from one memory, in one product."""

    fused: ClassVar = {"kv_proj": 2}

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.kv_proj = Linear(memory_dim, 2 * dim)  # rows: key, value

    def project(self, memory: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, 2 * D), keys then values"""
        return self.kv_proj(memory)


class SurfaceAttention(MemoryAttention):
    """Keys from one reading of the source, values from another."""

    def __init__(self, dim: int, memory_dim: int, num_heads: int, dropout_p: float) -> None:
        super().__init__(dim, num_heads, dropout_p)
        self.k_proj = Linear(memory_dim, dim)
        self.v_proj = Linear(memory_dim, dim)

    def project(self, keys: Tensor, values: Tensor) -> Tensor:
        """(B, S, D) each -> (B, S, 2 * D)"""
        return torch.cat((self.k_proj(keys), self.v_proj(values)), dim=2)
