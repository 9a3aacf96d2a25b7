"""Choices of layers to keep, and the search for the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lamina.config.keep import SIDES, spread
from lamina.nn.stack import ActiveLayers
from lamina.pruning.cut import Keep


class Subset(NamedTuple):
    """The layers that run in each stack, ascending; a model without a stack has none there."""

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]

    def __str__(self) -> str:
        return "; ".join(f"{side} {','.join(map(str, layers))}" for side, layers in zip(SIDES, self, strict=True) if layers)

    @property
    def depths(self) -> tuple[int, int]:
        return len(self.encoder), len(self.decoder)

    def without(self, side: str, layer: int) -> Subset:
        return self._replace(**{side: tuple(other for other in getattr(self, side) if other != layer)})

    def active(self, whole: Subset) -> ActiveLayers:
        return ActiveLayers(*(tuple(layer in kept for layer in layers) for kept, layers in zip(self, whole, strict=True)))

    def keep(self, whole: Subset) -> Keep:
        return Keep(*(None if kept == layers else kept for kept, layers in zip(self, whole, strict=True)))


def whole_subset(num_encoder: int, num_decoder: int) -> Subset:
    return Subset(tuple(range(num_encoder)), tuple(range(num_decoder)))


# Simple choices of as many layers of each stack, by what reports call them.
EVENLY_SPACED, FIRST, LAST = "evenly spaced", "first layers", "last layers"
SEARCHED = "searched"
RULES: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    EVENLY_SPACED: spread,
    FIRST: lambda number, depth: tuple(range(number)),
    LAST: lambda number, depth: tuple(range(depth - number, depth)),
}


def by_rule(rule: str, depths: tuple[int, int], whole: Subset) -> Subset:
    return Subset(*(RULES[rule](number, len(layers)) if number else () for number, layers in zip(depths, whole, strict=True)))


class Scored(NamedTuple):
    """A choice and what it is worth: a loss, or a score."""

    subset: Subset
    value: float


def ranked(scored: Iterable[Scored], *, is_maximized: bool) -> list[Scored]:
    """The best first; what is not a number is worst, and equals keep the order of their layers."""
    def key(item: Scored) -> tuple[float, Subset]:
        value = -item.value if is_maximized else item.value
        return math.inf if math.isnan(value) else value, item.subset

    return sorted(scored, key=key)


def descend(start: Sequence[Subset], depths: tuple[int, int], measure: Callable[[Subset], float], *, width: int,
            is_maximized: bool) -> list[Scored]:
    """From `start` down to `depths`, one layer at a time, going on from the best `width` choices; the last level, best first.

    A width of 1 is greedy: leave out the layer that is missed least, then the next.
    """
    frontier = list(start)
    assert all(have >= want for subset in frontier for have, want in zip(subset.depths, depths, strict=True))
    scored = [Scored(subset, measure(subset)) for subset in frontier] if frontier[0].depths == depths else []
    while frontier[0].depths != depths:
        scored = ranked((Scored(subset, measure(subset)) for subset in _one_less(frontier, depths)), is_maximized=is_maximized)
        frontier = [item.subset for item in scored[:width]]
    return scored


def _one_less(frontier: Sequence[Subset], depths: tuple[int, int]) -> list[Subset]:
    return sorted({subset.without(side, layer) for subset in frontier
                   for side, layers, depth in zip(SIDES, subset, depths, strict=True) if len(layers) > depth
                   for layer in layers})


def most_measurements(whole: tuple[int, int], depths: tuple[int, int], width: int) -> int:
    """How many choices `descend` looks at, at most: for a progress bar."""
    total, sizes = 0, list(whole)
    while tuple(sizes) != depths:
        spare = [size for size, depth in zip(sizes, depths, strict=True) if size > depth]
        total += sum(spare) * (1 if sizes == list(whole) else width)
        place = max(range(2), key=lambda side: sizes[side] - depths[side])
        sizes[place] -= 1
    return total
