"""From ids to vectors."""

# B batch, T tokens, V vocabulary, D model_dim

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn.layout import FIRST_POSITION, Layout


class TokenTable(nn.Module):
    """The (V, D) matrix of token vectors. Sharing embeddings means sharing this object."""

    def __init__(self, num_tokens: int, dim: int, pad_id: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, dim))
        self.pad_id = pad_id

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight, padding_idx=self.pad_id)


class Embedded(NamedTuple):
    """A stack's input, and the scaled token vectors without positions that fusion reads."""

    input: Tensor  # (B, T, D)
    tokens: Tensor  # (B, T, D)


class InputEmbedding(nn.Module):
    """scale * token + position, then an optional norm, then dropout."""

    def __init__(self, table: TokenTable, *, scale: float, positions: nn.Module | None, norm: nn.Module | None,
                 dropout_p: float) -> None:
        super().__init__()
        self.table = table
        self.scale = scale
        self.positions = positions
        self.norm = norm
        self.dropout_p = dropout_p

    def forward(self, ids: Tensor, layout: Layout) -> Embedded:
        return self._embed(ids, layout.positions() if self.positions is not None else None)

    def step(self, ids: Tensor, num_before: int) -> Embedded:
        """One token a row, each with `num_before` tokens before it. ids: (B, 1)"""
        return self._embed(ids, torch.full_like(ids, num_before + FIRST_POSITION))

    def _embed(self, ids: Tensor, positions: Tensor | None) -> Embedded:
        tokens = self.table(ids) * self.scale
        x = tokens
        if self.positions is not None:
            x = x + self.positions(positions).to(tokens.dtype)
        if self.norm is not None:
            x = self.norm(x)
        return Embedded(F.dropout(x, self.dropout_p, self.training), tokens)
