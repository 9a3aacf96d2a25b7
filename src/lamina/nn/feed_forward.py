"""The position-wise feed-forward block (Vaswani et al. 2017, §3.3)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from lamina.nn.dropout import dropout
from lamina.nn.linear import Linear

Function = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """fc2(dropout(activation(fc1(x))))"""

    def __init__(self, dim: int, inner_dim: int, activation: Function, dropout_p: float) -> None:
        super().__init__()
        self.fc1 = Linear(dim, inner_dim)
        self.fc2 = Linear(inner_dim, dim)
        self.activation = activation
        self.dropout_p = dropout_p

    def forward(self, x: Tensor) -> Tensor:
        # As rows, so that for the compiler the function's result and what fc2 reads are one tensor: between them a view would
        # make it keep the signs of a ReLU as well, half as much again.
        rows = x.flatten(0, -2)
        return self.fc2(dropout(self.activation(self.fc1(rows)), self.dropout_p, self.training)).view(x.shape)
