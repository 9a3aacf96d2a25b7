"""What the decoder's cross-attention reads: the encoder's last state, one of its layers, or a learned mix of them.

All share one contract. `prepare(encoder)` makes what the decoder layers have in common, once a batch; calling the part with
that and a decoder layer's index gives the memory that this layer attends to. `reads_states` says which of the encoder's
states must be kept alive for it, and `reads_final` whether its last norm is read at all.
"""

# B batch, S source, D model_dim, L columns of the mix (what it may read)

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lamina.errors import CheckpointError
from lamina.nn.dropout import dropout
from lamina.nn.mixing import INPUT, layer_name
from lamina.nn.stack import StackOutput

# What analyses call the states that are no layer's output; nn/mixing.py has the other.
EMBEDDING = "embedding"


class Memory(nn.Module):
    """What cross-attention reads: `prepare` once a batch, then `memory(prepared, reader)` for each decoder layer.

    Analyses ask for its words and its weights; one that does not answer is refused by name.
    """

    reads_states: frozenset[int] = frozenset()  # raw states of the encoder, 0 its input: the stack keeps no others
    reads_final: bool = True  # the encoder's output, after its last norm

    def prepare(self, encoder: StackOutput) -> Any:
        raise AssertionError(f"{type(self).__name__} does not say what it reads")

    def in_words(self) -> str:
        """What the decoder layers read."""
        return type(self).__name__

    def read_weights(self, num_layers: int) -> tuple[tuple[str, ...], Tensor] | None:
        """Names of what it may read, and how much of each every decoder layer reads; None where all read the output alone.

        (decoder layers, columns), or (decoder layers, columns, D)
        """
        raise CheckpointError(f"{type(self).__name__} does not say how much of each encoder layer is read: give it "
                              "`read_weights` (lamina.nn.fusion.Memory).")


class LastState(Memory):
    """The usual memory: every decoder layer reads the encoder's output."""

    def prepare(self, encoder: StackOutput) -> Tensor:
        return encoder.final

    def in_words(self) -> str:
        return "the encoder's output"

    def read_weights(self, num_layers: int) -> tuple[tuple[str, ...], Tensor] | None:
        return None

    def forward(self, prepared: Tensor, reader: int) -> Tensor:
        return prepared


FINAL = -1  # in LayerWise.reads: the encoder's output, after its last norm; parts/encoder_fusion.py says the same


class LayerWise(Memory):
    """Decoder layer i reads the encoder state `reads[i]`: raw, 0 the stack's input; or the normalised output (FINAL)."""

    def __init__(self, reads: Sequence[int]) -> None:
        super().__init__()
        self.reads = tuple(reads)
        self.reads_states = frozenset(reads) - {FINAL}
        self.reads_final = FINAL in self.reads

    def prepare(self, encoder: StackOutput) -> StackOutput:
        return encoder

    def in_words(self) -> str:
        return "one encoder layer for each decoder layer"

    def read_weights(self, num_layers: int) -> tuple[tuple[str, ...], Tensor] | None:
        columns = tuple(INPUT if state == 0 else layer_name(state) for state in range(num_layers + 1))
        shares = torch.eye(num_layers + 1)[[num_layers if state == FINAL else state for state in self.reads]]
        first = 0 if 0 in self.reads else 1
        return columns[first:], shares[:, first:]

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


class LayerAttention(Memory):
    """Every decoder layer reads its own mix of encoder states, with a weight a layer or a layer and channel (Liu et al. 2021).

    Columns of the mix, in order: the source embedding, if `reads_embedding`; the stack's input, if `reads_input`; the output
    of each encoder layer, raw. `weight` holds logits: softmax over the columns.
    """

    reads_final = False
    parameter_kind = "gates"

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

    def initialise_(self) -> None:
        bound = math.sqrt(2 / (self.weight.size(0) + self.weight.size(1)))
        nn.init.uniform_(self.weight, -bound, bound)

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

    def in_words(self) -> str:
        what = "a learned mix of encoder layers for each decoder layer"
        return what + (", with weights by channel" if self.weight.dim() == 3 else "")

    def column_names(self, num_layers: int) -> tuple[str, ...]:
        """In the order of the mix."""
        with_embedding = (EMBEDDING,) if self.reads_embedding else ()
        with_input = (INPUT,) if self.first_state == 0 else ()
        return (*with_embedding, *with_input, *(layer_name(number + 1) for number in range(num_layers)))

    def read_weights(self, num_layers: int) -> tuple[tuple[str, ...], Tensor] | None:
        return self.column_names(num_layers), torch.stack([self.shares(reader) for reader in range(len(self.weight))])

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

