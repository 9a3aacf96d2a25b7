"""What stepwise decoding keeps between steps.

The beams of a sentence are so many query positions of one row. Their keys and values lie side by side and are never
moved: when beams change places, only the note of which slot each beam's past went through is rewritten, and attention
reads the sentence's slots through that note as a mask. A sentence that is finished leaves by `select_rows`.
"""

# B sentences, K beams, H heads, T steps so far, C channels of a head

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lamina.nn.stack import Runs

T = TypeVar("T")
FIRST_CAPACITY = 32  # steps that memory is set aside for at first; it doubles from there


@dataclass
class KeyValues:
    """Keys and values of the steps so far, K entries a step, in memory set aside ahead."""

    keys: Tensor  # (B, H, capacity, C)
    values: Tensor
    max_size: int
    size: int = 0

    @classmethod
    def empty(cls, like: Tensor, num_beams: int, max_length: int) -> KeyValues:
        """For `like` (B, H, ..., C), of which only shape, type and device count."""
        batch, heads, *_, channels = like.shape
        shape = (batch, heads, num_beams * min(max_length, FIRST_CAPACITY), channels)
        return cls(like.new_empty(shape), like.new_empty(shape), num_beams * max_length)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the (B, H, K, C) of a step, or of several, and return all up to it, as views."""
        end = self.size + key.size(2)
        assert end <= self.max_size, "a step beyond the length that start() was given"
        while end > self.keys.size(2):
            self.keys, self.values = (self._grown(tensor) for tensor in (self.keys, self.values))
        self.keys[:, :, self.size : end] = key
        self.values[:, :, self.size : end] = value
        self.size = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grown(self, tensor: Tensor) -> Tensor:
        batch, heads, capacity, channels = tensor.shape
        grown = tensor.new_empty(batch, heads, min(2 * capacity, self.max_size), channels)
        grown[:, :, : self.size] = tensor[:, :, : self.size]
        return grown

    def select_(self, rows: Tensor) -> None:
        # What lies beyond the steps so far is not worth copying.
        _, heads, capacity, channels = self.keys.shape
        for name in ("keys", "values"):
            kept = self.keys.new_empty(len(rows), heads, capacity, channels)
            kept[:, :, : self.size] = getattr(self, name)[:, :, : self.size].index_select(0, rows)
            setattr(self, name, kept)


@dataclass
class LayerCache:
    """A decoder layer's own past, and the keys and values of what it reads."""

    past: KeyValues
    memory: tuple[Tensor, Tensor]  # (B, H, S, C) each, once a sentence: beams share them

    def select_(self, rows: Tensor) -> None:
        self.past.select_(rows)
        self.memory = select_rows(self.memory, rows)


class Ancestry:
    """Through which slot of each step a beam's past went."""

    def __init__(self, batch: int, num_beams: int, max_length: int, device: torch.device) -> None:
        self.own = torch.arange(num_beams, device=device)
        self.slots = self.own[None, :, None].repeat(batch, 1, max_length)  # (B, K, T_max)

    def bias(self, length: int, dtype: torch.dtype) -> Tensor | None:
        """0 on a beam's own past and -inf on the others', for `length` steps. (B, 1, K, length * K)"""
        if len(self.own) == 1:
            return None
        is_foreign = self.slots[:, :, :length, None] != self.own  # (B, K, T, K)
        return torch.zeros_like(is_foreign, dtype=dtype).masked_fill_(is_foreign, -torch.inf).flatten(2)[:, None]

    def reorder_(self, parents: Tensor, length: int) -> None:
        """Beam k continues what was beam parents[:, k]. parents: (B, K)"""
        past = self.slots[:, :, :length]
        self.slots[:, :, :length] = past.gather(1, parents[:, :, None].expand_as(past))

    def select_(self, rows: Tensor) -> None:
        self.slots = self.slots.index_select(0, rows)


@dataclass(kw_only=True)
class StepState:
    """What stepwise decoding carries from one token to the next, for K beams of each of B texts."""

    layers: Sequence[Any]  # KeyValues or LayerCache; None: a layer that does not run
    ancestry: Ancestry
    runs: Runs
    length: int = 0

    def reorder_(self, parents: Tensor) -> None:
        """Beam k of each text goes on from what was beam parents[:, k]. parents: (B, K)"""
        self.ancestry.reorder_(parents, self.length)

    def select_(self, rows: Tensor) -> None:
        """Only these texts go on. rows: (B',)"""
        self.ancestry.select_(rows)
        for layer in self.layers:
            if layer is not None:
                layer.select_(rows)


def select_rows(value: T, rows: Tensor) -> T:
    """The same structure of (named) tuples, each tensor reduced to some rows of its first dimension."""
    match value:
        case None:
            return value
        case Tensor():
            return value.index_select(0, rows)  # type: ignore[return-value]
        case tuple():
            items = [select_rows(item, rows) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # type: ignore[return-value]
    raise TypeError(f"no rows in {type(value).__name__}")
