"""BERT's initialisation: every matrix N(0, 0.02), zero biases (Devlin et al. 2019, and fairseq's RoBERTa)."""

from __future__ import annotations

import torch
from torch import nn

from lamina.nn.embedding import OutputTable, TokenTable
from lamina.nn.positions import LearnedPositions
from lamina.packed import PAD_POSITION

STD = 0.02


@torch.no_grad()
def initialise_bert_(model: nn.Module) -> None:
    """Module by module, in order, so that one seed gives one model."""
    for module in model.modules():
        match module:
            case nn.LayerNorm():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.Linear():
                nn.init.normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)
            case OutputTable():
                module.initialise_()
            case TokenTable():
                nn.init.normal_(module.weight, std=STD)
                module.weight[module.pad_id] = 0.0
            case LearnedPositions():
                nn.init.normal_(module.weight, std=STD)
                module.weight[PAD_POSITION] = 0.0
            case _ if callable(initialise := getattr(module, "initialise_", None)):
                initialise()  # a part with weights of its own says how they start
