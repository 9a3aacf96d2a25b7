"""From states to scores over the vocabulary.

A head names what looks at the vocabulary, and with which weight. Scores and loss are derived from that in one place each
(`log_probs` here, train/loss.py), so training never builds the whole (tokens, vocabulary) matrix.
"""

# B batch, T tokens, V vocabulary, D model_dim

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn.embedding import TokenTable
from lamina.nn.layout import Layout
from lamina.nn.stack import StackOutput


class Term(NamedTuple):
    """Features that look at the vocabulary, and the weight of their log-probabilities."""

    features: Tensor  # (B, T, D)
    weight: float | Tensor  # 1.0, or (B, T, 1)


class LinearHead(nn.Module):
    """The usual softmax: one term. Its table may be the target embedding's."""

    def __init__(self, table: TokenTable) -> None:
        super().__init__()
        self.table = table

    def terms(self, decoder: StackOutput, encoder: StackOutput, layout: Layout) -> list[Term]:
        return [Term(decoder.final, 1.0)]


def log_probs(terms: list[Term], output_weight: Tensor) -> Tensor:
    """The weighted sum of each term's log-softmax, in float32 whatever the model computes in. (B, T, V)"""
    total: Tensor | None = None
    for features, weight in terms:
        own = F.log_softmax(F.linear(features, output_weight), -1, dtype=torch.float32)
        # The usual head has one term of weight 1: nothing to multiply, nothing to add.
        own = own if isinstance(weight, float) and weight == 1.0 else own * weight
        total = own if total is None else total + own
    assert total is not None, "a head names at least one term"
    return total
