"""What stepwise decoding keeps between steps."""

# B batch, H heads, T tokens so far, C channels of a head

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class KeyValues:
    """Keys and values of the tokens so far, in memory set aside once."""

    keys: Tensor  # (B, H, T_max, C)
    values: Tensor
    length: int = 0

    @classmethod
    def empty(cls, like: Tensor, batch: int, num_heads: int, max_length: int, channels: int) -> KeyValues:
        shape = (batch, num_heads, max_length, channels)
        return cls(like.new_empty(shape), like.new_empty(shape))

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store one step's (B, H, 1, C) and return all up to it, as views."""
        self.keys[:, :, self.length : self.length + 1] = key
        self.values[:, :, self.length : self.length + 1] = value
        self.length += 1
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


@dataclass
class LayerCache:
    """A decoder layer's own past, and the keys and values of what it reads."""

    past: KeyValues
    memory: tuple[Tensor, Tensor]
