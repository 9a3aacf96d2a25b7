"""How a branch joins the residual stream: two orders of norm and sum, and ways to add, freely combined."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lamina.nn import step_rows
from lamina.nn.dropout import dropout


class Add(nn.Module):
    """x + f(x)"""

    def scales(self) -> tuple[Tensor | float, Tensor | float]:
        """What shortcut and branch are multiplied by, for those who look at a sum from outside."""
        return 1.0, 1.0

    def forward(self, x: Tensor, branch_output: Tensor) -> Tensor:
        return x + branch_output


class OmegaAdd(Add):
    """omega * x + f(x), omega per channel (Admin, Liu et al. 2020, §4.3); omega = 1 is plain Add."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.omega = nn.Parameter(torch.ones(dim))

    def scales(self) -> tuple[Tensor | float, Tensor | float]:
        return self.omega, 1.0

    def forward(self, x: Tensor, branch_output: Tensor) -> Tensor:
        return torch.addcmul(branch_output, self.omega, x)


class ReZero(Add):
    """x + scale * f(x), scale 0 at first (Bachlechner et al. 2020, §3). The sub-layers of a layer share one object."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def scales(self) -> tuple[Tensor | float, Tensor | float]:
        return 1.0, self.scale

    def forward(self, x: Tensor, branch_output: Tensor) -> Tensor:
        return torch.addcmul(x, self.scale, branch_output)


class DeepNorm(Add):
    """alpha * x + f(x), alpha a constant (Wang et al. 2022, §3.1)."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def scales(self) -> tuple[Tensor | float, Tensor | float]:
        return self.alpha, 1.0

    def forward(self, x: Tensor, branch_output: Tensor) -> Tensor:
        return torch.add(branch_output, x, alpha=self.alpha)


class PostNorm(nn.Module):
    """norm(add(x, f(x))), Vaswani et al. (2017), §3.1; its twin PreNorm is add(x, f(norm(x))).

    Called as residual(x, branch, layer_input); these two have no use for what the whole layer read.
    """

    # Of one whose sum holds the layer's input again: how many sub-layers ago, itself included, the layer read it.
    returns_input: int = 0

    def __init__(self, norm: nn.Module, add: nn.Module, dropout_p: float) -> None:
        super().__init__()
        self.norm = norm
        self.add = add
        self.dropout_p = dropout_p

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor], layer_input: Tensor | None = None) -> Tensor:
        added = dropout(branch(x), self.dropout_p, self.training)
        if step_rows.suits(x, added) and type(self.norm) is nn.LayerNorm and type(self.add) in (Add, OmegaAdd):
            return step_rows.add_norm(x, added, self.norm, self.add.omega if isinstance(self.add, OmegaAdd) else None)
        return self.norm(self.add(x, added))


class PreNorm(PostNorm):
    """add(x, f(norm(x))): the stream itself is never normalised (Xiong et al. 2020)."""

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor], layer_input: Tensor | None = None,
                normed: Tensor | None = None) -> Tensor:
        """`normed`: what the norm makes of x, where that is known."""
        return self.add(x, dropout(branch(self.norm(x) if normed is None else normed), self.dropout_p, self.training))
