"""How sequences lie in a tensor."""

# B batch, T tokens of a row

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Position ids start right above the padding id, as in the references: pads hold 1, the first token 2.
PAD_POSITION = 1
FIRST_POSITION = PAD_POSITION + 1


class Layout(NamedTuple):
    """Padded rows. Attention, positions and losses ask the layout, never a bare mask."""

    is_pad: Tensor  # (B, T)
    may_attend: Tensor  # (B, 1, 1, T): keys that a query of the same row may look at, over all heads

    @classmethod
    def of_ids(cls, ids: Tensor, pad_id: int) -> Layout:
        is_pad = ids.eq(pad_id)
        return cls(is_pad, ~is_pad[:, None, None, :])

    def positions(self) -> Tensor:
        """The id of each token's position; only tokens count, so padding on the left shifts nothing. (B, T)"""
        is_token = (~self.is_pad).to(torch.long)
        return is_token.cumsum(dim=1) * is_token + PAD_POSITION
