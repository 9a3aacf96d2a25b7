"""Blocks of running text with some words masked: what masked language models train on."""

# B batch, T tokens, N masked tokens

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import cut_draw, moved, pad_rows
from lamina.data.blocks import TokenBlocks
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


class MaskedBlocks:
    """Blocks with <s> in front, masked again each epoch. A mask depends on the seed, the epoch and the block alone."""

    unit = "blocks"

    def __init__(self, blocks: TokenBlocks, masker: Masker) -> None:
        self.name = blocks.name
        self._blocks = blocks
        self._masker = masker
        self.lengths = blocks.lengths + 1

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def sizes(self) -> dict[str, np.ndarray]:
        return {"input": self.lengths}

    def batch(self, indices: Sequence[int], draw: tuple[int, int]) -> MaskedBatch:
        originals = pad_rows([np.append(BOS, self._blocks[index]) for index in indices])
        seen = originals.copy()
        places = []
        for number, index in enumerate(indices):
            ids = originals[number, : self.lengths[index]]
            if (ids == self._masker.mask_id).any():
                raise DataError(f"block {index} of {self.name} holds {MASK_SYMBOL} already. Take it out of the text, and run "
                                "`lamina preprocess` again.")
            row, own = self._masker(ids, np.random.default_rng([*draw, index, STREAM]))
            seen[number, : len(row)] = row
            places.append(number * seen.shape[1] + own)
        flat = torch.from_numpy(np.concatenate(places))
        return MaskedBatch(torch.from_numpy(seen), flat, torch.from_numpy(originals).flatten()[flat], tuple(indices))
