"""Muon: what moves a matrix is made orthogonal first, so that none of its directions outweighs the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.fields import check, flag
from lamina.parts.contracts import MatrixRule, Optimizer
from lamina.parts.update_rules import Adam, Factors, unless
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from lamina.nn.parameter_kinds import Parameter

# Of x -> a x + b x^3 + c x^5, five times: singular values between 0 and 1 end near 1, small ones quickly.
STEPS, A, B, C = 5, 3.4445, -4.7750, 2.0315
NORM_FLOOR = 1e-7
ADAMS_RMS = 0.2  # of an update, in units of the learning rate (Liu et al. 2025, §2.2)


@register.optimizer("muon")
@dataclass(frozen=True, kw_only=True)
class Muon(Adam):
    """Orthogonal updates for matrices inside layers, Adam for all else.

    Nesterov's momentum, made orthogonal by five Newton-Schulz steps in bfloat16 (Jordan et al. 2024). Updates are as large as
    Adam's (Liu et al. 2025, §2.2), so that one --lr and one --weight-decay serve both. Query, key and value are three matrices.
    Embeddings, what looks at the vocabulary, weights of layers in a fusion, gates, norms and biases are moved by Adam.
    """

    muon_momentum: float = flag(0.95, "share of the running mean of gradients that carries over, for matrices inside layers",
                                paper="Jordan et al. 2024")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(0.0 <= self.muon_momentum < 1.0, f"--muon-momentum is {self.muon_momentum}; it must lie in [0, 1). Try 0.95.")

    def rule_for(self, parameter: Parameter) -> Optimizer | MatrixRule:
        if parameter.kind == "matrices":
            return Orthogonal(momentum=self.muon_momentum, weight_decay=self.weight_decay)
        return super().rule_for(parameter)


@dataclass(frozen=True, kw_only=True)
class Orthogonal(MatrixRule):
    """m = lerp(m, g, 1 - momentum); p = (1 - lr * decay) * p - lr * 0.2 sqrt(max(R, C)) * orthogonal(lerp(g, m, momentum))."""

    momentum: float
    weight_decay: float

    buffers = ("momentum_buffer",)

    def factors(self, step: Tensor, lr: Tensor, ok: Tensor | None) -> Factors:
        return (unless(ok, 1.0 - self.momentum), unless(ok, lr), unless(ok, 1.0 - lr * self.weight_decay, neutral=1.0))

    def direction(self, grad: Tensor, buffers: list[Tensor], factors: Factors) -> Tensor:
        (mean,) = buffers
        mean.lerp_(grad, factors[0])
        return grad.lerp(mean, self.momentum).bfloat16()

    def whole(self, directions: Tensor) -> Tensor:
        import torch

        if directions.is_cuda:
            return orthogonal(directions)
        # One at a time, a CPU gives the bits that torch.optim.Muon has.
        return torch.stack([orthogonal(matrix) for matrix in directions])

    def move_(self, weights: list[Tensor], steps: list[Tensor], shape: tuple[int, int], factors: Factors) -> None:
        import torch

        _, lr, kept = factors
        size = ADAMS_RMS * math.sqrt(max(shape))
        if not lr.is_cuda:  # a number costs nothing there, and is added in one operation
            torch._foreach_mul_(weights, float(kept))
            torch._foreach_add_(weights, steps, alpha=-float(lr) * size)
            return
        torch._foreach_mul_(weights, kept.float())
        steps = [step.float() for step in steps]
        torch._foreach_mul_(steps, (lr * -size).float())
        torch._foreach_add_(weights, steps)


def orthogonal(matrices: Tensor) -> Tensor:
    """U V^T of U S V^T, nearly: singular values end between 0.7 and 1.2. (..., R, C), in bfloat16"""
    import torch

    is_tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=NORM_FLOOR)
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(STEPS):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if is_tall else x
