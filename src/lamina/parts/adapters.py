"""Trainable weights beside the model's own: the kinds of --adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.parts.contracts import Adapter
from lamina.registry import register

if TYPE_CHECKING:
    from torch import nn


@register.adapter("none")
@dataclass(frozen=True, kw_only=True)
class NoAdapter(Adapter):
    """The model's own weights are trained."""

    is_plain = True

    def attach_(self, model: nn.Module) -> None:
        """Nothing to add."""
