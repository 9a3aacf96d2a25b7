"""Texts of any length one behind the other in one row without a pad: blocks of text, masked ones, labelled sentences.

data/packing.py has pairs. As there, all of a row lies in one buffer, and attention alone sees where a text ends.
"""

# N tokens of the row, R texts, M masked tokens

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import cut_draw, moved
from lamina.data.packing import Sentences, fill_side_
from lamina.packed import Packed

if TYPE_CHECKING:
    from lamina.data.layer_subsets import Draw


F = TypeVar("F", bound="FlatTexts")


class TextShape(NamedTuple):
    places: int  # N
    num_texts: int  # R
    longest: int  # no text is longer

    def text(self, buffer: Tensor) -> Packed:
        """Views of the buffer: the one place that cuts it."""
        ids, positions, sentences, bounds = buffer.split([self.places, self.places, self.places, self.num_texts + 1])
        return Packed(ids[None], positions[None], sentences, bounds, self.longest)


@dataclass(frozen=True, kw_only=True)
class FlatTexts:
    """What all batches of texts in a flat row have in common. A subclass has the target, and cuts it."""

    buffer: Tensor  # int32
    on_host: np.ndarray  # the same, where the host may look at it without asking the device
    shape: TextShape
    indices: tuple[int, ...]
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @cached_property
    def text(self) -> Packed:
        return self.shape.text(self.buffer)

    @cached_property
    def bounds(self) -> np.ndarray:
        """On the host. (R + 1,)"""
        return self.shape.text(torch.from_numpy(self.on_host)).bounds.numpy()

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (self.text,)

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self: F, device: torch.device) -> F:
        return moved(self, device)

    def rows(self: F, rows: slice) -> F:
        """Some of its texts, in a row of their own."""
        first, stop, _ = rows.indices(self.num_sentences)
        span = slice(int(self.bounds[first]), int(self.bounds[stop]))
        sentences = Sentences(self.on_host[span], np.diff(self.bounds[first : stop + 1]))
        given = {item.name: getattr(self, item.name) for item in fields(self)} | {"drawn": None, "draw": None}
        part = type(self)(**given | flat_row(sentences) | {"indices": self.indices[first:stop]} | self._cut(rows, span))
        return cut_draw(self, rows, part).to(self.buffer.device)

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        """The fields of a subclass for these texts, which take these places of the row."""
        raise AssertionError(f"{type(self).__name__} does not say how it is cut")


def flat_row(sentences: Sentences) -> dict[str, Any]:
    """The fields that hold the row."""
    shape = TextShape(len(sentences.ids), len(sentences.sizes), int(sentences.sizes.max()))
    buffer = np.empty(3 * shape.places + shape.num_texts + 1, dtype=np.int32)
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


@dataclass(frozen=True, kw_only=True)
class FlatMasked(FlatTexts):
    """The places to guess, and what stood there (MaskedBatch has padded rows)."""

    places: Tensor  # (M,)
    target: Tensor  # (M,)

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.text, self.places

    @property
    def num_target_tokens(self) -> int:
        return len(self.target)

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        is_inside = (self.places >= span.start) & (self.places < span.stop)
        return {"places": self.places[is_inside] - span.start, "target": self.target[is_inside]}


@dataclass(frozen=True, kw_only=True)
class FlatSentences(FlatTexts):
    """A class, or a number, for each (SentenceBatch has padded rows)."""

    target: Tensor  # (R,)

    @property
    def num_target_tokens(self) -> int:
        return len(self.indices)

    def _cut(self, rows: slice, span: slice) -> dict[str, Any]:
        return {"target": self.target[rows]}
