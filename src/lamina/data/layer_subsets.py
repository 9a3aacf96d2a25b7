"""LayerDrop per sentence (Fan et al. 2020): which sentences of a batch run each layer, drawn when the batch is made.

A draw depends on the seed, the epoch, the batch's number in the epoch's plan, the stack and the layer alone: not on how a batch
is dealt out to ranks or cut where memory runs out. Where sentences are, in a batch and among those that run a layer, is
worked out here too, and travels with the batch in one tensor: no step asks the device how many there are.

Each layer runs for a fixed share of a batch's places, so that a GPU can replay captured updates: a packed subset has a capacity
that leaves room for chance, and its pads count for nothing; a draw that exceeds it is drawn again.
"""

# n sentences, N places of a row (or padded rows), P places of a subset, L layers of a stack

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lamina.data.flat_texts import FlatTexts, TextShape
from lamina.data.packing import PLACES_MULTIPLE, PackedBatch, PackedShape, Sides, fill_bounds_
from lamina.errors import ConfigError
from lamina.packed import Places, Subset

# Sets these draws apart from others that the seed and a count decide.
STREAM = 3
# A capacity is this many standard deviations above the mean: fewer than one draw in a thousand exceeds it on either side.
DEVIATIONS = 3.3
# A batch whose own lengths leave less than this is not made to fit, which would keep its long sentences out: it has a shape
# of its own.
LEAST_DEVIATIONS = 2.0
# Layers with rates of their own have capacities of that many different sizes at most: each is compiled for itself.
MAX_CAPACITIES = 16
# Packed subsets in shapes of their own are filled up to a multiple of this many places: a CPU makes a kernel for each number of
# them, which takes as long as a small layer's product, and few numbers come again and again.
OWN_MULTIPLE = 32
# Parts of the tensor begin at a multiple of this many numbers, so that kernels can use their widest loads.
ALIGNMENT = 32

Rates = tuple[float, ...]
Chosen = tuple[np.ndarray | None, ...] | None  # by layer, the sentences that run it (n,); None: all of them
B = TypeVar("B")


def chosen_sentences(generator: np.random.Generator, num_sentences: int, rate: float) -> np.ndarray:
    """Each sentence with probability 1 - rate, and as even a share of them as can be. (n,)"""
    order, offset = generator.permutation(num_sentences), generator.random()
    steps = np.floor(offset + np.arange(num_sentences + 1) * (1.0 - rate))
    chosen = np.zeros(num_sentences, dtype=bool)
    chosen[order] = steps[1:] > steps[:-1]
    return chosen


def most_chosen(num_sentences: int, rate: float) -> int:
    """That a draw can give, and at least one: a layer always runs, if for a pad."""
    return max(1, math.ceil(num_sentences * (1.0 - rate) - 1e-9))


class SideShape(NamedTuple):
    """Of one side of a subset."""

    whole: int  # N
    places: int  # P
    num_bounds: int = 0  # of packed rows
    longest: int = 0
    is_full: bool = False  # no pads

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """taken, back, sentences, bounds"""
        return (self.places, self.whole, *((self.places, self.num_bounds) if self.num_bounds else ()))


LayerShape = tuple[SideShape, ...]  # its own side, and what it reads; empty where all sentences run it


class DrawShape(NamedTuple):
    """By stack and layer; None for a stack that drops none."""

    encoder: tuple[LayerShape, ...] | None
    decoder: tuple[LayerShape, ...] | None

    def sides(self) -> Iterator[SideShape]:
        for stack in self:
            for layer in stack or ():
                yield from layer


NO_SHAPE = DrawShape(None, None)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _views(buffer: Any, shape: DrawShape) -> Iterator[tuple[Any, ...]]:
    """The parts of each side: the one place that cuts the tensor."""
    start = 0
    for side in shape.sides():
        parts = []
        for size in side.part_sizes:
            parts.append(buffer[start : start + size])
            start += _aligned(size)
        yield tuple(parts)


