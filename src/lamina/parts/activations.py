"""Activations of the feed-forward blocks, under the names that this field's users type.

A part of this kind is a function that gives the function: torch is imported when a model is built, not when --help is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    Function = Callable[[Tensor], Tensor]


@register.activation("relu")
def relu() -> Function:
    from torch.nn import functional as F

    return F.relu


@register.activation("gelu")
def gelu() -> Function:
    """The exact form, by the error function."""
    from torch.nn import functional as F

    return F.gelu


@register.activation("gelu_accurate")
@register.activation("gelu_fast")
def gelu_fast() -> Function:
    from functools import partial

    from torch.nn import functional as F

    return partial(F.gelu, approximate="tanh")


@register.activation("tanh")
def tanh() -> Function:
    from torch.nn import functional as F

    return F.tanh


@register.activation("linear")
def linear() -> Function:
    return _identity


def _identity(x: Tensor) -> Tensor:
    return x


@register.activation("silu")
def silu() -> Function:
    from torch.nn import functional as F

    return F.silu
