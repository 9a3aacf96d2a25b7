"""What `lamina fold` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import REQUIRED, flag


@dataclass(frozen=True, kw_only=True)
class FoldConfig:
    """Fold."""

    checkpoint: str = flag("checkpoints/checkpoint_best.pt", "checkpoint of a model with scaled residuals",
                           positional=True)
    output: str = flag(REQUIRED, "checkpoint to write: a plain Transformer with the same outputs", metavar="FILE")