@dataclass(frozen=True, eq=False)
class Draw:
    """What was drawn for a batch."""

    chosen: Sequence[Chosen]  # by the encoder, and by the decoder
    shape: DrawShape = NO_SHAPE

    def cut(self, rows: slice) -> Draw:
        """Of some of the batch's sentences."""
        return Draw([None if stack is None else tuple(None if own is None else own[rows] for own in stack)
                     for stack in self.chosen])

    def given_to(self, batch: B, capacities: Mapping[float, int] | None = None, rates: tuple[Rates, Rates] = ((), ())) -> B:
        """The batch with this draw in it, in shapes of its own or in those that all batches share."""
        sides = _sides_of(batch)
        stacks = []
        for number, stack in enumerate(self.chosen):
            reads = _reads(sides, is_decoder=number == 1)
            stacks.append(None if stack is None else tuple(
                () if chosen is None else tuple(side.shape(chosen, rates[number][layer] if capacities is not None else None,
                                                           capacities or {}) for side in reads)
                for layer, chosen in enumerate(stack)))
        shape = DrawShape(*stacks)
        buffer = np.zeros(sum(_aligned(size) for side in shape.sides() for size in side.part_sizes), dtype=np.int32)
        views = _views(buffer, shape)
        for number, stack in enumerate(self.chosen):
            for chosen, layer in zip(stack or (), (shape[number] or ()), strict=True):
                for side, own in zip(_reads(sides, is_decoder=number == 1), layer, strict=False):
                    assert chosen is not None
                    side.fill_(next(views), chosen, own)
        device = next(value.device for item in fields(batch)  # type: ignore[arg-type]
                      if isinstance(value := getattr(batch, item.name), Tensor))
        return replace(batch, drawn=torch.from_numpy(buffer).to(device), draw=replace(self, shape=shape))  # type: ignore[type-var]

    def subsets(self, buffer: Tensor) -> tuple[Sequence[bool | Subset] | None, ...]:
        """For the encoder and the decoder: for each layer those who run it, as views of the tensor on its device."""
        views = _views(buffer, self.shape)
        return tuple(None if stack is None else tuple(_subset(layer, views) for layer in stack) for stack in self.shape)


def _subset(layer: LayerShape, views: Iterator[tuple[Tensor, ...]]) -> bool | Subset:
    if not layer:
        return True
    sides = []
    for side in layer:
        taken, back, *packed = next(views)
        sentences, bounds = packed or (None, None)
        sides.append(Places(taken, back, sentences, bounds, side.longest, side.is_full))
    return Subset(sides[0], sides[-1])


