"""How a stack's input knows where its tokens stand: the kinds of --encoder-positions and --decoder-positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.parts.contracts import Positions
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn


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
        # CTranslate2 reads positions from a table, whatever is in it.
        return "" if toolkit == "CTranslate2" else super().not_in(toolkit)


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
