"""DenseFormer: each layer reads a learned weighted sum of all states below it (Pagliardini et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lamina.fields import check, flag
from lamina.parts.contracts import LayerPlace, Mixing
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lamina.pruning.cut import Cut


@register.mixing("denseformer")
@dataclass(frozen=True, kw_only=True)
class DenseFormer(Mixing):
    """Depth-weighted averages: layer i reads sum_j a_ij x_j, x_j the stack's input and the outputs below; a_ii = 1 at first."""

    set_by_pruning = ("dwa-dilation", "dwa-period", "dwa-input")

    dilation: int = flag(1, "sum up every k-th state below alone", name="dwa-dilation", paper="Pagliardini et al. 2024 §3.1")
    period: int = flag(1, "average ahead of every p-th layer alone", name="dwa-period", paper="Pagliardini et al. 2024 §3.1")
    scales_input: bool = flag(False, "the first layer scales the stack's input; pruning the first layer sets this",
                              name="dwa-input")

    def __post_init__(self) -> None:
        for name in ("dilation", "period"):
            check(getattr(self, name) >= 1, f"--dwa-{name} is {getattr(self, name)}; it must be at least 1.")

    def build(self, place: LayerPlace, *, has_output: bool) -> nn.Module:
        from lamina.nn.depth_average import DepthAverage

        return DepthAverage(place.num_layers, dilation=self.dilation, period=self.period, scales_input=self.scales_input,
                            has_output=has_output)

    def pruned(self, cut: Cut) -> Mixing:
        """What was read of a removed layer is read of the state below it: sums of weights, and no pattern any more."""
        loses_first = cut.encoder[0] > 0 or cut.decoder[0] > 0
        return replace(self, dilation=1, period=1, scales_input=self.scales_input or loses_first)

    def prune_weights_(self, weights: dict[str, Tensor], cut: Cut) -> None:
        for stack, layers, depth, state_of in (("encoder", cut.encoder, cut.num_encoder, cut.encoder_state),
                                               ("decoder", cut.decoder, cut.num_decoder, cut.decoder_state)):
            if (name := f"{stack}.mixing.weight") in weights:
                dense = self._dense(weights[name])
                merged = dense.new_zeros(len(layers) + 1, len(layers) + 1)
                for state in range(depth + 1):
                    merged[:, state_of(state)] += dense[[*layers, depth], state]
                weights[name] = merged

    def prune_moments_(self, moments: dict[str, Tensor], cut: Cut) -> None:
        """Of sums there is nothing to remember: they are new."""
        for stack in ("encoder", "decoder"):
            moments.pop(f"{stack}.mixing.weight", None)

    def _dense(self, weight: Tensor) -> Tensor:
        """The same sums with a weight for every state below, 0 for those that were not read."""
        import torch

        from lamina.nn.depth_average import summed_states

        dense = torch.zeros_like(weight)
        for index in range(len(weight)):
            columns = list(summed_states(index, dilation=self.dilation, period=self.period, scales_input=self.scales_input))
            dense[index, columns or [index]] = weight[index, columns] if columns else 1.0
        return dense
