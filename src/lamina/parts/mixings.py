"""What a layer reads of the layers below it: the kinds of --mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.parts.contracts import LayerPlace, Mixing
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.checkpoint.folding import Folding
    from lamina.pruning.cut import Cut


@register.mixing("none")
@dataclass(frozen=True, kw_only=True)
class NoMixing(Mixing):
    """Each layer reads the one before it."""

    is_plain = True

    def build(self, place: LayerPlace, *, has_output: bool) -> nn.Module | None:
        return None

    def pruned(self, cut: Cut) -> Mixing:
        return self

    def unscale(self, folding: Folding) -> None:
        """Nothing reads a state but the layer above it."""
