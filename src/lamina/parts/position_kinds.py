"""How a stack's input knows where its tokens stand: the kinds of --encoder-positions and --decoder-positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.parts.contracts import Positions
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

# Toolkits, and models of transformers, that read positions from a table, whatever is in it; of the others, what they compute.
_FROM_TABLES = ("CTranslate2", "FSMT", "BART", "mBART", "RoBERTa")
_COMPUTED_BY = {"MarianMT": "marian", "M2M-100": "sinusoidal"}


def _not_computed_in(toolkit: str, positions: Positions) -> str:
    """Why a toolkit that computes its positions has no place for these."""
    if toolkit not in _COMPUTED_BY or _COMPUTED_BY[toolkit] == positions.name:
        return ""
    return f"{toolkit} computes positions of its own and has no place for {positions.spelled}"


@register.positions("sinusoidal")
@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Positions):
    """Fixed sinusoids (Vaswani et al. 2017, §3.5)."""

    is_plain = True

    def build(self, max_positions: int, dim: int) -> nn.Module:
        from lamina.nn.positions import SinusoidalPositions

        return SinusoidalPositions(max_positions, dim)

    def table_of(self, max_positions: int, dim: int) -> Tensor | None:
        from lamina.nn.positions import num_rows, sinusoid_table

        return sinusoid_table(num_rows(max_positions), dim)

    def not_in(self, toolkit: str) -> str:
        return _not_computed_in(toolkit, self)


@register.positions("marian")
@dataclass(frozen=True, kw_only=True)
class MarianSinusoids(Positions):
    """Fixed sinusoids with Marian's frequencies, from position 0 (Junczys-Dowmunt et al. 2018)."""

    def build(self, max_positions: int, dim: int) -> nn.Module:
        from lamina.nn.positions import FixedPositions

        return FixedPositions(self.table_of(max_positions, dim))

    def table_of(self, max_positions: int, dim: int) -> Tensor:
        from lamina.nn.positions import marian_table, num_rows

        return marian_table(num_rows(max_positions), dim)

    def not_in(self, toolkit: str) -> str:
        if toolkit in _FROM_TABLES:
            return ""
        return _not_computed_in(toolkit, self) if toolkit in _COMPUTED_BY else super().not_in(toolkit)


@register.positions("learned")
@dataclass(frozen=True, kw_only=True)
class Learned(Positions):
    """One trained vector for each position."""

    is_plain = True

    def build(self, max_positions: int, dim: int) -> nn.Module:
        from lamina.nn.positions import LearnedPositions

        return LearnedPositions(max_positions, dim)

    def table_of(self, max_positions: int, dim: int) -> Tensor | None:
        return None

    def not_in(self, toolkit: str) -> str:
        return _not_computed_in(toolkit, self)
