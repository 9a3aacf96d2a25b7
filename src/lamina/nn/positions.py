"""Position embeddings: tables indexed by position id (rows.py), whose first rows belong to padding."""

# P rows of the table, D model_dim

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lamina.packed import FIRST_POSITION, PAD_POSITION


def num_rows(max_positions: int) -> int:
    return max_positions + FIRST_POSITION


def sinusoid_table(rows: int, dim: int) -> Tensor:
    """All sines, then all cosines, with geometrically falling frequencies; the padding row is zero. (P, D)"""
    half = dim // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / max(half - 1, 1)))
    angles = torch.arange(rows, dtype=torch.float)[:, None] * frequencies[None, :]
    table = torch.cat([angles.sin(), angles.cos(), torch.zeros(rows, dim % 2)], dim=1)
    table[PAD_POSITION] = 0.0
    return table


def marian_table(rows: int, dim: int) -> Tensor:
    """Sinusoids as Marian has them: 10000^(-2j/dim) from position 0 for the first token. In float64 first, as there. (P, D)"""
    half = dim // 2
    places = torch.arange(-FIRST_POSITION, rows - FIRST_POSITION, dtype=torch.float64).clamp(min=0)
    frequencies = 10000 ** (-2.0 * torch.arange(half + dim % 2, dtype=torch.float64) / dim)
    angles = places[:, None] * frequencies[None, :]
    table = torch.cat([angles.sin(), angles[:, :half].cos()], dim=1).float()
    table[:FIRST_POSITION] = 0.0
    return table


class FixedPositions(nn.Module):
    """A table that is computed, not stored: it is no part of a checkpoint."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    @property
    def rows(self) -> Tensor:
        """The vector of each position."""
        return self.table

    def forward(self, positions: Tensor) -> Tensor:
        return self.table[positions]


class SinusoidalPositions(FixedPositions):
    """Fixed sinusoids (Vaswani et al. 2017, §3.5)."""

    def __init__(self, max_positions: int, dim: int) -> None:
        super().__init__(sinusoid_table(num_rows(max_positions), dim))


class LearnedPositions(nn.Module):
    """One trained vector per position; the padding row takes no gradient."""

    parameter_kind = "embeddings"

    def __init__(self, max_positions: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows(max_positions), dim))

    @property
    def rows(self) -> Tensor:
        """The vector of each position."""
        return self.weight

    def forward(self, positions: Tensor) -> Tensor:
        return nn.functional.embedding(positions, self.weight, padding_idx=PAD_POSITION)
