"""From ids to vectors."""

# B batch, T tokens, V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn import step_rows
from lamina.nn.dropout import dropout
from lamina.nn.layout import AnyLayout
from lamina.packed import FIRST_POSITION


class TokenTable(nn.Module):
    """The (V, D) matrix of token vectors. Sharing embeddings means sharing this object."""

    parameter_kind = "embeddings"

    def __init__(self, num_tokens: int, dim: int, pad_id: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_tokens, dim))
        self.pad_id = pad_id

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight, padding_idx=self.pad_id)

    @torch.no_grad()
    def clear_padding_(self) -> None:
        if self.pad_id is not None:
            self.weight[self.pad_id] = 0.0


class OutputTable(TokenTable):
    """A matrix that scores every token and is never looked up, so that padding is a word like the others."""

    def __init__(self, num_tokens: int, dim: int) -> None:
        super().__init__(num_tokens, dim, None)

    @torch.no_grad()
    def initialise_(self) -> None:
        """As torch.nn.Linear starts: fairseq leaves it so."""
        bound = self.weight.size(1) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)


class Embedded(NamedTuple):
    """A stack's input, and the scaled token vectors without positions that fusion reads."""

    input: Tensor  # (B, T, D)
    tokens: Tensor  # (B, T, D), under the same dropout mask; without dropout where they are not read


class WordDropout(NamedTuple):
    """Words, not special symbols, become <unk> with probability p."""

    p: float
    unk_id: int
    first_word_id: int

    def __call__(self, ids: Tensor) -> Tensor:
        is_dropped = (torch.rand(ids.shape, device=ids.device) < self.p) & (ids >= self.first_word_id)
        return ids.masked_fill(is_dropped, self.unk_id)


class InputEmbedding(nn.Module):
    """scale * token + position, then an optional norm, then dropout. In training, whole words may become <unk> first.

    Token vectors of another width than the model's are projected to it.
    """

    is_compiled_whole = True  # as layers are (nn/stack.py)

    def __init__(self, table: nn.Module, *, scale: float, positions: nn.Module | None, norm: nn.Module | None,
                 dropout_p: float, word_dropout: WordDropout | None = None, offers_tokens: bool = False,
                 project: nn.Module | None = None, reads: Sequence[tuple[int, int]] = ()) -> None:
        """`reads`: ids whose place another one's vector takes."""
        super().__init__()
        self.table: Any = table  # TokenTable, or AdaptiveTable
        self.project = project
        self.scale = scale
        self.positions = positions
        self.norm = norm
        self.dropout_p = dropout_p
        self.word_dropout = word_dropout
        self.offers_tokens = offers_tokens
        self.reads = tuple(reads)

    def forward(self, ids: Tensor, layout: AnyLayout) -> Embedded:
        if self.training and self.word_dropout is not None:
            ids = self.word_dropout(ids)
        return self._embed(ids, layout.position_ids() if self.positions is not None else None)

    def step(self, ids: Tensor, num_before: Tensor) -> Embedded:
        """One token a beam, with so many tokens before it. ids: (B, K); num_before: (B,)"""
        if type(self.table) is TokenTable and not self.reads and self.project is None and self.positions is not None:
            table, positions = self.table.weight, getattr(self.positions, "rows", None)
            if positions is not None and step_rows.suits(table) and positions.is_contiguous():
                tokens, x = step_rows.embed(ids, num_before, table, positions, self.scale)
                return Embedded(x if self.norm is None else self.norm(x), tokens)
        return self._embed(ids, (num_before + FIRST_POSITION)[:, None].expand_as(ids))

    def _embed(self, ids: Tensor, positions: Tensor | None) -> Embedded:
        read = ids
        for own, other in self.reads:
            read = torch.where(ids == own, other, read)
        tokens = self.table(read)
        if self.project is not None:
            tokens = self.project(tokens)
        tokens = tokens * self.scale
        x = tokens
        if self.positions is not None:
            x = x + self.positions(positions).to(tokens.dtype)
        if self.norm is not None:
            x = self.norm(x)
        if self.offers_tokens and self.training and self.dropout_p:
            # One mask for both: fusion sees of a token what the encoder sees of it (Liu et al. 2021, authors' code).
            mask = dropout(torch.ones_like(x), self.dropout_p, self.training)
            return Embedded(x * mask, tokens * mask)
        return Embedded(dropout(x, self.dropout_p, self.training), tokens)
