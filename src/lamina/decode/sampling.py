"""Drawing tokens at random, the same for a sentence whatever batch it is in."""

# B sentences, K beams, T steps, V vocabulary

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# A draw at the very end of the distribution must not fall off it by rounding.
LARGEST_SHARE = 1.0 - 1e-6


def uniforms_for(seeds: Sequence[Sequence[int]], num_beams: int, num_steps: int) -> Tensor:
    """Numbers from [0, 1), a stream for each sentence: the first steps do not depend on how many follow. (T, B, K)"""
    drawn = [np.random.default_rng(list(seed)).random((num_steps, num_beams)) for seed in seeds]
    return torch.from_numpy(np.stack(drawn, axis=1).astype(np.float32))


def keep_likely_(log_probs: Tensor, *, topk: int = -1, topp: float = -1.0) -> None:
    """-inf for all but the most likely tokens: the first `topk`, or the fewest whose probabilities reach `topp`. (B, K, V)"""
    if topk > 0:
        kept, ids = log_probs.topk(min(topk, log_probs.size(2)))
        log_probs.fill_(-torch.inf).scatter_(2, ids, kept)
    elif 0.0 < topp < 1.0:
        likely, ids = log_probs.sort(dim=2, descending=True)
        probs = likely.exp()
        # A token stays if those before it fall short of P: the one that reaches P is in.
        log_probs.scatter_(2, ids, likely.masked_fill(probs.cumsum(dim=2) - probs >= topp, -torch.inf))


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """One token a beam by its probability, by inversion of the cumulative distribution. (B, K, V), (B, K) -> (B, K)"""
    largest = log_probs.amax(dim=2, keepdim=True).clamp(min=torch.finfo(log_probs.dtype).min)
    cumulative = (log_probs - largest).exp().cumsum(dim=2)
    shares = uniforms.clamp(max=LARGEST_SHARE)[:, :, None] * cumulative[:, :, -1:]
    return torch.searchsorted(cumulative, shares, right=True).clamp(max=cumulative.size(2) - 1)[:, :, 0]
