"""What `lamina info` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import flag


@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """Info."""

    checkpoint: str = flag("checkpoints/checkpoint_best.pt", "checkpoint to describe", positional=True)
    is_json: bool = flag(False, "print everything, the whole configuration included, as JSON", name="json")
