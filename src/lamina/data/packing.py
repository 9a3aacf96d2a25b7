"""Sentences one behind the other instead of padded rows: batches of one shape, with hardly a pad.

A GPU replays a captured update only on tensors of the same shape. So a batch has two sides, source and target, each a row of
exactly --max-tokens places filled with whole sentences (packed.py says what lies in it). Elsewhere shapes may differ from batch
to batch, and rows are as long as their sentences: flat rows, the same batches without a pad.
"""

# N places of a row, R sentences that there is room for

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import cut_draw, moved
from lamina.packed import FIRST_POSITION, PAD_POSITION, Packed
from lamina.text.vocabulary import EOS, PAD

if TYPE_CHECKING:
    from lamina.data.layer_subsets import Draw

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
    target_places: int | None = None  # of the target's row, where rows are as long as their sentences: then there are no pads

    @classmethod
    def of(cls, sizes: Sequence[np.ndarray], max_tokens: int, max_sentences: int | None) -> PackedShape:
        usual = max_tokens / min(float(side.mean()) for side in sizes)
        room = max(1, round(ROOM * usual))
        longest = 1 << (max(int(side.max()) for side in sizes) - 1).bit_length()
        return cls(max_tokens, min(room, max_sentences or room, max_tokens), longest)

    @classmethod
    def flat(cls, source: Sentences, target: Sentences) -> PackedShape:
        """Of these sentences and no other ones."""
        longest = int(max(source.sizes.max(), target.sizes.max()))
        return cls(len(source.ids), len(source.sizes), longest, len(target.ids))

    @property
    def num_bounds(self) -> int:
        """Besides the sentences, those that pads form, and the end."""
        if self.target_places is not None:
            return self.max_sentences + 1
        return self.max_sentences + -(-self.places // self.longest) + 1

    @property
    def part_sizes(self) -> dict[str, int]:
        """How many numbers each part of a batch has, in the order in which they lie in its buffer.

        What else a batch brings along is one more name here and one more field of `Sides`.
        """
        target_places = self.places if self.target_places is None else self.target_places
        sides = {"source": self.places, "target": target_places}
        return {**{f"{side}.{name}": places if name != "bounds" else self.num_bounds for side, places in sides.items()
                   for name in ("ids", "positions", "sentences", "bounds")}, "target_in.ids": target_places}


class Sides(NamedTuple):
    """What a packed batch consists of, by name; all of it lies in one buffer."""

    source: Packed
    target: Packed  # what should come out
    target_in: Packed  # what the decoder is fed: the target moved right by one in each sentence, </s> in front

    @classmethod
    def of(cls, buffer: Tensor, shape: PackedShape) -> Sides:
        """Views of the buffer: the one place that cuts it."""
        sizes = shape.part_sizes
        parts = dict(zip(sizes, buffer.split(list(sizes.values())), strict=True))
        source, target = (
            Packed(ids=parts[f"{side}.ids"][None], positions=parts[f"{side}.positions"][None],
                   sentences=parts[f"{side}.sentences"], bounds=parts[f"{side}.bounds"], longest=shape.longest)
            for side in ("source", "target"))
        return cls(source, target, target._replace(ids=parts["target_in.ids"][None]))


@dataclass(frozen=True)
class PackedBatch:
    """A batch of sentence pairs. Its `sides` are views of one buffer, which travels to the device in one copy."""

    buffer: Tensor  # int32
    on_host: np.ndarray  # the same, where the host may look at it without asking the device
    shape: PackedShape
    num_source_tokens: int
    num_target_tokens: int
    indices: tuple[int, ...]
    recurs: bool = True  # whether batches of this shape come again and again
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @cached_property
    def sides(self) -> Sides:
        return Sides.of(self.buffer, self.shape)

    @property
    def inputs(self) -> tuple[Packed, Packed]:
        return self.sides.source, self.sides.target_in

    @property
    def target(self) -> Tensor:
        """(1, N)"""
        return self.sides.target.ids.long()

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> PackedBatch:
        return moved(self, device)

    def rows(self, rows: slice) -> PackedBatch:
        """Some of its sentences, in rows that are as much shorter."""
        first, stop, _ = rows.indices(self.num_sentences)
        whole = Sides.of(torch.from_numpy(self.on_host), self.shape)
        source, target = (_some_of(side, first, stop) for side in (whole.source, whole.target))
        needed = max(len(source.ids), len(target.ids))
        shape = PackedShape(-(-needed // PLACES_MULTIPLE) * PLACES_MULTIPLE, stop - first, self.shape.longest)
        if self.shape.target_places is not None:
            shape = PackedShape.flat(source, target)
        part = replace(packed(source, target, shape, self.indices[first:stop]), recurs=False)
        return cut_draw(self, rows, part).to(self.buffer.device)


def packed(source: Sentences, target: Sentences, shape: PackedShape, indices: Sequence[int]) -> PackedBatch:
    """One batch; its plan has made sure that it fits."""
    buffer = np.full(sum(shape.part_sizes.values()), PAD, dtype=np.int32)
    sides = Sides.of(torch.from_numpy(buffer), shape)
    fill_side_(sides.source, source)
    fill_side_(sides.target, target)
    number, target_in = len(target.ids), sides.target_in.ids[0].numpy()
    target_in[1:number] = target.ids[:-1]
    target_in[np.cumsum(target.sizes) - target.sizes] = EOS
    return PackedBatch(torch.from_numpy(buffer), buffer, shape, num_source_tokens=len(source.ids),
                       num_target_tokens=number, indices=tuple(indices))


def flat(source: Sentences, target: Sentences, indices: Sequence[int]) -> PackedBatch:
    """One batch of flat rows."""
    return replace(packed(source, target, PackedShape.flat(source, target), indices), recurs=False)


def fill_side_(side: Packed, given: Sentences) -> None:
    """The side lies on the host, and its ids are nothing but pads where no sentence comes."""
    number = len(given.ids)
    ids, positions = (part.numpy() for part in (side.ids[0], side.positions[0]))
    ids[:number] = given.ids
    starts = np.repeat(np.cumsum(given.sizes) - given.sizes, given.sizes)
    positions[:number], positions[number:] = np.arange(FIRST_POSITION, number + FIRST_POSITION) - starts, PAD_POSITION
    fill_bounds_(side.bounds.numpy(), side.sentences.numpy(), given.sizes, side.longest)


def fill_bounds_(bounds: np.ndarray, sentences: np.ndarray, sizes: np.ndarray, longest: int) -> None:
    """Of sentences of these sizes, and of the pads that fill the row behind them."""
    number, places = int(sizes.sum()), len(sentences)
    ends = np.append(np.cumsum(sizes), np.arange(number + longest, places, longest))  # those of pads follow
    bounds[0], bounds[1 : len(ends) + 1], bounds[len(ends) + 1 :] = 0, ends, places
    sentences[:] = np.repeat(np.arange(1, len(bounds)), np.diff(bounds))


def _some_of(side: Packed, first: int, stop: int) -> Sentences:
    bounds = side.bounds[first : stop + 1].numpy()
    return Sentences(side.ids[0, bounds[0] : bounds[-1]].numpy(), np.diff(bounds))


def plan_packed(order: np.ndarray, sizes: Sequence[np.ndarray], shape: PackedShape, multiple: int = 1) -> list[list[int]]:
    """Cut `order` into batches of which no side exceeds its row; where they can be, of a multiple of so many sentences."""
    ends = [np.cumsum(side[order], dtype=np.int64) for side in sizes]
    batches: list[list[int]] = []
    first = 0
    while first < len(order):
        before = [int(side[first - 1]) if first else 0 for side in ends]
        stop = min(int(np.searchsorted(side, start + shape.places, side="right"))
                   for side, start in zip(ends, before, strict=True))
        stop = min(stop, first + shape.max_sentences)
        if stop < len(order):
            stop = first + ((stop - first) // multiple * multiple or stop - first)
        assert stop > first, "a sentence that fits into no row was planned"
        batches.append(order[first:stop].tolist())
        first = stop
    return batches
