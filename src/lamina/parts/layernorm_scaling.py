"""LayerNorm scaling: what Pre-LN's norms put out is the smaller, the higher the layer (Sun et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lamina.errors import ConfigError
from lamina.fields import check, flag
from lamina.parts.contracts import LayerPlace, Residual
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn

    from lamina.checkpoint.folding import Folding
    from lamina.pruning.cut import Cut

_HELP = ("numbers, from 1, that the layers of the {} had when training began; their places if left out. Pruning sets it")


@register.residual("layernorm-scaling")
@dataclass(frozen=True, kw_only=True)
class LayerNormScaling(Residual):
    """x + f(norm(x) / sqrt(l)), l the number of the layer, from 1 (Sun et al. 2025)."""

    set_by_pruning = ("lns-encoder-layers", "lns-decoder-layers")
    is_sum = True

    encoder_layers: tuple[int, ...] = flag((), _HELP.format("encoder"), name="lns-encoder-layers", metavar="N,..")
    decoder_layers: tuple[int, ...] = flag((), _HELP.format("decoder"), name="lns-decoder-layers", metavar="N,..")

    def __post_init__(self) -> None:
        for stack in ("encoder", "decoder"):
            numbers = self._given(stack)
            check(all(number >= 1 for number in numbers),
                  f"--lns-{stack}-layers is {','.join(map(str, numbers))}; layers are counted from 1.")

    def check(self, pre_norm_sides: Sequence[str]) -> None:
        check(bool(pre_norm_sides), f"{self.spelled} scales the norms of Pre-LN. Add --encoder-normalize-before and "
                                    "--decoder-normalize-before, whichever the model has.")

    def adds(self, place: LayerPlace) -> list[nn.Module]:
        from lamina.nn.residual import Add

        return [Add() for _ in range(place.num_sub_layers)]

    def norm(self, place: LayerPlace) -> nn.Module:
        if not place.is_pre_norm:
            raise ConfigError(f"{self.spelled} scales the norms of Pre-LN, and the {place.stack} is Post-LN. Add "
                              f"--{place.stack}-normalize-before.")
        return _scaled_norm()(place.dim, self._scale(place.stack, place.index, place.num_layers))

    def pruned(self, cut: Cut) -> Residual:
        numbers = {stack: tuple(self._numbers(stack, depth)[index] for index in layers)
                   for stack, layers, depth in (("encoder_layers", cut.encoder, cut.num_encoder),
                                                ("decoder_layers", cut.decoder, cut.num_decoder)) if len(layers) < depth}
        return replace(self, **numbers)

    def compared_as(self) -> Residual:
        return LayerNormScaling()

    def fold(self, folding: Folding) -> None:
        for stack in folding.stacks:
            depth = getattr(folding.config, stack).num_layers
            for part in folding.sub_layers(stack):
                folding.scale_norm(f"{part.residual}.norm", self._scale(stack, int(part.residual.split(".")[2]), depth))

    def _given(self, stack: str) -> tuple[int, ...]:
        return self.encoder_layers if stack.startswith("encoder") else self.decoder_layers

    def _numbers(self, stack: str, depth: int) -> tuple[int, ...]:
        given = self._given(stack)
        if given and len(given) != depth:
            raise ConfigError(f"--lns-{stack.removesuffix('_layers')}-layers names {len(given)} layers, and there are {depth}. "
                              "Leave it out: pruning sets it.")
        return given or tuple(range(1, depth + 1))

    def _scale(self, stack: str, index: int, depth: int) -> float:
        return self._numbers(stack, depth)[index] ** -0.5


@cache  # one class for all layers, so that they share what is compiled
def _scaled_norm() -> Any:
    import torch
    from torch import nn

    class ScaledNorm(nn.LayerNorm):
        scale: torch.Tensor

        def __init__(self, dim: int, scale: float) -> None:
            super().__init__(dim)
            # A tensor: what is compiled is compiled again for another number.
            self.register_buffer("scale", torch.tensor(scale), persistent=False)

        def forward(self, x: Any) -> Any:
            return super().forward(x) * self.scale

    return ScaledNorm