class _Side(NamedTuple):
    """What is known of one side of a batch: of packed rows the lengths, of padded ones their number alone."""

    whole: int  # N
    sizes: np.ndarray | None  # (n,)
    longest: int = 0
    max_sentences: int = 0

    def shape(self, chosen: np.ndarray, rate: float | None, capacities: Mapping[float, int]) -> SideShape:
        """With a rate, one that depends on it and on the whole batch's shape alone."""
        number = int(chosen.sum())
        if self.sizes is None:
            return SideShape(self.whole, max(number, 1) if rate is None else most_chosen(self.whole, rate),
                             is_full=rate is None and number > 0)
        if rate is None:
            tokens = int(self.sizes[chosen].sum())
            places = _rounded_up(max(tokens, 1), OWN_MULTIPLE)
            # There may be as many sentences of pads as there are pads.
            return SideShape(self.whole, places, number + OWN_MULTIPLE + 1, self.longest, places == tokens)
        places = capacities[rate]
        return SideShape(self.whole, places, most_chosen(self.max_sentences, rate) + -(-places // self.longest) + 1,
                         self.longest)

    def fill_(self, parts: tuple[np.ndarray, ...], chosen: np.ndarray, shape: SideShape) -> None:
        taken, back, *packed = parts
        kept = np.flatnonzero(chosen if self.sizes is None else np.repeat(chosen, self.sizes))
        taken[: len(kept)], taken[len(kept) :] = kept, shape.whole
        back[:] = shape.places
        back[kept] = np.arange(len(kept))
        if self.sizes is not None:
            sentences, bounds = packed
            fill_bounds_(bounds, sentences, self.sizes[chosen], shape.longest)


def _sides_of(batch: Any) -> tuple[_Side, ...]:
    if isinstance(batch, FlatTexts):
        return (_Side(batch.shape.places, np.diff(batch.bounds), batch.shape.longest, batch.shape.num_texts),)
    if not isinstance(batch, PackedBatch):
        return (_Side(batch.num_sentences, None),)
    whole, number = Sides.of(torch.from_numpy(batch.on_host), batch.shape), batch.num_sentences
    return tuple(_Side(len(side.sentences), np.diff(side.bounds[: number + 1].numpy()), side.longest, batch.shape.max_sentences)
                 for side in (whole.source, whole.target))


def _reads(sides: tuple[_Side, ...], *, is_decoder: bool) -> tuple[_Side, ...]:
    """A layer's own side, and of packed pairs what a decoder reads; padded rows are the same on both."""
    return sides[::-1] if is_decoder else sides[:1]


class LayerSubsets:
    """Draws for every batch of a run."""

    def __init__(self, rates: tuple[Rates, Rates], seed: int) -> None:
        """Of each layer of the encoder, and of the decoder."""
        self.rates = rates
        self.seed = seed

    def capacities(self, shape: PackedShape | TextShape, sizes: Sequence[np.ndarray]) -> dict[float, int]:
        """By rate: the places of a subset of packed rows, where the corpus' sentences have these sizes on each side."""
        rates = sorted({rate for stack in self.rates for rate in stack if rate})
        grid = PLACES_MULTIPLE
        if len(rates) > 1:
            grid = max(grid, _rounded_up(shape.places // MAX_CAPACITIES, PLACES_MULTIPLE))
        return {rate: min(shape.places, _rounded_up(max(_enough(rate, shape.places, side) for side in sizes), grid))
                for rate in rates}

    def draw(self, epoch: int, number: int, num_sentences: int, fits: Callable[[np.ndarray, float], bool]) -> Draw:
        """For batch `number` of the epoch's plan."""
        def choose(*place: int, rate: float) -> np.ndarray | None:
            if not rate:
                return None
            for attempt in count():
                again = (attempt,) if attempt else ()
                generator = np.random.default_rng([self.seed, STREAM, epoch, number, *place, *again])
                chosen = chosen_sentences(generator, num_sentences, rate)
                if fits(chosen, rate):
                    break
            return chosen

        return Draw([tuple(choose(stack, layer, rate=rate) for layer, rate in enumerate(rates)) if any(rates) else None
                     for stack, rates in enumerate(self.rates)])

    def given_to(self, batch: B, epoch: int, number: int, *, is_static: bool, capacities: Mapping[float, int]) -> B:
        """The batch with its draw; with `is_static`, in the shape that all draws for such batches have."""
        if not hasattr(batch, "draw"):
            raise ConfigError(f"{type(batch).__name__} has no fields `drawn` and `draw` for the sentences that LayerDrop "
                              "leaves out of a layer. Add them (lamina.data.batching.TokenBatch has them), or take "
                              "--layerdrop-draws batch.")
        sides, num_sentences = _sides_of(batch), batch.num_sentences  # type: ignore[attr-defined]
        if is_static and sides[0].sizes is not None:
            is_static = all(_is_roomy(side.sizes, rate, places) for side in sides for rate, places in capacities.items()
                            if side.sizes is not None)

        def fits(chosen: np.ndarray, rate: float) -> bool:
            if not is_static:
                return True
            if sides[0].sizes is None:
                return int(chosen.sum()) <= most_chosen(num_sentences, rate)
            return (int(chosen.sum()) <= most_chosen(sides[0].max_sentences, rate)
                    and all(int(side.sizes[chosen].sum()) <= capacities[rate] for side in sides if side.sizes is not None))

        given = self.draw(epoch, number, num_sentences, fits).given_to(batch, capacities if is_static else None, self.rates)
        if is_static or not isinstance(given, PackedBatch | FlatTexts):
            return given
        return replace(given, recurs=False)  # type: ignore[return-value]


def _rounded_up(value: float, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def _spread(number: float, rate: float, sizes: np.ndarray) -> float:
    """The standard deviation of how many tokens that many sentences keep."""
    return float(sizes.std()) * math.sqrt(number * rate * (1.0 - rate))


def _enough(rate: float, places: int, sizes: np.ndarray) -> float:
    mean = float(sizes.mean())
    return (1.0 - rate) * places + mean + DEVIATIONS * _spread(places / mean, rate, sizes)


def _is_roomy(sizes: np.ndarray, rate: float, places: int) -> bool:
    """Whether a batch's draws seldom exceed so many places."""
    mean = float(sizes.mean()) * most_chosen(len(sizes), rate)
    return mean + LEAST_DEVIATIONS * _spread(len(sizes), rate, sizes) <= places or int(sizes.sum()) <= places
