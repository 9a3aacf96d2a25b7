"""What a criterion says of a batch: the one place that training, validation and analysis ask."""

from __future__ import annotations

from lamina.data.batching import AnyBatch
from lamina.models.contract import Model
from lamina.nn.cross_entropy import LossSums
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.parts import Criterion


def batch_loss(model: Model, batch: AnyBatch, criterion: Criterion, active: ActiveLayers = ALL_LAYERS, *,
               is_compiled: bool = False) -> LossSums:
    """Sums over the batch's targets, where the layers `active` run; those that were drawn for a batch go before."""
    draw = getattr(batch, "draw", None)
    if draw is not None:
        assert active == ALL_LAYERS, "one draw"
        active = ActiveLayers(*draw.subsets(batch.drawn))  # type: ignore[attr-defined]
    return criterion.loss(model, batch, active, is_compiled=is_compiled)
