"""The linear layer of all blocks, with the products that training on a CPU needs.

torch multiplies float32 with MKL, which leaves half of the registers of some x86 CPUs unused. oneDNN, which torch brings
along, uses those that there are: on an EPYC of 2025 its products take less than half the time.
"""

# N vectors, I inputs, O outputs

from __future__ import annotations

import os
import platform
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# Multiplications of a product. oneDNN makes a kernel for each new shape, and batches keep changing theirs: from here on the
# first product of a shape is no slower than MKL's.
SMALLEST_PRODUCT = 2**24


# oneDNN and torch's layer above it each keep the kernels of so many shapes, unless the environment says otherwise. It would be
# 1,024, and since batches keep changing their shapes, a small model took 3 GiB instead of 0.7. Layers of a kind share them.
CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
KERNELS_KEPT = 32


def keep_few_kernels(environ: MutableMapping[str, str] = os.environ) -> None:
    """Before the first product of the process, which reads it."""
    for name in CACHES:
        environ.setdefault(name, str(KERNELS_KEPT))


class Linear(nn.Linear):
    """x @ weight.T + bias"""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; where it is trained on a CPU, by oneDNN, and so is its gradient. (..., I), (O, I) -> (..., O)"""
    if _suits_onednn(x, weight) and torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _OneDnn.apply(x, weight, bias)  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias where nobody asks for its gradient. (..., I), (O, I) -> (..., O)"""
    if not _suits_onednn(x, weight):
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def add_product_(total: Tensor, x: Tensor, weight: Tensor) -> None:
    """Add x @ weight.T where nobody asks for its gradient. total: (N, O), perhaps of a wider type than (N, I) and (O, I)"""
    if total.dtype == x.dtype and not _suits_onednn(x, weight):
        total.addmm_(x, weight.t())
    else:
        total += product(x, weight)


def has_onednn() -> bool:
    """Whether this torch and this CPU have its kernels."""
    return torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    return (x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
            and x.numel() * weight.size(0) >= SMALLEST_PRODUCT and has_onednn())


class _OneDnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = out_grad.flatten(0, -2)  # (N, O)
        return (product(out_grad, weight.t()) if needs_x else None,
                product(rows.t(), x.flatten(0, -2).t()) if needs_weight else None,
                rows.sum(dim=0) if needs_bias else None)
