"""B2T: a Post-LN layer adds its own input again ahead of its last norm (Takase et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from lamina.parts.contracts import LayerPlace, Residual
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.checkpoint.folding import Folding


@register.residual("b2t")
@dataclass(frozen=True, kw_only=True)
class BottomToTop(Residual):
    """norm(x + f(x)), and in the last sub-layer of each layer norm(x + f(x) + the layer's input) (Takase et al. 2022)."""

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        self.needs_post_norm(pre_norm_sides, "leads around the norms of a Post-LN layer, which Pre-LN does anyhow")

    def build(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import Add, PostNorm

        lower = [PostNorm(self.norm(place), Add(), place.dropout_p) for _ in range(place.num_sub_layers - 1)]
        return [*lower, _input_again()(self.norm(place), place.dropout_p, place.num_sub_layers)]

    def fold(self, folding: Folding) -> None:
        raise self.cannot("be folded", "a plain Transformer's layers do not add their input again")


@cache  # one class for all layers, so that they share what is compiled
def _input_again() -> Any:
    from lamina.nn.dropout import dropout
    from lamina.nn.residual import Add, PostNorm

    class InputAgain(PostNorm):
        def __init__(self, norm: nn.Module, dropout_p: float, num_sub_layers: int) -> None:
            super().__init__(norm, Add(), dropout_p)
            self.returns_input = num_sub_layers

        def forward(self, x: Any, branch: Any, layer_input: Any = None) -> Any:
            return self.norm(self.add(x + layer_input, dropout(branch(x), self.dropout_p, self.training)))

    return InputAgain
