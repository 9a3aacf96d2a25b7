"""fairseq's initialisation: Xavier weights, small embeddings, zero padding rows; feed-forward blocks by version."""

from __future__ import annotations

import math

import torch
from torch import nn

from lamina.nn.adaptive import AdaptiveHead
from lamina.nn.attention import CrossAttention, SelfAttention, SurfaceAttention
from lamina.nn.embedding import InputEmbedding, TokenTable
from lamina.nn.feed_forward import FeedForward
from lamina.nn.positions import LearnedPositions
from lamina.packed import PAD_POSITION


@torch.no_grad()
def initialise_(model: nn.Module, feed_forward: str = "torch") -> None:
    """Module by module, in order, so that one seed gives one model.

    `feed_forward` is how both matrices of these blocks begin: "xavier", with zero biases, as in fairseq 0.9, or "torch", as
    `nn.Linear` does itself and fairseq since 0.10. The rest begins alike in both.
    """
    for module in model.modules():
        match module:
            case nn.LayerNorm():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            case TokenTable() | LearnedPositions():
                nn.init.normal_(module.weight, mean=0.0, std=module.weight.size(1) ** -0.5)
            case _ if callable(initialise := getattr(module, "initialise_", None)):
                initialise()  # a part with weights of its own says how they start
    # After all of those: these hold some of them, and differ.
    for module in model.modules():
        match module:
            case FeedForward() if feed_forward == "torch":
                for linear in (module.fc1, module.fc2):
                    bound = linear.in_features ** -0.5
                    nn.init.uniform_(linear.weight, -bound, bound)
                    nn.init.uniform_(linear.bias, -bound, bound)
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
                for tail in module.tails:
                    nn.init.xavier_uniform_(tail.table.weight)
                # One matrix in fairseq: frequent words, then an entry for each band.
                first = (module.table.weight, module.clusters.weight)
                bound = math.sqrt(6 / (first[0].size(1) + sum(map(len, first))))
                for weight in first:
                    nn.init.uniform_(weight, -bound, bound)
            case LearnedPositions():
                module.weight[PAD_POSITION] = 0.0


def _projections_(linear: nn.Linear, num_parts: int, gain: float) -> None:
    """Each of the stacked projections as if it stood alone; their biases are not zero in fairseq."""
    for block in linear.weight.chunk(num_parts):
        nn.init.xavier_uniform_(block, gain=gain)
    bound = linear.in_features ** -0.5
    nn.init.uniform_(linear.bias, -bound, bound)
