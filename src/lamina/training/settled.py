"""Options whose defaults have changed: a new run takes today's, a resumed one what its checkpoint was trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lamina.config.batches import BY_LENGTH, MIXED
from lamina.config.train_options import TrainConfig
from lamina.training.restore import StartingPoint
from lamina.traits import DECODER


def settled(config: TrainConfig, start: StartingPoint | None, note: Callable[[str], None], *, is_packed: bool) -> TrainConfig:
    """The configuration with all that was left out written down, for the run and for its checkpoints.

    A checkpoint that does not say is of the time before the option: its packed batches were mixed, its padded ones sorted, and
    feed-forward blocks began as in fairseq 0.9.
    """
    stored = {} if start is None else start.checkpoint.config
    batches, model = config.batches, config.model
    if batches.order is None:
        before = MIXED if is_packed else BY_LENGTH
        is_resumed = start is not None and start.is_resumed
        batches = replace(batches, order=(stored.get("batch-order") or before) if is_resumed else MIXED)
    if config.kind.has(DECODER) and not model.init.sets_feed_forward:
        began = model.ffn_start if start is None else stored.get("ffn-init", "xavier")
        if start is not None and model.ffn_init not in (None, began):
            note(f"--ffn-init {model.ffn_init} has no effect: the weights are those of {start.path}")
        model = replace(model, ffn_init=began)
    return replace(config, batches=batches, model=model)
