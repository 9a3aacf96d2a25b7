"""Depth-weighted averages: each layer reads a learned sum of all states below it (DenseFormer)."""

# B batch, T tokens (or K beams), D model_dim, N states

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lamina.nn.mixing import INPUT, OUTPUT, DepthWeights, StackMixing, layer_name, recomputed


class DepthAverage(StackMixing):
    """Layer i reads a weighted sum of the stack's input and the outputs below it (Pagliardini et al. 2024, §3).

    Row i of `weight` is what layer i reads, the last row what the stack hands on: at first 1 for the newest state and 0 for
    the others. Every `period`-th row averages, over every `dilation`-th state; the others read the newest one. The first row
    is a scale of the input, which only pruned models need (`scales_input`).
    """

    parameter_kind = "gates"

    def __init__(self, num_layers: int, *, dilation: int, period: int, scales_input: bool, has_output: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_layers + 1, num_layers + 1))
        self.dilation = dilation
        self.period = period
        self.scales_input = scales_input
        self.has_output = has_output

    def initialise_(self) -> None:
        nn.init.eye_(self.weight)

    def columns(self, index: int) -> Sequence[int]:
        """The states that row `index` sums up."""
        return summed_states(index, dilation=self.dilation, period=self.period, scales_input=self.scales_input)

    def forward(self, states: Sequence[Tensor], index: int) -> Tensor:
        columns = self.columns(index)
        is_read = self.has_output or index < len(self.weight) - 1
        if not columns or not is_read:
            return states[index]
        weights = self.weight[index, columns[0] : index + 1 : self.dilation]
        mixed: Tensor = recomputed(weighted_sum, weights, *(states[column] for column in columns))
        return mixed

    def read_weights(self, stack: nn.Module) -> DepthWeights:
        depth = len(self.weight) - 1
        shown = torch.full(self.weight.shape, torch.nan)
        weight = self.weight.detach().float().cpu()
        for index in range(depth + 1):
            columns = list(self.columns(index))
            shown[index, columns or [index]] = weight[index, columns] if columns else 1.0
        first, last = 0 if self.scales_input else 1, depth + 1 if self.has_output else depth
        readers = (*(layer_name(number + 1) for number in range(depth)), OUTPUT)
        return DepthWeights(readers[first:last], (INPUT, *(layer_name(number + 1) for number in range(depth))),
                            shown[first:last], "The weight of each state in the sum that a layer reads; 1 for the newest state "
                                               "and 0 for the others is a stack without averages")


def summed_states(index: int, *, dilation: int, period: int, scales_input: bool) -> Sequence[int]:
    """The states that are summed up ahead of layer `index`; none where it reads the newest one as it is."""
    if index == 0:
        return range(1) if scales_input else range(0)
    return range(index % dilation, index + 1, dilation) if index % period == 0 else range(0)


def weighted_sum(weights: Tensor, *states: Tensor) -> Tensor:
    """weights: (N,), states: N times (B, T, D) -> (B, T, D)"""
    return (weights @ torch.stack(states).flatten(1)).view_as(states[0])
