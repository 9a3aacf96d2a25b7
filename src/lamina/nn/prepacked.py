"""Matrices laid out ahead for the CPU's fused kernels (oneDNN's), for models that are used and not trained.

A prepacked model computes what it did before: its linear layers are exchanged for such, and so is the product with the
vocabulary; embedding lookups stay as they are, also where they share a table with that product. `PrepackedLinear` computes in
float32. `Int8Linear` rounds the matrix to 8 bits once, a scale for each of its rows, and the vectors that it meets each time, a
scale for each vector: what a vector becomes never depends on the others of its batch.
"""

# N vectors, I inputs, O outputs

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lamina.errors import ConfigError
from lamina.nn.linear import Linear, has_onednn

LARGEST_WEIGHT = 127
SMALLEST = 1e-30  # what a matrix's row of zeros is divided by
# Rows that a matrix is laid out for: a batch of sentences with their beams. Other numbers of rows are right too.
USUAL_ROWS = 160


class Prepacked(nn.Module, ABC):
    """A linear layer whose matrix is laid out for one kernel.

    The laid out matrix is a parameter, so that code that counts weights still finds it; only its kernel can read it. Everybody
    else (`weight`, `state_dict`, pickle, copies) sees the plain matrix.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = None if bias is None else _fixed(bias)
        self.shared: dict[str, nn.Parameter] = {}  # what another layer owns too, as that layer has it

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The plain matrix, unpacked at each call. (O, I)"""

    @property
    def packed(self) -> Tensor:
        """The matrix as its kernel reads it."""
        return self._parameters.get("weight", self._buffers.get("weight"))  # type: ignore[return-value]

    def disown_(self, name: str, owned: nn.Parameter) -> None:
        """What another layer shares with this one is counted there, as before it was packed."""
        kept = self._parameters.pop(name)
        assert kept is not None
        self.shared[name] = owned
        self._buffers[name] = kept.detach()
        self._non_persistent_buffers_set.add(name)

    def size(self, dim: int) -> int:
        """As of the matrix before it was packed."""
        return (self.out_features, self.in_features)[dim]

    def unpacked(self) -> nn.Linear:
        """The layer that it was; what is shared is shared again."""
        return _plain(self.weight, self.bias, self.shared, is_training=self.training)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias.detach()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        raise ConfigError("a layer whose matrix is laid out for the CPU (prepacked) cannot be moved or converted alone. Move "
                          "the whole model, which unpacks it, or load with prepack=False.")

    def __reduce_ex__(self, protocol: Any) -> Any:
        # For pickle and copy.deepcopy, which know nothing of a kernel's layout.
        return _packed_again, (type(self), self.weight, self.bias, self.shared, self.training)


