"""What stepwise decoding keeps between steps.

The beams of a sentence are so many query positions of one row. Their keys and values lie side by side and are never
moved: when beams change places, only the note of which beam's entry of each step their past went through is rewritten, and
attention reads the sentence's entries through that note as a mask. Each row counts its own steps: a sentence that is
finished leaves by `select_`, or makes room for another by `put_`.
"""

# B sentences, K beams, H heads, T steps so far, C channels of a head, D model_dim

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from lamina.nn.layout import Layout

if TYPE_CHECKING:
    from lamina.nn.stack import ActiveLayers

T = TypeVar("T")
Rows = Tensor | slice  # (B',) numbers of rows, or neighbours, which are views
FIRST_CAPACITY = 32  # steps that memory is set aside for at first; it doubles from there
NOT_YET = -1  # in the ancestry: a step that is still to come


@dataclass
class Turn:
    """What the layers of a decoder must know of a step."""

    at: tuple[Any, Any]  # (B,) each: rows, and the place in each that this step's entries get; or all rows, and one place
    length: int  # places that attention looks at
    places: Tensor  # (B,): where each text is
    ancestry: Tensor  # (B, K, capacity), as the state has it
    own: Tensor  # (K,): the number of each beam
    has_own_past: bool  # all that was stored of a text is its only beam's
    dtype: torch.dtype

    @cached_property
    def bias(self) -> Tensor | None:
        """(B, 1, K, length * K): 0 on a beam's own past and -inf elsewhere; None: all of it is its own.

        Made for the first layer that asks, which also notes in the ancestry that this step's entries are each beam's own; a
        layer whose attention is one kernel (nn/step_attention.py) notes that itself.
        """
        if self.has_own_past:
            return None
        self.ancestry[self.at[0], :, self.at[1]] = self.own
        is_other = self.ancestry[:, :, : self.length, None] != self.own  # (B, K, T, K)
        return torch.zeros_like(is_other, dtype=self.dtype).masked_fill_(is_other, -torch.inf).flatten(2)[:, None]


