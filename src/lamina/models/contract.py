"""What every model answers, whatever its stacks are."""

from __future__ import annotations

from typing import Any

from torch import nn

from lamina.nn.cross_entropy import Term
from lamina.nn.heads import VocabularyHead
from lamina.nn.stack import ALL_LAYERS, ActiveLayers


class Model(nn.Module):
    """Called as model(*batch.inputs, active=...), it gives what its head says of each target (nn/heads.py).

    Models that write text also have `start` and `step` (models/encoder_decoder.py, decoder_only.py), which a search calls.
    """

    head: VocabularyHead
    pad_id: int

    def forward(self, *inputs: Any, active: ActiveLayers = ALL_LAYERS) -> list[Term]:
        raise AssertionError(f"{type(self).__name__} does not say what its head looks at")
