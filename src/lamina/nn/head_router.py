"""Layer-integrated memory: attention reads keys and values mixed over the heads of all layers below."""

# B batch, T tokens (or K beams), D model_dim, H heads, C channels of a head, L layers below

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lamina.nn.mixing import DepthWeights, Lower, Reads, StackMixing, layer_name, recomputed


class HeadRouter(nn.Module):
    """One matrix mixes keys and values alike, from all heads of the layers below and of its own (LIMe, 2025, §3).

    At first a head reads itself with weight 1, and heads of lower layers with small random weights. A layer with none below it
    reads its own as they are.
    """

    parameter_kind = "gates"

    def __init__(self, num_heads: int, num_below: int, spread: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.spread = spread
        self.own = nn.Parameter(torch.empty(num_heads, num_heads)) if num_below else None
        self.lower = nn.Parameter(torch.empty(num_heads, num_below, num_heads)) if num_below else None

    def initialise_(self) -> None:
        if self.own is not None and self.lower is not None:
            nn.init.eye_(self.own)
            # Deviates: the published bound counts the heads of this layer among those that are read.
            bound = self.spread * math.sqrt(3 / ((self.lower.size(1) + 1) * self.num_heads))
            nn.init.uniform_(self.lower, -bound, bound)

    def forward(self, entries: Tensor, lower: Lower) -> tuple[Tensor, Tensor | None]:
        """entries: keys and values, (B, T, 2 * D); the same as attention reads them, and what the layers above are offered."""
        if lower.below is None:
            return entries, entries
        assert self.own is not None, "the first layer has nothing below"
        mixed = mix_heads(self.own, entries.unflatten(-1, (2, -1))).flatten(-2) + lower.below
        return lower.where_there_is(mixed, entries), entries


@dataclass
class _Kept:
    stream: Tensor
    entries: dict[int, Tensor] = field(default_factory=dict)  # by layer, (B, T, 2 * D)


class LayerMemory(StackMixing):
    """What a layer reads of those below is mixed here, ahead of it, so that all layers run the same code."""

    def begin(self, x: Tensor) -> Any:
        return _Kept(x)

    def read(self, kept: _Kept, layer: Any, index: int) -> Reads:
        if not kept.entries:
            return Reads(kept.stream, None)
        weights = layer.attention.sharing.lower
        if len(kept.entries) < weights.size(1):
            weights = torch.stack([weights[:, number] for number in kept.entries], dim=1)
        return Reads(kept.stream, recomputed(route, weights, *kept.entries.values()))

    def note(self, kept: _Kept, index: int, output: Reads) -> None:
        kept.stream = output.stream
        assert output.below is not None, "every layer offers its keys and values"
        kept.entries[index] = output.below

    def skip(self, kept: _Kept, index: int) -> None:
        """It has no keys and values to offer."""

    def state(self, kept: _Kept) -> Tensor:
        return kept.stream

    def final(self, kept: _Kept, num_layers: int) -> Tensor:
        return kept.stream

    def read_weights(self, stack: Any) -> DepthWeights:
        depth = len(stack.layers)
        shown = torch.full((depth, depth), torch.nan)
        for index, layer in enumerate(stack.layers):
            router = layer.attention.sharing
            if router.own is not None:
                weights = torch.cat((router.lower, router.own[:, None]), dim=1).detach().float().cpu()  # (H, L + 1, H)
                shown[index, : index + 1] = weights.abs().sum(dim=2).mean(dim=0)
        names = tuple(layer_name(number + 1) for number in range(depth))
        return DepthWeights(names[1:], names, shown[1:], "How much of each layer's keys and values a head reads: the sizes of "
                                                         "its weights, summed over that layer's heads; the mean of all heads")


def route(weights: Tensor, *entries: Tensor) -> Tensor:
    """weights: (H, L, H), entries: L times (B, T, 2 * D) -> (B, T, 2 * D)"""
    return mix_heads(weights.flatten(1), torch.cat([entry.unflatten(-1, (2, -1)) for entry in entries], dim=-1)).flatten(-2)


def mix_heads(weights: Tensor, heads: Tensor) -> Tensor:
    """H mixes of J heads. weights: (H, J), heads: (.., J * C) -> (.., H * C)

    A GPU multiplies large matrices of half precision faster than it handles many small ones, though C - 1 of C numbers are 0.
    """
    channels = heads.size(-1) // weights.size(1)
    if heads.is_cuda and heads.dtype in (torch.bfloat16, torch.float16):
        return heads @ matrix_by_channel(weights, channels)
    return (weights @ heads.unflatten(-1, (-1, channels))).flatten(-2)


def matrix_by_channel(weights: Tensor, channels: int) -> Tensor:
    """(H, J) -> (J * C, H * C), which mixes each channel of the heads by itself."""
    identity = torch.eye(channels, dtype=weights.dtype, device=weights.device)
    return (weights.t()[:, None, :, None] * identity[:, None]).flatten(2).flatten(0, 1)
