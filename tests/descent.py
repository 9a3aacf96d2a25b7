"""A gradient keeps its promise: a step along it lowers the loss by as much as its length says, under the same dropout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.parts.update_rules import Sgd
from lamina.training.update import Updater

# Of the loss, in nats a token: small enough that it falls in a straight line, large enough for bfloat16 to see it.
PROMISED = 0.1
# With the masks of one pass and the gradient of another, of dropout 0.5, it is a quarter.
LEAST_KEPT = 0.8


def sgd_updater(model: Any, dtype: torch.dtype = torch.float32, **precision: bool) -> Updater:
    optimization = OptimizationConfig(criterion=LabelSmoothedCrossEntropy(smoothing=0.1), optimizer=Sgd(), clip_norm=0.0)
    return Updater(model, optimization, PrecisionConfig(**precision), dtype, note=print)


def share_kept(updater: Updater, batches: Iterable[Any], active: ActiveLayers = ALL_LAYERS) -> float:
    """How much of what the gradient promises comes, on average."""
    shares = []
    for seed, batch in enumerate(batches):
        before, norm = loss_and_norm(updater, batch, 0.0, seed, active)
        loss_and_norm(updater, batch, PROMISED / norm**2, seed, active)
        after, _ = loss_and_norm(updater, batch, 0.0, seed, active)
        shares.append((before - after) / PROMISED)
    return sum(shares) / len(shares)


def loss_and_norm(updater: Updater, batch: Any, lr: float, seed: int, active: ActiveLayers) -> tuple[float, float]:
    """Before the step of size `lr` is taken."""
    result = updater.update([batch], lr, seed, [active])
    result.wait()
    loss, _, norm, _, took_step = result.numbers.tolist()
    assert took_step
    return loss / result.num_tokens, norm
