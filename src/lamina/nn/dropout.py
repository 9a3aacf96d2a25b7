"""Dropout, the one that all blocks use."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Random numbers of 16 bits, four of which are drawn together.
NUM_LEVELS = 2**16
DRAWN_TOGETHER = 4
LARGEST = 0.99  # beyond, 16 bits are too few


def dropout(x: Tensor, p: float, is_training: bool) -> Tensor:
    """Each number becomes 0 with probability p; the others grow, so that the mean stays.

    torch draws its masks for a CPU number by number, on one thread, which takes a tenth of an update's time. Here p is
    rounded to 16 bits on a CPU, and a mask takes a fifth of that; torch's seed decides this one too.
    """
    if not is_training or p == 0.0:
        return x
    if x.device.type != "cpu" or p > LARGEST:
        return F.dropout(x, p)
    return x * _mask(x, p)


def _mask(x: Tensor, p: float) -> Tensor:
    drawn = torch.empty(-(-x.numel() // DRAWN_TOGETHER), dtype=torch.int64).random_(-(2**63), None)
    levels = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    mask = torch.empty_like(levels, dtype=x.dtype)
    torch.ge(levels, round(NUM_LEVELS * p) - NUM_LEVELS // 2, out=mask)
    return mask.mul_(1.0 / (1.0 - p))
