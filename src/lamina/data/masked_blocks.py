"""Blocks of running text with some words masked: what masked language models train on."""

# B batch, T tokens, N masked tokens

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import cut_draw, moved, pad_rows
from lamina.data.blocks import TokenBlocks
from lamina.data.flat_texts import FlatMasked, end_to_end, flat_row
from lamina.data.masking import Masker
from lamina.errors import DataError
from lamina.text.vocabulary import BOS, MASK_SYMBOL

if TYPE_CHECKING:
    from lamina.data.layer_subsets import Draw

# Sets these draws apart from others that the seed and a count decide.
STREAM = 2


@dataclass(frozen=True)
class MaskedBatch:
    """Padded rows (on the right), the places to guess in the flattened rows, and what stood there."""

    tokens: Tensor  # (B, T)
    places: Tensor  # (N,)
    target: Tensor  # (N,)
    indices: tuple[int, ...]
    drawn: Tensor | None = None  # int32: where the sentences are that run each layer, as `draw` cuts it
    draw: Draw | None = None  # LayerDrop per sentence (data/layer_subsets.py)

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        return self.tokens, self.places

    @property
    def num_target_tokens(self) -> int:
        return len(self.target)

    @property
    def num_sentences(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> MaskedBatch:
        return moved(self, device)

    def rows(self, rows: slice) -> MaskedBatch:
        start, stop, _ = rows.indices(len(self.tokens))
        width = self.tokens.size(1)
        is_inside = (self.places >= start * width) & (self.places < stop * width)
        return cut_draw(self, rows, MaskedBatch(self.tokens[rows], self.places[is_inside] - start * width,
                                                self.target[is_inside], self.indices[rows]))


class _MaskedRow(NamedTuple):
    """A block, as the model sees it, and what it has to guess."""

    ids: np.ndarray
    seen: np.ndarray
    places: np.ndarray


class MaskedBlocks:
    """Blocks with <s> in front, masked again each epoch. A mask depends on the seed, the epoch and the block alone."""

    unit = "blocks"
    padded_batches_recur = False  # each has another number of masked tokens

    def __init__(self, blocks: TokenBlocks, masker: Masker) -> None:
        self.name = blocks.name
        self._blocks = blocks
        self._masker = masker
        self.lengths = blocks.lengths + 1
        self.masked_share = masker.mask_p

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        return {"input": self.lengths}

    def batch(self, indices: Sequence[int], draw: tuple[int, int]) -> MaskedBatch:
        rows = list(self._masked(indices, draw))
        originals, seen = (pad_rows([row[side] for row in rows]) for side in range(2))
        flat = torch.from_numpy(np.concatenate([number * seen.shape[1] + row.places for number, row in enumerate(rows)]))
        return MaskedBatch(torch.from_numpy(seen), flat, torch.from_numpy(originals).flatten()[flat], tuple(indices))

    def flat_batch(self, indices: Sequence[int], draw: tuple[int, int]) -> FlatMasked:
        rows = list(self._masked(indices, draw))
        starts = np.cumsum([0, *(len(row.ids) for row in rows)])
        places = np.concatenate([start + row.places for start, row in zip(starts, rows, strict=False)])
        originals = np.concatenate([row.ids for row in rows])
        return FlatMasked(**flat_row(end_to_end([row.seen for row in rows])), indices=tuple(indices),
                          places=torch.from_numpy(places), target=torch.from_numpy(originals[places]),
                          num_target_tokens=len(places))

    def _masked(self, indices: Sequence[int], draw: tuple[int, int]) -> Iterator[_MaskedRow]:
        for index in indices:
            ids = np.append(BOS, self._blocks[index]).astype(np.int64)
            if (ids == self._masker.mask_id).any():
                raise DataError(f"block {index} of {self.name} holds {MASK_SYMBOL} already. Take it out of the text, and run "
                                "`lamina preprocess` again.")
            yield _MaskedRow(ids, *self._masker(ids, np.random.default_rng([*draw, index, STREAM])))
