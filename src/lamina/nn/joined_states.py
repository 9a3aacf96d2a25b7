"""Groups of texts that step together, each with a past and sources of its own.

Their rows stand one after the other. Linear layers and the softmax see all of them at once, which is what makes them fast;
attention goes group by group, so that no text looks as far back as the longest of all, or at sources as wide.
"""

# B texts of all groups, K beams

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from lamina.nn.cache import LayerCache, StepState

S = TypeVar("S", bound=StepState)


class ByGroup(NamedTuple):
    """A value for each group of rows."""

    sizes: list[int]  # rows of each
    values: list[Any]


def by_group(run: Callable[..., Tensor], rows: Sequence[Tensor], *values: Any) -> Tensor:
    """run(*rows, *values), for each group of rows by itself if the values are there for each group."""
    if not isinstance(values[0], ByGroup):
        return run(*rows, *values)
    parts = zip(*(part.split(values[0].sizes) for part in rows), *(own.values for own in values), strict=True)
    return torch.cat([run(*part) for part in parts])


class JoinedState(Generic[S]):
    """What a StepState is for one group, for several; it begins with one."""

    def __init__(self, first: S) -> None:
        self.parts = [first]
        self._join()

    def _join(self) -> None:
        """What the model sees."""
        parts = self.parts
        self.sizes = [len(part.steps) for part in parts]
        self.layers = [self._joined_layer(layers) for layers in zip(*(part.layers for part in parts), strict=True)]

    def _joined_layer(self, layers: Sequence[Any]) -> Any:
        if layers[0] is None:
            return None
        if isinstance(layers[0], LayerCache):
            return LayerCache(self._of([own.past for own in layers]), self._of([own.memory for own in layers]))  # type: ignore[arg-type]
        return self._of(list(layers))

    def _of(self, values: list[Any]) -> ByGroup:
        return ByGroup(self.sizes, values)

    def part(self, name: str) -> ByGroup:
        """A field of each group's own state."""
        return self._of([getattr(part, name) for part in self.parts])

    @property
    def layout(self) -> ByGroup:
        return self.part("layout")

    # -- as the model and the search use a StepState

    @property
    def steps(self) -> Tensor:
        return torch.cat([part.steps for part in self.parts])

    @property
    def active(self) -> Any:
        return self.parts[0].active

    def finished_in(self, is_done: Tensor) -> None:
        """Each group looks at its part. (B,)"""
        for part, own in zip(self.parts, is_done.split(self.sizes), strict=True):
            part.is_done = own

    def look_at_(self, length: int) -> None:
        """Each group knows how far its texts are."""

    def begin(self) -> Tensor:
        return torch.cat([part.begin() for part in self.parts])

    def turn(self, places: Tensor, dtype: torch.dtype) -> Any:
        return self._of([part.turn(own, dtype) for part, own in zip(self.parts, places.split(self.sizes), strict=True)])

    def end(self) -> None:
        for part in self.parts:
            part.end()

    def reserve_(self, length: int) -> bool:
        """Each group does when it begins a step."""
        return False

    def reorder_(self, parents: Tensor) -> None:
        for part, own in zip(self.parts, parents.split(self.sizes), strict=True):
            part.reorder_(own)

    # -- who is there

    def join_(self, other: S) -> None:
        """Another group, behind the others."""
        self.parts.append(other)
        self._join()

    def select_(self, rows: Tensor) -> None:
        """Only these texts continue, in this order, which is theirs. rows: (B',)"""
        start, left = 0, []
        for part, size in zip(self.parts, self.sizes, strict=True):
            own = rows[(rows >= start) & (rows < start + size)] - start
            start += size
            if len(own):
                left.append(part)
                if len(own) < size:
                    part.select_(own)
        self.parts = left
        self._join()
