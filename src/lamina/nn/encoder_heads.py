"""What an encoder alone is asked: which token stood under a mask, and which class a sentence belongs to."""

# B batch, T tokens, N masked tokens, V vocabulary, D model_dim, C classes

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn.cross_entropy import Term
from lamina.nn.dropout import dropout
from lamina.nn.embedding import TokenTable
from lamina.nn.feed_forward import Function
from lamina.nn.heads import VocabularyHead
from lamina.nn.linear import Linear


class MaskedHead(VocabularyHead):
    """norm(activation(dense(x))) looks at the vocabulary, through a table and a bias (Devlin et al. 2019).

    The table is the input's, unless --untie-weights-roberta gives the head its own.
    """

    def __init__(self, table: TokenTable, activation: Function) -> None:
        super().__init__()
        num_tokens, dim = table.weight.shape
        self.dense = Linear(dim, dim)
        self.activation = activation
        self.norm = nn.LayerNorm(dim)
        self.table = table
        self.bias = nn.Parameter(torch.zeros(num_tokens))

    @property
    def output_bias(self) -> Tensor:  # type: ignore[override]
        return self.bias

    def log_probs(self, terms: list[Term], temperature: float = 1.0) -> Tensor:
        (term,) = terms
        scores = F.linear(term.features, self.table.weight, self.bias)
        return F.log_softmax(scores / temperature, -1, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """What looks at the vocabulary. (..., D) -> (..., D)"""
        return self.norm(self.activation(self.dense(x)))

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return F.linear(self(x), self.table.weight, self.bias)


class SentenceHead(nn.Module):
    """out_proj(dropout(activation(dense(dropout(x))))) of the first token, which stands for the whole sentence."""

    def __init__(self, dim: int, num_classes: int, activation: Function, dropout_p: float) -> None:
        super().__init__()
        self.dense = Linear(dim, dim)
        self.activation = activation
        self.dropout_p = dropout_p
        self.out_proj = Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, C)"""
        first = dropout(x[:, 0], self.dropout_p, self.training)
        inner = self.activation(self.dense(first))
        return self.out_proj(dropout(inner, self.dropout_p, self.training))
