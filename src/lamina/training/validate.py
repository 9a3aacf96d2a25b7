"""How good is the model now: loss and perplexity; tasks also have figures of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from lamina.data.batching import AnyBatch
from lamina.distributed.ranks import ALONE, Ranks
from lamina.nn.attention import kernels_for_any_length
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts import Criterion
from lamina.training.loss import batch_loss


@torch.no_grad()
def validation_loss(model: Any, batches: Iterable[AnyBatch], criterion: Criterion, active: ActiveLayers = ALL_LAYERS,
                    ranks: Ranks = ALONE, num_counted: int | None = None) -> dict[str, float]:
    """Per token, in bits, as fairseq prints it; `batches` are this rank's, the figures those of all.

    Those beyond the first `num_counted` keep a rank in step with others, and count for nothing.
    """
    model.eval()
    loss = nll = torch.zeros((), dtype=torch.float64)
    num_tokens = 0
    for number, batch in enumerate(batches):
        with kernels_for_any_length():
            sums = batch_loss(model, batch, criterion, active)
        if num_counted is not None and number >= num_counted:
            continue
        loss, nll = loss.to(sums.loss.device) + sums.loss, nll.to(sums.nll.device) + sums.nll
        num_tokens += batch.num_target_tokens
    loss_sum, nll_sum = ranks.sum_(torch.stack([loss, nll]).cpu()).tolist()
    (num_tokens,) = ranks.sum(num_tokens)
    return bits_per_token(loss_sum, nll_sum, max(num_tokens, 1))


def bits_per_token(loss_sum: float, nll_sum: float, num_tokens: int) -> dict[str, float]:
    """NaN where there is nothing to divide by: an epoch of skipped updates has no loss, not one of 0."""
    loss, nll = (value / num_tokens / math.log(2) if num_tokens else math.nan for value in (loss_sum, nll_sum))
    return {"loss": loss, "nll_loss": nll, "ppl": perplexity(nll)}


def perplexity(bits: float) -> float:
    if math.isnan(bits):
        return bits
    return 2.0**bits if bits < 1000 else math.inf