class KeyValues:
    """Keys and values of the steps so far, K entries a step, in memory set aside ahead."""

    def __init__(self, batch: int, num_beams: int, num_heads: int, like: Tensor) -> None:
        """Of `like` (..., D) only width, type and device count."""
        self.num_heads = num_heads
        self.data = like.new_zeros(batch, 0, num_beams, 2 * like.size(-1))  # (B, capacity, K, 2 D): key, value

    def reserve_(self, capacity: int, *, is_even: bool) -> None:
        batch, old, *entry = self.data.shape
        grown = self._room((batch, capacity, *entry), is_even=is_even)
        grown[:, :old] = self.data
        self.data = grown

    def _room(self, shape: Sequence[int], *, is_even: bool) -> Tensor:
        """Where texts differ in length, shorter ones are looked at beyond their end: there must be numbers, behind a mask."""
        return self.data.new_empty(shape) if is_even else self.data.new_zeros(shape)

    def clear_after_(self, length: int) -> None:
        self.data[:, length:] = 0

    def begin_(self, entries: Tensor) -> None:
        """The first steps at once; all beams share them. entries: (B, T, 2 D)"""
        self.data[:, : entries.size(1)] = entries[:, :, None]

    def append_(self, entries: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Store a step's entries, (B, K, 2 D); all keys and values up to it, as views. (B, H, T * K, C) each"""
        self.data[turn.at] = entries
        batch, _, num_beams, width = self.data.shape
        channels, first = width // (2 * self.num_heads), self.data.storage_offset()
        # In one step each: a search on a CPU asks for them some hundred times for every token.
        shape = (batch, self.num_heads, turn.length * num_beams, channels)
        strides = (self.data.stride(0), channels, width, 1)
        return self.data.as_strided(shape, strides, first), self.data.as_strided(shape, strides, first + width // 2)

    def select_(self, rows: Rows, length: int, *, is_even: bool) -> None:
        if isinstance(rows, slice):
            self.data = self.data[rows]
            return
        # What lies beyond the steps so far is not worth copying.
        _, *shape = self.data.shape
        kept = self._room((len(rows), *shape), is_even=is_even)
        kept[:, :length] = self.data[:, :length].index_select(0, rows)
        self.data = kept

    def put_(self, rows: Tensor, other: KeyValues, length: int) -> None:
        self.data[:, :length].index_copy_(0, rows, other.data[:, :length])

    def widen_(self, other: KeyValues) -> None:
        """A text's own past has no width."""


@dataclass
class LayerCache:
    """A decoder layer's own past, and the keys and values of what it reads."""

    past: KeyValues
    memory: tuple[Tensor, Tensor]  # (B, H, S, C) each, once a sentence: beams share them

    def reserve_(self, capacity: int, *, is_even: bool) -> None:
        self.past.reserve_(capacity, is_even=is_even)

    def clear_after_(self, length: int) -> None:
        self.past.clear_after_(length)

    def select_(self, rows: Rows, length: int, *, is_even: bool) -> None:
        self.past.select_(rows, length, is_even=is_even)
        self.memory = select_rows(self.memory, rows)

    def put_(self, rows: Tensor, other: LayerCache, length: int) -> None:
        self.past.put_(rows, other.past, length)
        put_rows_(self.memory, rows, other.memory)

    def widen_(self, other: LayerCache) -> None:
        self.memory = widened(self.memory, other.memory)


@dataclass(kw_only=True)
class StepState:
    """What stepwise decoding carries from one token to the next, for K beams of each of B texts.

    A step is begin(), turn(), the layers, end(). Texts whose `is_done` is set stay where they are.
    """

    layers: Sequence[Any]  # KeyValues or LayerCache; None: a layer that does not run
    steps: Tensor  # (B,): tokens that each text has read
    num_beams: int
    max_length: int
    active: ActiveLayers
    length: int = 0  # tokens that the furthest text has read; what lies beyond is not looked at
    capacity: int = 0
    is_even: bool = True  # all texts have read as many tokens
    is_done: Tensor | None = None  # (B,)
    ancestry: Tensor = field(init=False)  # (B, K, capacity): through which beam's entry of each step a beam's past went

    def __post_init__(self) -> None:
        self._rows = torch.arange(len(self.steps), device=self.steps.device)
        self._own = torch.arange(self.num_beams, dtype=torch.int16, device=self.steps.device)
        self.ancestry = self._own.new_empty(len(self.steps), self.num_beams, 0)

    def finished_in(self, is_done: Tensor) -> None:
        """Where it is written which texts are done. (B,)"""
        self.is_done = is_done

    def look_at_(self, length: int) -> None:
        """No text has read more tokens than so many."""
        self.length = length

    def begin(self) -> Tensor:
        """One step further: the place of its token in each text. (B,)"""
        self.length += 1
        self.reserve_(self.length)
        # A text that is done may stand beyond what the others look at.
        return self.steps.clamp(max=self.length - 1)

    def turn(self, places: Tensor, dtype: torch.dtype) -> Turn:
        # One place for all is written much faster; what texts that are done write there is not read.
        at = (slice(None), self.length - 1) if self.is_even else (self._rows, places)
        return Turn(at, self.length, places, self.ancestry, self._own, self.num_beams == 1 and self.is_even, dtype)

    def end(self) -> None:
        self.steps += 1 if self.is_done is None else ~self.is_done

    def differ_(self) -> None:
        """From now on, texts may have read more or less than others."""
        if self.is_even:
            for layer in self.layers:
                if layer is not None:
                    layer.clear_after_(self.length)
        self.is_even = False

    def read_(self, length: int) -> None:
        """All texts have read their first `length` tokens, which their beams share."""
        self.length = length
        self.steps += length
        self.ancestry[:, :, :length] = self._own[:, None]

    def reserve_(self, length: int) -> bool:
        """Room for so many steps; whether memory was moved."""
        if length <= self.capacity:
            return False
        assert length <= self.max_length, "a step beyond the length that start() was given"
        old, self.capacity = self.capacity, min(max(length, 2 * self.capacity, FIRST_CAPACITY), self.max_length)
        for layer in self.layers:
            if layer is not None:
                layer.reserve_(self.capacity, is_even=self.is_even)
        grown = self.ancestry.new_full((*self.ancestry.shape[:2], self.capacity), NOT_YET)
        grown[:, :, :old] = self.ancestry
        self.ancestry = grown
        return True

    def reorder_(self, parents: Tensor) -> None:
        """Beam k of each text continues from what was beam parents[:, k]. parents: (B, K)"""
        past = self.ancestry[:, :, : self.length]
        past.copy_(past.gather(1, parents[:, :, None].expand_as(past)))

    def select_(self, rows: Tensor) -> None:
        """Only these texts continue; one may be there several times, to be overwritten by `put_`. rows: (B',)"""
        self.keep_(neighbours(rows))

    def keep_(self, rows: Rows) -> None:
        self.steps, self.ancestry = select_rows((self.steps, self.ancestry), rows)
        self._rows = torch.arange(len(self.steps), device=self.steps.device)
        if self.is_done is not None:
            self.is_done = select_rows(self.is_done, rows)
        for layer in self.layers:
            if layer is not None:
                layer.select_(rows, self.length, is_even=self.is_even)

    def put_(self, rows: Tensor, other: StepState) -> None:
        """The texts of `other`, which have all read as much, take the place of these. rows: (B',)"""
        if self.num_beams == 1 and self.is_even:
            self.ancestry[:, :, : self.length] = 0  # not needed so far
        self.differ_()
        self.steps.index_copy_(0, rows, other.steps)
        if other.length:
            self.reserve_(other.length)
        self.ancestry.index_fill_(0, rows, NOT_YET)
        self.ancestry[:, :, : other.length].index_copy_(0, rows, other.ancestry[:, :, : other.length])
        for layer, own in zip(self.layers, other.layers, strict=True):
            if layer is not None:
                layer.put_(rows, own, other.length)

    def widen_(self, other: StepState) -> None:
        """Room for the texts of `other`, which may read more than any text here: memory moves then, and graphs do not hold."""
        for layer, own in zip(self.layers, other.layers, strict=True):
            if layer is not None:
                layer.widen_(own)


def neighbours(rows: Tensor) -> Rows:
    """As a slice, if they are one after the other: nothing need be copied then. A GPU is not asked."""
    if rows.device.type == "cpu" and len(rows) and torch.equal(rows, torch.arange(int(rows[0]), int(rows[0]) + len(rows))):
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return rows


def select_rows(value: T, rows: Rows) -> T:
    """The same structure of (named) tuples, each tensor reduced to some rows of its first dimension."""
    match value:
        case None:
            return value
        case Tensor():
            return value[rows] if isinstance(rows, slice) else value.index_select(0, rows)  # type: ignore[return-value]
        case tuple():
            items = [select_rows(item, rows) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # type: ignore[return-value]
    raise TypeError(f"no rows in {type(value).__name__}")


def widened(value: T, other: T) -> T:
    """The same structure, each tensor at least as large as the other's in all dimensions but the first; padding fills up."""
    match value, other:
        case Tensor(), Tensor():
            shape = [value.size(0), *map(max, value.shape[1:], other.shape[1:])]
            if shape == list(value.shape):
                return value
            grown = value.new_zeros(shape)
            grown[tuple(slice(size) for size in value.shape)] = value
            return grown  # type: ignore[return-value]
        case Layout(), Layout():
            return value.widened(other.is_pad.size(1))  # type: ignore[return-value]
        case tuple(), tuple():
            items = [widened(item, own) for item, own in zip(value, other, strict=True)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # type: ignore[return-value]
    return value


def put_rows_(value: Any, rows: Tensor, other: Any) -> None:
    """Overwrite some rows of a structure of tensors. The other's may be narrower: what is left of a row is padding."""
    match value:
        case Tensor():
            for dim in range(1, value.dim()):
                value = value.narrow(dim, 0, other.size(dim))
            value.index_copy_(0, rows, other)
        case Layout():
            value.clear_(rows)
            for item, own in zip(value, other, strict=True):
                put_rows_(item, rows, own)
        case tuple():
            for item, own in zip(value, other, strict=True):
                put_rows_(item, rows, own)
