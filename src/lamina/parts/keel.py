"""Keel: Post-LN with a strong shortcut and a norm inside each branch (Post-LayerNorm Is Back, 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from lamina.fields import flag
from lamina.parts.contracts import DepthResidual, LayerPlace
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.checkpoint.folding import Folding


@register.residual("keel")
@dataclass(frozen=True, kw_only=True)
class Keel(DepthResidual):
    """norm(a * x + f(norm(x))), a the number of sub-layers of the stack (Keel 2026)."""

    set_by_pruning = ("keel-layers",)

    layers: tuple[int, ...] = flag((), "layers that Keel's weight of the shortcut is computed from, encoder and decoder; those "
                                       "of the model if left out. A pruned model keeps the ones it was trained with",
                                   name="keel-layers", metavar="N,N", paper="Keel 2026")

    def __post_init__(self) -> None:
        self.check_layers()

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        self.needs_post_norm(pre_norm_sides, "normalises the sum and the branch's input already")

    def build(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import DeepNorm

        depth = place.trained_depths[0 if place.stack == "encoder" else 1]
        return [_keel_norm()(self.norm(place), self.norm(place), DeepNorm(depth * place.num_sub_layers), place.dropout_p)
                for _ in range(place.num_sub_layers)]

    def fold(self, folding: Folding) -> None:
        raise self.cannot("be folded", "the norm inside its branches has no counterpart in a plain Transformer")


@cache  # one class for all layers, so that they share what is compiled
def _keel_norm() -> Any:
    from lamina.nn.residual import PostNorm

    class KeelNorm(PostNorm):
        def __init__(self, norm: nn.Module, inner: nn.Module, add: nn.Module, dropout_p: float) -> None:
            super().__init__(norm, add, dropout_p)
            self.inner = inner

        def forward(self, x: Any, branch: Any, layer_input: Any = None) -> Any:
            return super().forward(x, lambda x: branch(self.inner(x)))

    return KeelNorm
