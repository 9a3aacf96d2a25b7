"""Sentences one behind the other instead of padded rows: batches of one shape, with hardly a pad.

A GPU replays a captured update only on tensors of the same shape. So a batch is two rows, source and target, of exactly
--max-tokens places, filled with whole sentences; all that it consists of lies in one buffer, which travels in one copy.
"""

# N places of a row, R sentences that there is room for

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import moved
from lamina.packed import FIRST_POSITION, PAD_POSITION, Packed
from lamina.text.vocabulary import EOS, PAD

# Rows that were cut shorter keep a length that kernels like.
PLACES_MULTIPLE = 128
# Room for this many times the usual number of sentences: a batch of shorter ones ends before its rows are full.
ROOM = 1.5


class Sentences(NamedTuple):
    """Of one side, end to end."""

    ids: np.ndarray  # (number of tokens,)
    sizes: np.ndarray  # (number of sentences,)


@dataclass(frozen=True)
class PackedShape:
    """What all batches of a corpus have in common."""

    places: int  # N, of a row
    max_sentences: int
    longest: int  # no sentence is longer

    @classmethod
    def of(cls, sizes: Sequence[np.ndarray], max_tokens: int, max_sentences: int | None) -> PackedShape:
        usual = max_tokens / min(float(side.mean()) for side in sizes)
        room = max(1, round(ROOM * usual))
        longest = 1 << (max(int(side.max()) for side in sizes) - 1).bit_length()
        return cls(max_tokens, min(room, max_sentences or room, max_tokens), longest)

    @property
    def num_bounds(self) -> int:
        """Besides the sentences, those that pads form, and the end."""
        return self.max_sentences + -(-self.places // self.longest) + 1


@dataclass(frozen=True)
class PackedBatch:
    """A batch of sentence pairs in one buffer. Of each side: ids, positions, numbers of sentences (N each) and bounds (R + 1);
    then target_in (N)."""

    buffer: Tensor  # int32
    on_host: np.ndarray  # the same, where the host may look at it without asking the device
    shape: PackedShape
    num_source_tokens: int
    num_target_tokens: int
    indices: tuple[int, ...]
    recurs: bool = True  # whether batches of this shape come again and again

    @property
    def inputs(self) -> tuple[Packed, Packed]:
        source, target, target_in = parts_of(self.buffer, self.shape)
        return (Packed(source[0][None], source[1][None], source[2], source[3], self.shape.longest),
                Packed(target_in[None], target[1][None], target[2], target[3], self.shape.longest))

    @property
    def target(self) -> Tensor:
        """(1, N)"""
        return parts_of(self.buffer, self.shape)[1][0].long()[None]

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> PackedBatch:
        return moved(self, device)

    def rows(self, rows: slice) -> PackedBatch:
        """Some of its sentences, in rows that are as much shorter."""
        first, stop, _ = rows.indices(self.num_sentences)
        sides: list[Sentences] = []
        for ids, _, _, bounds in parts_of(self.on_host, self.shape)[:2]:
            own = bounds[first : stop + 1]
            sides.append(Sentences(ids[own[0] : own[-1]], np.diff(own)))
        needed = max(len(side.ids) for side in sides)
        shape = PackedShape(-(-needed // PLACES_MULTIPLE) * PLACES_MULTIPLE, stop - first, self.shape.longest)
        source, target = sides
        return replace(packed(source, target, shape, self.indices[first:stop]), recurs=False).to(self.buffer.device)


def parts_of(buffer: Any, shape: PackedShape) -> tuple[Any, Any, Any]:
    """Views of the buffer: ids, positions, numbers of sentences and bounds of the source; those of the target; target_in."""
    ends = np.cumsum([*[*[shape.places] * 3, shape.num_bounds] * 2, shape.places])
    *sides, target_in = (buffer[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True))
    return sides[:4], sides[4:], target_in


def packed(source: Sentences, target: Sentences, shape: PackedShape, indices: Sequence[int]) -> PackedBatch:
    """One batch; whoever planned it saw to it that it fits."""
    places, longest = shape.places, shape.longest
    buffer = np.full(7 * places + 2 * shape.num_bounds, PAD, dtype=np.int32)
    *sides, target_in = parts_of(buffer, shape)
    for side, (ids, positions, numbers, bounds) in zip((source, target), sides, strict=True):
        number = len(side.ids)
        ends = np.append(np.cumsum(side.sizes), np.arange(number + longest, places, longest))  # those of pads follow
        bounds[0], bounds[1 : len(ends) + 1], bounds[len(ends) + 1 :] = 0, ends, places
        ids[:number] = side.ids
        starts = np.repeat(np.cumsum(side.sizes) - side.sizes, side.sizes)
        positions[:number], positions[number:] = np.arange(FIRST_POSITION, number + FIRST_POSITION) - starts, PAD_POSITION
        numbers[:] = np.searchsorted(bounds, np.arange(places), side="right")
    number = len(target.ids)
    target_in[1:number] = target.ids[:-1]
    target_in[np.cumsum(target.sizes) - target.sizes] = EOS
    return PackedBatch(torch.from_numpy(buffer), buffer, shape, num_source_tokens=len(source.ids),
                       num_target_tokens=number, indices=tuple(indices))


def plan_packed(order: np.ndarray, sizes: Sequence[np.ndarray], shape: PackedShape) -> list[list[int]]:
    """Cut `order` into batches of which no side exceeds its row."""
    ends = [np.cumsum(side[order], dtype=np.int64) for side in sizes]
    batches: list[list[int]] = []
    first = 0
    while first < len(order):
        before = [int(side[first - 1]) if first else 0 for side in ends]
        stop = min(int(np.searchsorted(side, start + shape.places, side="right"))
                   for side, start in zip(ends, before, strict=True))
        stop = min(stop, first + shape.max_sentences)
        assert stop > first, "a sentence that fits into no row was planned"
        batches.append(order[first:stop].tolist())
        first = stop
    return batches
