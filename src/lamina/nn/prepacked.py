"""Matrices laid out ahead for the processor's fused kernels (oneDNN's), for models that are used and not trained.

A prepacked model computes what it did before: its linear layers are exchanged for such, and so is the product with the
vocabulary; embedding lookups stay as they are, also where they share a table with that product. `PrepackedLinear` computes in
float32. `Int8Linear` rounds the matrix to 8 bits once, a scale for each of its rows, and the vectors that it meets each time, a
scale for each vector: what a vector becomes never depends on the others of its batch.
"""

# N vectors, I inputs, O outputs

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor, nn

LARGEST_WEIGHT = 127
SMALLEST = 1e-30  # what a matrix's row of zeros is divided by
# Rows that a matrix is laid out for: a batch of sentences with their beams. Other numbers of rows are right too.
USUAL_ROWS = 160


def can_prepack() -> bool:
    """Whether this torch and this processor have the kernels."""
    return torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")


class Prepacked(nn.Module):
    """A linear layer whose matrix is laid out for one kernel."""

    weight: nn.Parameter  # opaque: only its kernel can read it; a parameter, so that whoever counts weights still finds it

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else _fixed(bias)

    def disown_(self, name: str) -> None:
        """What another layer shares with this one is counted there, as before it was packed."""
        copy = getattr(self, name).detach()
        delattr(self, name)
        self.register_buffer(name, copy, persistent=False)

    def size(self, dim: int) -> int:
        """As of the matrix before it was packed."""
        return (self.out_features, self.in_features)[dim]


class PrepackedLinear(Prepacked):
    """x @ weight.T + bias, in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight = _fixed(torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), USUAL_ROWS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class Int8Linear(Prepacked):
    """x @ weight.T + bias, where the product is one of 8-bit integers."""

    limit: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=SMALLEST) / LARGEST_WEIGHT  # (O,)
        integers = (weight / scales[:, None]).round().to(torch.int8)
        self.weight = _fixed(torch.ops.onednn.qlinear_prepack(integers, [USUAL_ROWS, self.in_features]))
        # The kernel's vectors are unsigned, 0 in the middle. Without VNNI it adds two products in 16 bits: 7 of them must do.
        self.largest = 127 if torch.cpu._is_vnni_supported() else 63
        self.register_buffer("limit", torch.tensor(float(self.largest)))
        self.register_buffer("scales", scales / self.largest)
        self.register_buffer("zeros", torch.zeros_like(scales, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)  # (N, I)
        largest = flat.abs().amax(dim=1, keepdim=True)
        # Of a vector of zeros the integers are arbitrary, and its product is multiplied by 0 in the end.
        integers = (flat * torch.div(self.limit, largest)).round_().to(torch.int8)
        # Integers of 8 bits with sign, then the sign's bit turned over: as if the middle had been added, and far faster.
        middle = self.largest + 1
        integers = integers.view(torch.uint8).bitwise_xor_(128) if middle == 128 else (integers + middle).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise(integers, 1.0, middle, self.weight, self.scales, self.zeros, None, 1.0, 0,
                                                     torch.float32, "none", [], "")
        product.mul_(largest)
        if self.bias is not None:
            product.add_(self.bias)
        return product.view(*x.shape[:-1], self.out_features)


@torch.no_grad()
def prepack_(model: nn.Module, kind: type[Prepacked]) -> None:
    """Exchange the linear layers of a model on the processor that computes in float32, and its product with the vocabulary."""
    exchanged: list[tuple[nn.Linear, Prepacked]] = []
    for part in list(model.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.Linear) and name not in getattr(part, "reads_weights_of", ()):
                packed = kind(child.weight, child.bias)
                setattr(part, name, packed)
                exchanged.append((child, packed))
    counted = set(map(id, model.parameters()))
    for linear, packed in exchanged:
        for name, parameter in linear.named_parameters():
            if id(parameter) in counted:
                packed.disown_(name)
            counted.add(id(parameter))
    head: Any = getattr(model, "head", None)
    if hasattr(head, "prepacked_output"):
        # Past nn.Module's book-keeping: a copy of the table's weights is none of the model's own.
        head.__dict__["prepacked_output"] = kind(head.table.weight, None)


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)
