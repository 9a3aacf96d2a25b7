"""How parts of training are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For one shape at a time, since recordings have one. The compiler works when the function is first called."""
    return torch.compile(function, dynamic=False, options=_options())


def _options() -> dict[str, Any]:
    """Reductions over rows and over columns in one kernel: of a norm's backward pass, three times as slow on an H200."""
    from torch._inductor import config

    name = "mix_order_reduction"  # since torch 2.10
    return {f"triton.{name}": False} if hasattr(config.triton, name) else {}
