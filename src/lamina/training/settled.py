"""Options whose defaults have changed: a new run takes today's, a resumed one what its checkpoint was trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lamina.config.batches import BY_LENGTH, MIXED
from lamina.config.train_options import BY_SENTENCE, BY_UPDATE, TrainConfig
from lamina.training.restore import StartingPoint
from lamina.traits import DECODER


def settled(config: TrainConfig, start: StartingPoint | None, note: Callable[[str], None], *, was_packed: bool) -> TrainConfig:
    """The configuration with all that was left out written down, for the run and for its checkpoints.

    A checkpoint that does not say is of the time before the option: its packed batches were mixed, its padded ones sorted, and
    feed-forward blocks began as in fairseq 0.9. `was_packed`: whether such a run had packed batches then.
    """
    stored = {} if start is None else start.checkpoint.config
    batches, model = config.batches, config.model
    is_resumed = start is not None and start.is_resumed
    if batches.order is None:
        before = MIXED if was_packed else BY_LENGTH
        batches = replace(batches, order=(stored.get("batch-order") or before) if is_resumed else MIXED)
    if config.kind.has(DECODER) and not model.init.sets_feed_forward:
        began = model.ffn_start if start is None else stored.get("ffn-init", "xavier")
        if start is not None and model.ffn_init not in (None, began):
            note(f"--ffn-init {model.ffn_init} has no effect: the weights are those of {start.path}")
        model = replace(model, ffn_init=began)
    optimization = config.optimization
    if optimization.layer_drop_draws is None:
        # Before there was a choice, layers were drawn for an update.
        had_rates = is_resumed and any(stored.get(f"{side}-layerdrop") for side in ("encoder", "decoder"))
        draws = (stored.get("layerdrop-draws") or BY_UPDATE) if had_rates else BY_SENTENCE
        optimization = replace(optimization, layer_drop_draws=draws)
    return replace(config, batches=batches, model=model, optimization=optimization)
