"""An adapter's weights as part of the model's own: a model without it that computes the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.marks import marks_of
from lamina.errors import DamageError
from lamina.fields import flatten
from lamina.parts.adapters import NoAdapter


def merge_adapter(checkpoint: Checkpoint) -> Checkpoint:
    """The same where there is none. What resuming needs belongs to the adapter's weights, and stays behind."""
    before = checkpoint.model_config()
    if before.adapter.is_plain:
        return checkpoint
    try:
        weights = before.adapter.merged(checkpoint.weights)
    except (KeyError, RuntimeError, ValueError) as error:
        raise DamageError(f"the checkpoint is damaged: the weights of its {before.adapter.spelled} do not fit the model's "
                          f"({str(error).splitlines()[0][:120]}).") from None
    after = flatten(replace(before, adapter=NoAdapter()))
    own_names = flatten(before).keys() - after.keys()
    config = {name: value for name, value in (checkpoint.config | after).items() if name not in own_names}
    kept: dict[str, Any] = {name: value for name, value in checkpoint.training.items() if name in ("run", "progress")}
    return replace(checkpoint, config=config, weights=weights, training={**kept, **marks_of(checkpoint)})


def merged_if_it_can(checkpoint: Checkpoint) -> Checkpoint:
    """For those who use a model and do not train its adapter: one that cannot be merged stays beside the model."""
    return merge_adapter(checkpoint) if checkpoint.model_config().adapter.can_merge else checkpoint
