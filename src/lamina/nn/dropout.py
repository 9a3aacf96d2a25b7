"""Dropout, the one that all blocks use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

# Random numbers of 16 bits, four of which are drawn together.
NUM_LEVELS = 2**16
DRAWN_TOGETHER = 4
LARGEST = 0.99  # beyond, 16 bits are too few


class CountedDraws:
    """Random numbers that can be drawn again without a generator, as a replayed CUDA graph has to.

    Each is a function of a seed on the device, of how many masks came before it, and of its place in the mask.
    """

    def __init__(self) -> None:
        self.is_on = False  # whether layers that are computed again draw in this way
        self.seed: Tensor | None = None  # (1,) int64, while one of them runs
        self.num_masks = 0
        self.num_attentions = 0


DRAWS = CountedDraws()
# SplitMix64 (Steele et al. 2014), whose constants are unsigned.
GOLDEN, FIRST, SECOND = (number - 2**64 for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
NEXT_MASK, NEXT_ATTENTION = 0x632BE59B, 0x2545F491  # steps from one mask to the next, odd and unlike each other
NUM_COUNTED = 2**31  # of the levels that are counted
LOW_BITS = NUM_COUNTED - 1


def dropout(x: Tensor, p: float, is_training: bool) -> Tensor:
    """Each number becomes 0 with probability p; the others grow, so that the mean stays.

    torch draws its masks for a CPU number by number, on one thread, which takes a tenth of an update's time. Here p is
    rounded to 16 bits on a CPU, and a mask takes a fifth of that; torch's seed decides this one too.
    """
    if not is_training or p == 0.0:
        return x
    if DRAWS.seed is not None:
        return x * _counted_mask(x, p, DRAWS.seed)
    if x.device.type != "cpu" or p > LARGEST:
        return F.dropout(x, p)
    return x * _mask(x, p)


def _mask(x: Tensor, p: float) -> Tensor:
    drawn = torch.empty(-(-x.numel() // DRAWN_TOGETHER), dtype=torch.int64).random_(-(2**63), None)
    levels = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    mask = torch.empty_like(levels, dtype=x.dtype)
    torch.ge(levels, round(NUM_LEVELS * p) - NUM_LEVELS // 2, out=mask)
    return mask.mul_(1.0 / (1.0 - p))


def _counted_mask(x: Tensor, p: float, seed: Tensor) -> Tensor:
    DRAWS.num_masks += 1
    drawn = drawn_levels(seed + DRAWS.num_masks * NEXT_MASK, x.numel())
    return (drawn >= round(p * NUM_COUNTED)).view(x.shape).to(x.dtype) * (1.0 / (1.0 - p))


def drawn_levels(seed: Tensor, number: int) -> Tensor:
    """So many numbers below NUM_COUNTED, which follow from the seed. (number,)

    The seed is added before the product: torch.compile folds a place times a constant into one number, beyond 64 bits.
    """
    return _mixed((torch.arange(number, device=seed.device) + _mixed(seed)) * GOLDEN) & LOW_BITS


def _mixed(numbers: Tensor) -> Tensor:
    """All bits of a number in each bit of another. Products wrap around, and shifts fill with zeros."""
    numbers = (numbers ^ ((numbers >> 30) & (2**34 - 1))) * FIRST
    numbers = (numbers ^ ((numbers >> 27) & (2**37 - 1))) * SECOND
    return numbers ^ ((numbers >> 31) & (2**33 - 1))


def attention_seed(device: torch.device) -> Tensor:
    """For a kernel that draws for itself. (1,)"""
    if DRAWS.seed is None:
        return torch.randint(2**31, (1,), device=device)
    DRAWS.num_attentions += 1
    return _mixed(DRAWS.seed + DRAWS.num_attentions * NEXT_ATTENTION) & LOW_BITS


def must_draw_again(dropout_p: float) -> bool:
    return dropout_p > 0.0 and DRAWS.seed is not None


def check_can_draw_again(dropout_p: float) -> None:
    """Where torch's own kernel draws, whose numbers nothing else can draw."""
    if must_draw_again(dropout_p):
        raise RuntimeError("the dropout of this attention kernel cannot be drawn again; --attention-dropout 0 needs none")


@contextmanager
def counted_draws() -> Iterator[None]:
    """Inside, layers that are computed again for the gradient count what they draw."""
    before, DRAWS.is_on = DRAWS.is_on, True
    try:
        yield
    finally:
        DRAWS.is_on = before


@contextmanager
def drawing_from(seed: Tensor) -> Iterator[None]:
    """Inside, all that is drawn follows from the seed."""
    before = DRAWS.seed, DRAWS.num_masks, DRAWS.num_attentions
    DRAWS.seed, DRAWS.num_masks, DRAWS.num_attentions = seed, 0, 0
    try:
        yield
    finally:
        DRAWS.seed, DRAWS.num_masks, DRAWS.num_attentions = before
