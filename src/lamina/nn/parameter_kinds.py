"""What a model's parameters are for: an optimizer may treat an embedding unlike a matrix inside a layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from lamina.nn.stack import stacks_of

MATRICES = "matrices"  # inside layers


class Parameter(NamedTuple):
    """A parameter without its numbers. Modules say of their own what `parameter_kind` it is, where that is not plain to see."""

    name: str
    shape: tuple[int, ...]
    kind: str
    num_matrices: int = 1  # that are one parameter, rows below rows: a module names its own in `fused`


def parameters_of(model: nn.Module) -> list[Parameter]:
    """In the order of `named_parameters`."""
    kinds: dict[int, str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            kinds.setdefault(id(parameter), _kind(module, name, parameter))
    inside = {id(parameter) for stack in stacks_of(model).values() for parameter in stack.layers.parameters()}
    fused = {id(getattr(module, child).weight): number
             for module in model.modules() for child, number in getattr(module, "fused", {}).items()}
    found = []
    for name, parameter in model.named_parameters():
        kind = kinds[id(parameter)]
        if kind == "projections" and id(parameter) in inside and parameter.dim() == 2:
            kind = MATRICES
        found.append(Parameter(name, tuple(parameter.shape), kind, fused.get(id(parameter), 1)))
    return found


def _kind(module: nn.Module, name: str, parameter: nn.Parameter) -> str:
    if name == "bias":
        return "norms" if isinstance(module, nn.LayerNorm) else "biases"
    if isinstance(module, nn.LayerNorm):
        return "norms"
    kind: str | None = getattr(module, "parameter_kind", None)
    return kind or ("projections" if parameter.dim() > 1 else "scales")
