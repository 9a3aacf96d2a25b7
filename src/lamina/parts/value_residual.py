"""Value residual: the attention of every layer also reads the first layer's values (Zhou et al. 2025, ResFormer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.fields import check, flag
from lamina.parts.contracts import LayerPlace, Mixing
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lamina.checkpoint.folding import Folding
    from lamina.pruning.cut import Cut


@register.mixing("value-residual")
@dataclass(frozen=True, kw_only=True)
class ValueResidual(Mixing):
    """Values of layer l are a_l v_1 + b_l v_l, v_1 those of the first layer that runs; a and b are learned."""

    share: float = flag(0.5, "weight of the first layer's values at first, and 1 minus that of a layer's own; 0 begins as "
                             "the plain model", name="value-residual-share", paper="Zhou et al. 2025 §3")

    def __post_init__(self) -> None:
        check(0.0 <= self.share <= 1.0, f"--value-residual-share is {self.share}; it must lie in [0, 1].")

    def build(self, place: LayerPlace, *, has_output: bool) -> nn.Module:
        from lamina.nn.first_values import ValueResiduals

        return ValueResiduals()

    def sharing(self, place: LayerPlace, num_heads: int) -> nn.Module:
        from lamina.nn.first_values import FirstValues

        return FirstValues(self.share, is_first=place.index == 0)

    def pruned(self, cut: Cut) -> Mixing:
        return self

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        """The layer that is the first now hands its values on as they are, as it did where those below were skipped."""
        for stack in ("encoder", "decoder"):
            weights.pop(f"{stack}.layers.0.attention.sharing.weight", None)

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        self.prune_weights_(moments, cut)

    def unscale(self, folding: Folding) -> None:
        """Folding leaves keys and values as they are."""
