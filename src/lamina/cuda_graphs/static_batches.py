"""Batches in memory that stays, which is what a captured pass reads: others of their shape are copied into them."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from lamina.data.batching import AnyBatch

# A shape that came this often is taken to come again, and is captured; but not ever more of them: each may be compiled.
SIGHTINGS = 4
MAX_SHAPES = 4


class RecurringShapes:
    """Which batches have a shape that is taken to come again."""

    def __init__(self) -> None:
        self._seen: Counter[Any] = Counter()
        self._known: set[Any] = set()

    def __call__(self, batch: AnyBatch) -> Any:
        """The batch's shape, if it is one of those."""
        shape = shape_of(batch)
        if shape not in self._known:
            self._seen[shape] += 1
            is_known = self._seen[shape] >= SIGHTINGS or getattr(batch, "recurs", False)
            if not is_known or len(self._known) == MAX_SHAPES:
                return None
            self._known.add(shape)
        return shape


class StaticBatches:
    """For each shape that comes again, one batch whose memory stays."""

    def __init__(self) -> None:
        self._recurring = RecurringShapes()
        self._tensors: dict[Any, dict[str, Tensor]] = {}

    def hold(self, batch: AnyBatch) -> AnyBatch | None:
        """The batch again, in memory that stays; None if its shape is not known to come again."""
        key = self._recurring(batch)
        if key is None:
            return None
        if key not in self._tensors:
            self._tensors[key] = {name: torch.empty_like(tensor) for name, tensor in tensors_of(batch).items()}
        own = self._tensors[key]
        for name, tensor in tensors_of(batch).items():
            own[name].copy_(tensor, non_blocking=True)
        return replace(batch, **own)  # type: ignore[type-var]


def tensors_of(batch: AnyBatch) -> dict[str, Tensor]:
    values = {item.name: getattr(batch, item.name) for item in fields(batch)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def shape_of(batch: AnyBatch) -> tuple[Any, ...]:
    """Batches of one shape run the same kernels on the same number of bytes."""
    return (*((name, tensor.shape, tensor.dtype) for name, tensor in tensors_of(batch).items()),
            getattr(batch, "shape", None), getattr(getattr(batch, "draw", None), "shape", None))
