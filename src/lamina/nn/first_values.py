"""Value residual: every layer's attention also reads the values of the first layer."""

# B batch, T tokens (or K beams), D model_dim

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lamina.nn.mixing import DepthWeights, Lower, Reads, StackMixing, layer_name


class FirstValues(nn.Module):
    """weight[0] * (values of the first layer that runs) + weight[1] * (a layer's own) (Zhou et al. 2025, ResFormer)."""

    parameter_kind = "gates"

    def __init__(self, share: float, *, is_first: bool) -> None:
        super().__init__()
        self.share = share
        self.weight = None if is_first else nn.Parameter(torch.empty(2))

    def initialise_(self) -> None:
        if self.weight is not None:
            with torch.no_grad():
                self.weight.copy_(torch.tensor([self.share, 1.0 - self.share]))

    def forward(self, entries: Tensor, lower: Lower) -> tuple[Tensor, Tensor | None]:
        """entries: keys and values, (B, T, 2 * D); the same as attention reads them, and what the layers above are offered."""
        keys, values = entries.chunk(2, dim=-1)
        if lower.below is None:
            return entries, values
        assert self.weight is not None, "the first layer has nothing below"
        mixed = lower.where_there_is(self.weight[0] * lower.below + self.weight[1] * values, values)
        return torch.cat((keys, mixed), dim=-1), None if lower.has_below is None else values


@dataclass
class _Kept:
    stream: Tensor
    first: Tensor | None = None  # (B, T, D)


class ValueResiduals(StackMixing):
    """Hands the first values on; the weights stand in the layers."""

    def begin(self, x: Tensor) -> Any:
        return _Kept(x)

    def read(self, kept: _Kept, layer: Any, index: int) -> Reads:
        return Reads(kept.stream, kept.first)

    def note(self, kept: _Kept, index: int, output: Reads) -> None:
        kept.stream = output.stream
        if kept.first is None:
            kept.first = output.below

    def skip(self, kept: _Kept, index: int) -> None:
        """The next layer that runs is the first, then."""

    def state(self, kept: _Kept) -> Tensor:
        return kept.stream

    def final(self, kept: _Kept, num_layers: int) -> Tensor:
        return kept.stream

    def read_weights(self, stack: Any) -> DepthWeights:
        weights = [layer.attention.sharing.weight for layer in stack.layers][1:]
        return DepthWeights(tuple(layer_name(number + 2) for number in range(len(weights))), ("layer 1's values", "its own"),
                            torch.stack([weight.detach().float().cpu() for weight in weights]) if weights
                            else torch.empty(0, 2), "The weights of the first layer's values and of a layer's own")
