"""What the decoder's cross-attention reads: the encoder's last state, one of its layers, or a learned mix of them.

All share one contract. `prepare(encoder)` makes what the decoder layers have in common, once a batch; calling the part with
that and a decoder layer's index gives the memory that this layer attends to. `reads_states` says which of the encoder's
states must be kept alive for it, and `reads_final` whether its last norm is read at all.
"""

# B batch, S source, D model_dim, L columns of the mix (what it may read)

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lamina.nn.dropout import dropout
from lamina.nn.stack import StackOutput


class LastState(nn.Module):
    """The usual memory: every decoder layer reads the encoder's output."""

    reads_states: frozenset[int] = frozenset()
    reads_final = True

    def prepare(self, encoder: StackOutput) -> Tensor:
        return encoder.final

    def forward(self, prepared: Tensor, reader: int) -> Tensor:
        return prepared


FINAL = -1  # in LayerWise.reads: the encoder's output, after its last norm


def spread_evenly(num_readers: int, num_layers: int) -> tuple[int, ...]:
    """The encoder state that each decoder layer reads: with equal depths layer i reads layer i; the last reads the output."""
    states = [math.ceil((reader + 1) * num_layers / num_readers) for reader in range(num_readers)]
    return tuple(FINAL if state == num_layers else state for state in states)


class LayerWise(nn.Module):
    """Decoder layer i reads the encoder state `reads[i]`: raw, 0 the stack's input; or the normalised output (FINAL)."""

    def __init__(self, reads: Sequence[int]) -> None:
        super().__init__()
        self.reads = tuple(reads)
        self.reads_states = frozenset(reads) - {FINAL}
        self.reads_final = FINAL in self.reads

    def prepare(self, encoder: StackOutput) -> StackOutput:
        return encoder

    def forward(self, prepared: StackOutput, reader: int) -> Tensor:
        state = self.reads[reader]
        memory = prepared.final if state == FINAL else prepared.states[state]
        assert memory is not None, "the stack keeps every state that reads_states names"
        return memory


class Transform(nn.Module):
    """One feed-forward block for all columns of the mix."""

    def __init__(self, ffn: nn.Module, residual: nn.Module) -> None:
        super().__init__()
        self.ffn = ffn
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x, self.ffn)


class LayerAttention(nn.Module):
    """Every decoder layer reads its own mix of encoder states, with a weight a layer or a layer and channel (Liu et al. 2021).

    Columns of the mix, in order: the source embedding, if `reads_embedding`; the stack's input, if `reads_input`; the output
    of each encoder layer, raw. `weight` holds logits: softmax over the columns.
    """

    reads_final = False

    def __init__(self, *, num_readers: int, num_layers: int, dim: int, is_fine_grained: bool, reads_embedding: bool,
                 embedding_has_positions: bool, reads_input: bool, embedding_norm: nn.Module | None,
                 transform: nn.Module | None, dropout_p: float, weight_dropout_p: float, drops_logits: bool) -> None:
        super().__init__()
        num_columns = num_layers + reads_input + reads_embedding
        self.weight = nn.Parameter(torch.empty(num_readers, num_columns, *([dim] if is_fine_grained else [])))
        self.norm = nn.LayerNorm(dim)
        self.embedding_norm = embedding_norm
        self.transform = transform
        self.reads_embedding = reads_embedding
        self.embedding_has_positions = embedding_has_positions
        self.dropout_p = dropout_p  # on the embedding column, as on every input of a stack
        self.weight_dropout_p = weight_dropout_p
        self.drops_logits = drops_logits
        self.first_state = 0 if reads_input else 1
        with_input = {0} if reads_input or (reads_embedding and embedding_has_positions) else set()
        self.reads_states = frozenset({*range(1, num_layers + 1), *with_input})

    def prepare(self, encoder: StackOutput) -> Tensor:
        """The columns, stacked. (L, B, S, D)"""
        columns = list(encoder.states[self.first_state :])
        if self.reads_embedding:
            columns.insert(0, self._embedding(encoder))
        stacked = torch.stack([column for column in columns if column is not None])
        return stacked if self.transform is None else self.transform(stacked)

    def _embedding(self, encoder: StackOutput) -> Tensor:
        embedding = encoder.states[0] if self.embedding_has_positions else encoder.embedding
        assert embedding is not None, "the stack keeps every state that reads_states names"
        embedding = dropout(embedding, self.dropout_p, self.training)
        return embedding if self.embedding_norm is None else self.embedding_norm(embedding)

    def shares(self, reader: int) -> Tensor:
        """How much of each column this decoder layer reads; they sum to 1 but for dropout in training. (L,) or (L, D)"""
        logits = self.weight[reader]
        if self.drops_logits:
            return dropout(logits, self.weight_dropout_p, self.training).softmax(dim=0)
        return dropout(logits.softmax(dim=0), self.weight_dropout_p, self.training)

    def forward(self, prepared: Tensor, reader: int) -> Tensor:
        pattern = "l,lbsd->bsd" if self.weight.dim() == 2 else "ld,lbsd->bsd"
        mixed = torch.einsum(pattern, self.shares(reader), prepared)
        return dropout(self.norm(mixed), self.weight_dropout_p, self.training)


Memory = LastState | LayerWise | LayerAttention
