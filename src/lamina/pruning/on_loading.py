"""A checkpoint as those who use its model want it: with settings replaced, and pruned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.config.keep import KeepConfig, as_text
from lamina.config.model import ModelConfig
from lamina.errors import ConfigError
from lamina.fields import unique_leaves
from lamina.pruning.cut import prune_on_loading
from lamina.suggestions import suggestion

KEEP_FLAGS = {"encoder-layers-to-keep": "encoder", "decoder-layers-to-keep": "decoder"}


def made_ready(checkpoint: Checkpoint, path: Path | str, overrides: Mapping[str, Any] | None = None, *,
               notice: Callable[[str], object], say: Callable[[str], object]) -> Checkpoint:
    """The checkpoint read from `path`, overrides applied: settings of the model by flag, and the layers to keep of either side.

    `notice` hears of overrides without effect and of doubtful pruning; `say` the line about pruning that scripts read.
    """
    rest = dict(overrides or {})
    # As in the flags, a number that stands alone is a layer's.
    kept = {side: as_text([layers] if isinstance(layers, int) else layers)
            for name, side in KEEP_FLAGS.items() if (layers := rest.pop(name, None)) is not None}
    _override_(checkpoint, rest, notice)
    return prune_on_loading(checkpoint, KeepConfig(**kept), path, say=say, warn=notice)


def _override_(checkpoint: Checkpoint, overrides: Mapping[str, Any], notice: Callable[[str], object]) -> None:
    known = {leaf.name for leaf in unique_leaves(ModelConfig)}
    for name, value in overrides.items():
        if name in known:
            checkpoint.config[name] = value
        elif hint := suggestion(name, [*known, *KEEP_FLAGS]):
            raise ConfigError(f"the override {name!r} is no setting of a model.{hint}")
        else:
            notice(f"the override {name}={value!r} has no effect: models have no such setting")
