"""A linear layer whose matrix stays as it is, and a product of two thin ones beside it that is trained (Hu et al. 2022)."""

# I inputs, O outputs, R rank, N matrices that are one, rows below rows, of which some are changed

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lamina.nn.dropout import dropout
from lamina.nn.linear import linear


class LowRank(nn.Module):
    """What is added to a matrix: for each of the chosen blocks of its rows, up @ down."""

    parameter_kind = "adapters"

    def __init__(self, in_features: int, block_size: int, blocks: Sequence[bool], rank: int, like: Tensor) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.down = nn.Parameter(like.new_empty(sum(blocks) * rank, in_features))
        self.up = nn.Parameter(like.new_zeros(sum(blocks) * block_size, rank))  # at first it adds nothing
        bound = in_features**-0.5
        nn.init.uniform_(self.down, -bound, bound)

    def wide_up(self) -> Tensor:
        """For all rows of the matrix; a block reads its own part of what `down` gives. (O, sum of R)"""
        if len(self.blocks) == 1:
            return self.up
        ups = iter(self.up.chunk(sum(self.blocks)))
        block_size = len(self.up) // sum(self.blocks)
        return torch.block_diag(*(next(ups) if block else self.up.new_zeros(block_size, 0) for block in self.blocks))

    def forward(self, x: Tensor) -> Tensor:
        return linear(linear(x, self.down), self.wide_up())


class LoraLinear(nn.Module):
    """linear(x) + scale * up(down(dropout(x))); the weights of `linear` keep their names."""

    parameter_kind = "projections"

    def __init__(self, linear: nn.Linear, blocks: Sequence[bool], *, rank: int, scale: float, dropout_p: float) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.out_features, self.in_features = linear.weight.shape
        self.scale = scale
        self.dropout_p = dropout_p
        self.lora = LowRank(self.in_features, self.out_features // len(blocks), blocks, rank, linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        added = self.lora(dropout(x, self.dropout_p, self.training))
        return torch.add(linear(x, self.weight, self.bias), added, alpha=self.scale)


def merged_weight(weight: Tensor, down: Tensor, up: Tensor, blocks: Sequence[bool], scale: float) -> Tensor:
    """The plain matrix that does the same, rounded once, where the matrix is: frozen ones may wait on the host. (O, I)"""
    wide, down, up = (matrix.detach().to(weight.device, torch.float64) for matrix in (weight, down, up))
    thin = zip(down.split(up.size(1)), up.chunk(sum(blocks)), strict=True)
    parts = list(wide.chunk(len(blocks)))
    for number, (narrowing, widening) in zip((number for number, block in enumerate(blocks) if block), thin, strict=True):
        parts[number] = parts[number] + scale * (widening @ narrowing)
    return torch.cat(parts).to(weight.dtype)
