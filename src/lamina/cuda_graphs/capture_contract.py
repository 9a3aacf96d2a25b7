"""The contract of layers that are captured (nn/stack.py states it), as far as it can be seen without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.errors import LaminaError

_ATEN = torch.ops.aten
# What makes the host wait for a number, or a shape depend on one.
_QUESTIONS = {
    _ATEN._local_scalar_dense: "reads a number on the host (.item(), int(), bool() or an `if` on a tensor)",
    _ATEN.is_nonzero: "reads a number on the host (an `if` on a tensor)",
    _ATEN.equal: "reads an answer on the host (torch.equal)",
    _ATEN.nonzero: "has as many results as there are numbers that are not 0 (nonzero, or one-argument where)",
    _ATEN.masked_select: "has as many results as a mask has ones (masked_select)",
    _ATEN._unique2: "has as many results as there are different numbers (unique)",
    _ATEN.unique_dim: "has as many results as there are different rows (unique)",
    _ATEN.unique_consecutive: "has as many results as there are different numbers (unique_consecutive)",
}


class CaptureContractError(LaminaError):
    pass


class NoQuestions(TorchDispatchMode):
    """Inside, an operation that a CUDA graph cannot hold is an error that names it, on any device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        reason = _QUESTIONS.get(func.overloadpacket)
        if func.overloadpacket is _ATEN.index and any(index is not None and index.dtype in (torch.bool, torch.uint8)
                                                      for index in args[1]):
            reason = "has as many results as a mask has ones (x[mask])"
        if func is _ATEN.repeat_interleave.Tensor and (kwargs or {}).get("output_size") is None:
            reason = "has as many results as its numbers add up to (repeat_interleave without output_size)"
        if reason:
            raise CaptureContractError(f"{func} {reason}: a CUDA graph cannot hold that. nn/stack.py says what a captured "
                                       "layer may do.")
        return func(*args, **(kwargs or {}))
