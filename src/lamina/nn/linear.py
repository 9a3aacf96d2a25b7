"""The linear layer of all blocks, and the products that training needs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn.prepacked import can_prepack

# Numbers in a matrix: for smaller ones, what a kernel made for a new shape costs is more than it saves.
SMALLEST_MATRIX = 2**17


class Linear(nn.Linear):
    """x @ weight.T + bias, by the fastest kernels there are for training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.requires_grad and torch.is_grad_enabled() and _suits_onednn(x, self.weight):
            return _OneDnn.apply(x, self.weight, self.bias)
        return super().forward(x)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias where nobody asks for its gradient. (N, I), (O, I) -> (N, O)"""
    if not _suits_onednn(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    return (x.device.type == "cpu" and x.dtype == torch.float32 and weight.numel() >= SMALLEST_MATRIX
            and is_onednn_faster())


@cache
def is_onednn_faster() -> bool:
    """MKL, torch's default for products of float32, does not use the widest registers of AMD's processors; oneDNN does."""
    try:
        vendor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return False
    return "AuthenticAMD" in vendor and can_prepack()


class _OneDnn(torch.autograd.Function):
    """oneDNN's product, and its gradient by the vectors; MKL's is faster for the gradient by the matrix, whose sum is long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, out_grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        x_grad = product(out_grad, weight.t()) if ctx.needs_input_grad[0] else None
        rows = out_grad.flatten(0, -2)  # (N, O)
        return x_grad, rows.t() @ x.flatten(0, -2), rows.sum(dim=0) if ctx.has_bias else None