class PrepackedLinear(Prepacked):
    """x @ weight.T + bias, in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._parameters["weight"] = _fixed(torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), USUAL_ROWS))

    @property
    def weight(self) -> Tensor:
        return self.packed.detach().to_dense()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Int8Linear(Prepacked):
    """x @ weight.T + bias, where the product is one of 8-bit integers."""

    limit: Tensor
    scales: Tensor  # (O,), of the rows' integers
    product_scales: Tensor  # (O,), of those of the product

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        weight = weight.detach().float().contiguous()
        scales = _short(weight.abs().amax(dim=1).clamp(min=SMALLEST) / LARGEST_WEIGHT)  # (O,)
        integers = (weight / scales[:, None]).round().to(torch.int8)
        self._parameters["weight"] = _fixed(torch.ops.onednn.qlinear_prepack(integers, [USUAL_ROWS, self.in_features]))
        # The kernel's vectors are unsigned, 0 in the middle. Without VNNI it adds two products in 16 bits: 7 of them must do.
        self.largest = 127 if torch.cpu._is_vnni_supported() else 63
        self.register_buffer("limit", torch.tensor(float(self.largest)))
        self.register_buffer("scales", scales)
        self.register_buffer("product_scales", scales / self.largest)
        self.register_buffer("zeros", torch.zeros_like(scales, dtype=torch.int64))

    @property
    def weight(self) -> Tensor:
        """Rounded: packed again, it gives the same integers."""
        return self.packed.detach().to_dense().t().float().contiguous() * self.scales[:, None]

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)  # (N, I)
        largest = flat.abs().amax(dim=1, keepdim=True)
        # Of a vector of zeros the integers are arbitrary, and its product is multiplied by 0 in the end.
        integers = (flat * torch.div(self.limit, largest)).round_().to(torch.int8)
        # Integers of 8 bits with sign, then the sign's bit turned over: as if the middle had been added, and far faster.
        middle = self.largest + 1
        integers = integers.view(torch.uint8).bitwise_xor_(128) if middle == 128 else (integers + middle).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise(integers, 1.0, middle, self.packed, self.product_scales, self.zeros, None,
                                                     1.0, 0, torch.float32, "none", [], "")
        product.mul_(largest)
        if self.bias is not None:
            product.add_(self.bias)
        return product.view(*x.shape[:-1], self.out_features)


@torch.no_grad()
def prepack_(model: nn.Module, kind: type[Prepacked]) -> None:
    """Exchange the linear layers of a model on the CPU that computes in float32, and its product with the vocabulary."""
    exchanged: list[tuple[nn.Linear, Prepacked]] = []
    for part in list(model.modules()):
        for name, child in part.named_children():
            if not isinstance(child, nn.Linear) or type(child) not in (nn.Linear, Linear):
                continue  # a subclass of somebody's, which may do more
            if name not in getattr(part, "reads_weights_of", ()):
                packed = kind(child.weight, child.bias).train(child.training)
                setattr(part, name, packed)
                exchanged.append((child, packed))
    counted = {id(parameter) for part in model.modules() for parameter in part._parameters.values()}
    for linear, packed in exchanged:
        for name, parameter in linear.named_parameters():
            if id(parameter) in counted:
                packed.disown_(name, parameter)
            counted.add(id(parameter))
    head: Any = getattr(model, "head", None)
    if hasattr(head, "prepacked_output"):
        # Past nn.Module's book-keeping: a copy of the table's weights is none of the model's own.
        head.__dict__["prepacked_output"] = kind(head.table.weight, None)


@torch.no_grad()
def unpack_(model: nn.Module) -> None:
    """Undo `prepack_`: plain linear layers, which can be moved, trained and saved. What was rounded to 8 bits stays rounded."""
    for part in list(model.modules()):
        part.__dict__.pop("prepacked_output", None)
        for name, child in part.named_children():
            if isinstance(child, Prepacked):
                setattr(part, name, child.unpacked())


def is_prepacked(model: nn.Module) -> bool:
    return any(isinstance(part, Prepacked) for part in model.modules())


def _packed_again(kind: type[Prepacked], weight: Tensor, bias: Tensor | None, shared: dict[str, nn.Parameter],
                  is_training: bool) -> nn.Module:
    """Where the kernels are; elsewhere the plain layer."""
    if not has_onednn():
        return _plain(weight, bias, shared, is_training=is_training)
    with torch.no_grad():
        packed = kind(weight, bias)
    for name, parameter in shared.items():
        packed.disown_(name, parameter)
    return packed.train(is_training)


def _plain(weight: Tensor, bias: Tensor | None, shared: Mapping[str, nn.Parameter], *, is_training: bool) -> nn.Linear:
    layer = Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
    layer.weight = shared["weight"] if "weight" in shared else nn.Parameter(weight)
    if bias is not None:
        layer.bias = shared["bias"] if "bias" in shared else nn.Parameter(bias.detach())
    return layer.train(is_training)


def _short(scales: Tensor) -> Tensor:
    """With 16 bits of mantissa: times an integer of 8 bits they are exact, so a row that was rounded gives its scale again."""
    mantissa, exponent = torch.frexp(scales)
    return torch.ldexp((mantissa * 2**16).round() / 2**16, exponent)


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)
