"""The references' initialisation: Xavier weights, small embeddings, zero padding rows."""

from __future__ import annotations

import math

import torch
from torch import nn

from lamina.nn.adaptive import AdaptiveHead
from lamina.nn.attention import CrossAttention, SelfAttention, SurfaceAttention
from lamina.nn.embedding import InputEmbedding, TokenTable
from lamina.nn.fusion import LayerAttention
from lamina.nn.heads import HardMix
from lamina.nn.positions import LearnedPositions
from lamina.packed import PAD_POSITION


@torch.no_grad()
def initialise_(model: nn.Module) -> None:
    """Module by module, in order, so that one seed gives one model."""
    for module in model.modules():
        match module:
            case nn.LayerNorm():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case LayerAttention():
                bound = math.sqrt(2 / (module.weight.size(0) + module.weight.size(1)))
                nn.init.uniform_(module.weight, -bound, bound)
            case HardMix() if module.gate_weight is not None:
                nn.init.normal_(module.gate_weight, mean=0.0, std=(module.gate_weight.size(1) // 2) ** -0.5)
            case TokenTable() | LearnedPositions():
                nn.init.normal_(module.weight, mean=0.0, std=module.weight.size(1) ** -0.5)
    # After all of those: these hold some of them, and differ.
    for module in model.modules():
        match module:
            case SelfAttention():
                _projections_(module.in_proj, num_parts=3, gain=1 / math.sqrt(2))
            case CrossAttention():
                # The references shrink the three projections only where all have one width.
                is_square = module.kv_proj.in_features == module.q_proj.in_features
                gain = 1 / math.sqrt(2) if is_square else 1.0
                _projections_(module.q_proj, num_parts=1, gain=gain)
                _projections_(module.kv_proj, num_parts=2, gain=gain)
            case SurfaceAttention():
                gain = 1 / math.sqrt(2) if module.k_proj.in_features == module.q_proj.in_features else 1.0
                for linear in (module.q_proj, module.k_proj, module.v_proj):
                    _projections_(linear, num_parts=1, gain=gain)
            case InputEmbedding():
                # Only where the table is looked up: an output matrix of its own keeps its padding row.
                module.table.clear_padding_()
            case AdaptiveHead() if not module.is_tied:
                for table in (module.table, *(tail.table for tail in module.tails)):
                    nn.init.xavier_uniform_(table.weight)
            case LearnedPositions():
                module.weight[PAD_POSITION] = 0.0


def _projections_(linear: nn.Linear, num_parts: int, gain: float) -> None:
    """Each of the stacked projections as if it stood alone; their biases are not zero in the references."""
    for block in linear.weight.chunk(num_parts):
        nn.init.xavier_uniform_(block, gain=gain)
    bound = linear.in_features ** -0.5
    nn.init.uniform_(linear.bias, -bound, bound)
