"""LIMe, layer-integrated memory: attention reads keys and values of all layers below (Gerasimov et al. 2025)."""

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


@register.mixing("lime")
@dataclass(frozen=True, kw_only=True)
class LayerIntegratedMemory(Mixing):
    """Each head reads learned mixes of the keys and values of all heads of its own layer and those below."""

    reads_layers = True

    spread: float = flag(1.0, "how far the weights of lower layers' heads begin from 0, as a share of the published bound; 0 "
                              "begins as the plain model", name="lime-spread", paper="Gerasimov et al. 2025 §3")

    def __post_init__(self) -> None:
        check(self.spread >= 0.0, f"--lime-spread is {self.spread}; it must be 0 or more.")

    def build(self, place: LayerPlace, *, has_output: bool) -> nn.Module:
        from lamina.nn.head_router import LayerMemory

        return LayerMemory()

    def sharing(self, place: LayerPlace, num_heads: int) -> nn.Module:
        from lamina.nn.head_router import HeadRouter

        return HeadRouter(num_heads, place.index, self.spread)

    def pruned(self, cut: Cut) -> Mixing:
        return self

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        """A removed layer has no keys and values to offer; what is the first layer now reads its own as they are."""
        for stack, layers in (("encoder", cut.encoder), ("decoder", cut.decoder)):
            for name in ("own", "lower"):
                weights.pop(f"{stack}.layers.0.attention.sharing.{name}", None)
            for index in range(1, len(layers)):
                if (name := f"{stack}.layers.{index}.attention.sharing.lower") in weights:
                    weights[name] = weights[name][:, list(layers[:index])]

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        self.prune_weights_(moments, cut)

    def unscale(self, folding: Folding) -> None:
        """Folding leaves keys and values as they are."""
