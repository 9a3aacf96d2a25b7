"""Models whose weights are there already: drawing random ones first would take as long as reading them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# What torch.nn.init draws with, and those of its functions that torch offers to modes as a whole.
DRAWS = frozenset((torch.Tensor.uniform_, torch.Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_))


class Undrawn(TorchFunctionMode):
    """Inside, parameters are made without random numbers: what they hold is to be replaced. All else is as usual."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if function in DRAWS and is_of_parameter(drawn := args[0] if args else kwargs["tensor"]):
            return drawn
        return function(*args, **kwargs)


def is_of_parameter(tensor: Tensor) -> bool:
    """Whether it is one, or a part of one."""
    with torch._C.DisableTorchFunction():
        return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
