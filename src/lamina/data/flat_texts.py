"""Texts of any length one behind the other in one row: blocks of text, masked ones, labelled sentences.

data/packing.py has pairs. As there, all of a row lies in one buffer, and attention alone sees where a text ends. A row is as
long as its texts, without a pad; or all rows of a corpus have one shape, with room for them, so that a GPU can replay captured
updates.
"""

# N tokens of the row, R texts (as many as there is room for, and those that pads form, in rows of one shape), M masked tokens

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.data.batching import cut_draw, moved
from lamina.data.packing import Sentences, fill_side_
from lamina.packed import Packed
from lamina.text.vocabulary import PAD

if TYPE_CHECKING:
    from lamina.data.layer_subsets import Draw


T = TypeVar("T", bound="FlatTexts")

# Room for what is counted in a batch, above what is expected of it: by a share, and by as many standard deviations of a count.
SPARE_SHARE, SPARE_DEVIATIONS = 0.25, 6.0
ROOM_MULTIPLE = 128
# No class: torch's losses leave it out. Numbers that are no target are NaN, which none of a data folder is.
NO_CLASS = -100


def room_for_count(expected: float) -> int:
    wanted = expected + max(SPARE_SHARE * expected, SPARE_DEVIATIONS * math.sqrt(expected))
    return ROOM_MULTIPLE * max(1, math.ceil(wanted / ROOM_MULTIPLE))


class TextShape(NamedTuple):
    places: int  # N
    num_texts: int  # that there are, or that there is room for
    longest: int  # no text is longer
    num_masked: int | None = None  # M there is room for; None: the row has no pads, and each batch a shape of its own

    @property
    def num_bounds(self) -> int:
        """Besides the texts, those that pads form, and the end."""
        return self.num_texts + 1 + (0 if self.num_masked is None else -(-self.places // self.longest))

    def text(self, buffer: Tensor) -> Packed:
        """Views of the buffer: the one place that cuts it."""
        ids, positions, sentences, bounds = buffer.split([self.places, self.places, self.places, self.num_bounds])
        return Packed(ids[None], positions[None], sentences, bounds, self.longest)


@dataclass(frozen=True, kw_only=True)
class FlatTexts:
    """What all batches of texts in a flat row have in common. A subclass has the target, and cuts it."""

    buffer: Tensor  # int32
    on_host: np.ndarray  # the same, where the host may look at it without asking the device
    shape: TextShape
    indices: tuple[int, ...]
    recurs: bool = False  # whether batches of this shape come again and again
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @cached_property
    def text(self) -> Packed:
        return self.shape.text(self.buffer)

    @cached_property
    def bounds(self) -> np.ndarray:
        """Of the texts, on the host. (number of texts + 1,)"""
        return self.shape.text(torch.from_numpy(self.on_host)).bounds.numpy()[: self.num_sentences + 1]

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (self.text,)

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self: T, device: torch.device) -> T:
        return moved(self, device)

    def rows(self: T, rows: slice) -> T:
        """Some of its texts, in a row of their own."""
        first, stop, _ = rows.indices(self.num_sentences)
        span = slice(int(self.bounds[first]), int(self.bounds[stop]))
        given = {item.name: getattr(self, item.name) for item in fields(self)} | {"drawn": None, "draw": None, "recurs": False}
        part = type(self)(**given | flat_row(self._sentences(first, stop)) | {"indices": self.indices[first:stop]}
                          | self._cut(slice(first, stop), span))
        return cut_draw(self, rows, part).to(self.buffer.device)

    def in_shape(self: T, shape: TextShape) -> T:
        """In a row that other batches share, on the host; as it is, if it does not fit."""
        if self.shape.places > shape.places or self.num_sentences > shape.num_texts or not self._fits(shape):
            return self
        return replace(self, **flat_row(self._sentences(0, self.num_sentences), shape), recurs=True, **self._widened(shape))

    def _sentences(self, first: int, stop: int) -> Sentences:
        bounds = self.bounds[first : stop + 1]
        return Sentences(self.on_host[bounds[0] : bounds[-1]], np.diff(bounds))

    def _fits(self, shape: TextShape) -> bool:
        return True

    def _widened(self, shape: TextShape) -> dict[str, Any]:
        """The fields of a subclass in rows of that shape."""
        raise AssertionError(f"{type(self).__name__} does not say what stands where there is no text")

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        """The fields of a subclass for these texts, which take these places of the row."""
        raise AssertionError(f"{type(self).__name__} does not say how it is cut")


def flat_row(sentences: Sentences, shape: TextShape | None = None) -> dict[str, Any]:
    """The fields that hold the row: as long as its texts, or of a shape that has room for them."""
    shape = shape or TextShape(len(sentences.ids), len(sentences.sizes), int(sentences.sizes.max()))
    buffer = np.full(3 * shape.places + shape.num_bounds, PAD, dtype=np.int32)
    fill_side_(shape.text(torch.from_numpy(buffer)), sentences)
    return {"buffer": torch.from_numpy(buffer), "on_host": buffer, "shape": shape}


def end_to_end(rows: Sequence[np.ndarray]) -> Sentences:
    return Sentences(np.concatenate(rows), np.array([len(row) for row in rows]))


@dataclass(frozen=True, kw_only=True)
class FlatTokens(FlatTexts):
    """What should be said at each place (TokenBatch has padded rows)."""

    target: Tensor  # (1, N)
    num_target_tokens: int
    target_on_host: np.ndarray

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        target = self.target_on_host[:, span]
        return {"target": torch.from_numpy(target), "num_target_tokens": target.size, "target_on_host": target}

    def _widened(self, shape: TextShape) -> dict[str, Any]:
        target = np.full((1, shape.places), PAD, dtype=self.target_on_host.dtype)
        target[:, : self.target_on_host.size] = self.target_on_host
        return {"target": torch.from_numpy(target), "target_on_host": target}


@dataclass(frozen=True, kw_only=True)
class FlatMasked(FlatTexts):
    """The places to guess, and what stood there (MaskedBatch has padded rows)."""

    places: Tensor  # (M,)
    target: Tensor  # (M,), padded where there is nothing to guess
    num_target_tokens: int

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.text, self.places

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        places, target = (own[: self.num_target_tokens] for own in (self.places, self.target))
        is_inside = (places >= span.start) & (places < span.stop)
        target = target[is_inside]
        return {"places": places[is_inside] - span.start, "target": target, "num_target_tokens": len(target)}

    def _fits(self, shape: TextShape) -> bool:
        return self.num_target_tokens <= (shape.num_masked or 0)

    def _widened(self, shape: TextShape) -> dict[str, Any]:
        missing = (shape.num_masked or 0) - self.num_target_tokens
        return {"places": F.pad(self.places, (0, missing)), "target": F.pad(self.target, (0, missing), value=PAD)}


@dataclass(frozen=True, kw_only=True)
class FlatSentences(FlatTexts):
    """A class, or a number, for each (SentenceBatch has padded rows)."""

    target: Tensor  # (R,), NO_CLASS or NaN where there is no text

    @property
    def num_target_tokens(self) -> int:
        return len(self.indices)

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        return {"target": self.target[rows]}

    def _widened(self, shape: TextShape) -> dict[str, Any]:
        nothing = math.nan if self.target.is_floating_point() else NO_CLASS
        return {"target": F.pad(self.target, (0, shape.num_bounds - 1 - len(self.target)), value=nothing)}
