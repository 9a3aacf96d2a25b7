"""What a batch hands to a model: ids in padded rows, or packed one behind the other."""

# N tokens of a packed row, R sentences that there is room for

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Position ids start right above the padding id, as in fairseq: pads hold 1, the first token 2.
PAD_POSITION = 1
FIRST_POSITION = PAD_POSITION + 1


class Packed(NamedTuple):
    """Sentences one behind the other in a single row, whose length and number of bounds stay the same from batch to batch.

    What is left at the end is filled with pads, which form sentences of their own: no place is outside a sentence, so none
    ever holds what no kernel has written. This is one side of a packed batch (data/packing.py, `Sides`), and all that attention
    has to know of it: nn/layout.py's PackedLayout has these very fields.
    """

    ids: Tensor  # (1, N)
    positions: Tensor  # (1, N), PAD_POSITION where there is a pad
    sentences: Tensor  # (N,), int32: the number of each token's sentence, from 1
    bounds: Tensor  # (R + 1,), int32: sentence i lies at bounds[i - 1] : bounds[i]; of those that are not there, both are N
    longest: int  # no sentence is longer

    @property
    def is_pad(self) -> Tensor:
        """(1, N)"""
        return self.positions.eq(PAD_POSITION)


Rows = Tensor | Packed  # padded: (B, T)


class Places(NamedTuple):
    """Where some sentences of a batch lie, in the whole of it and by themselves: one side's. Padded rows count as places."""

    taken: Tensor  # (P,), int32: where in the whole each place of the subset is; N where the subset has a pad
    back: Tensor  # (N,), int32: where in the subset each place of the whole is; P where it is left out
    sentences: Tensor | None = None  # of packed rows, as in Packed
    bounds: Tensor | None = None  # likewise
    longest: int = 0
    is_full: bool = False  # whether it is known that the subset has no pads


class Subset(NamedTuple):
    """The sentences of a batch that run a layer (LayerDrop)."""

    own: Places
    memory: Places  # of what cross-attention reads
