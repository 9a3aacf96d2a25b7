"""What a batch hands to a model: ids in padded rows, or packed one behind the other."""

# N tokens of a packed row, R sentences that there is room for

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Position ids start right above the padding id, as in the references: pads hold 1, the first token 2.
PAD_POSITION = 1
FIRST_POSITION = PAD_POSITION + 1


class Packed(NamedTuple):
    """Ids of packed sentences, in place of padded rows; nn/layout.py says what each part means."""

    ids: Tensor  # (1, N)
    positions: Tensor  # (1, N)
    sentences: Tensor  # (N,)
    bounds: Tensor  # (R + 1,)
    longest: int


Rows = Tensor | Packed  # padded: (B, T)
