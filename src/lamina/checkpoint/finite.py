"""Whether a state can be used: one NaN or infinite number in the weights ruins every output, and every update after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lamina.checkpoint.format import Checkpoint


@torch.no_grad()
def is_finite(tensor: Tensor) -> bool:
    """In one pass over the memory that needs no more of it: a NaN passes through the minimum."""
    if not tensor.numel() or not tensor.is_floating_point():
        return True
    return bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, value in named if not is_finite(value)), None)


def ruined_part(checkpoint: Checkpoint) -> str | None:
    """The first tensor of the weights or the optimizer's state that is not finite."""
    return first_not_finite([*checkpoint.weights.items(), *_tensors(checkpoint.training.get("optimizer"), "optimizer state")])


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name} {key}")
    elif isinstance(value, Tensor):
        yield name, value
