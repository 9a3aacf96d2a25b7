"""From states to scores over the vocabulary.

A head names what looks at the vocabulary, and with which weight. Scores and loss are derived from that in one place each
(`log_probs` here, training/loss.py), so training never builds the whole (tokens, vocabulary) matrix. `start` prepares what a
head reads of the source, once a sentence; decoding steps reuse it. How the target lies matters to `terms` where sentences
are packed.
"""

# B batch, T tokens, S source, V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn import step_rows
from lamina.nn.attention import SurfaceAttention
from lamina.nn.cross_entropy import LossSums, Term, label_smoothed_loss
from lamina.nn.dropout import dropout
from lamina.nn.embedding import TokenTable
from lamina.nn.layout import AnyLayout, PackedLayout, whole_vectors
from lamina.nn.prepacked import Prepacked
from lamina.nn.stack import StackOutput

# Entries of (B, T, V) held at once while given targets are scored.
CHUNK_SIZE = 2**25


class VocabularyHead(nn.Module):
    """What every head answers; a subclass says which features look at the vocabulary (`terms`), and has the table.

    Loss and scores are derived from the terms here, so a head of one's own needs no more than `terms` and `start`.
    """

    table: TokenTable
    prepacked_output: Prepacked | None = None  # the table's matrix laid out in advance
    output_bias: Tensor | None = None

    def start(self, encoder: StackOutput, layout: AnyLayout, ids: Tensor) -> Any:
        """What the head reads of the source, once a batch: nothing, unless a subclass says otherwise."""
        return None

    def terms(self, decoder: StackOutput, source: Any = None, layout: AnyLayout | None = None) -> list[Term]:
        raise AssertionError(f"{type(self).__name__} does not say what looks at the vocabulary")

    def host_sizes(self, target: np.ndarray | None) -> tuple[int, ...] | None:
        """Sizes of what the loss computes for these targets that the host alone knows; None where it does not know them."""
        return ()

    @contextmanager
    def with_room(self, sizes: tuple[int, ...]) -> Iterator[None]:
        """Inside, the loss has shapes for so much, whatever its targets are: a captured pass is replayed for others."""
        yield

    def in_words(self) -> str:
        """What the softmax reads, for analyses."""
        return type(self).__name__

    @property
    def output_weight(self) -> Tensor | Prepacked:
        """What features look at."""
        return self.table.weight if self.prepacked_output is None else self.prepacked_output

    def log_probs(self, terms: list[Term], temperature: float = 1.0) -> Tensor:
        """Of each next token. (B, T, V)"""
        return log_probs(sharpen(terms, temperature), self.output_weight, self.output_bias, temperature)

    def target_log_probs(self, terms: list[Term], target: Tensor, softmax_batch: int | None = None) -> Tensor:
        """True log-probabilities of the given tokens, a few positions at a time, so that (B, T, V) is never there. (B, T)

        `softmax_batch` limits how many tokens look at the vocabulary at once, besides what memory allows.
        """
        limit = min(softmax_batch or target.numel(), CHUNK_SIZE // self.output_weight.size(0))
        width = max(1, limit // len(target))
        parts = []
        for start in range(0, target.size(1), width):
            span = slice(start, start + width)
            chunk = [Term(term.features[:, span], term.weight[:, span] if isinstance(term.weight, Tensor) else term.weight)
                     for term in terms]
            parts.append(normalise(self.log_probs(chunk), chunk).gather(2, target[:, span, None])[:, :, 0])
        return torch.cat(parts, dim=1)

    def loss(self, terms: list[Term], target: Tensor, *, smoothing: float, pad_id: int, is_compiled: bool = False,
             target_on_host: np.ndarray | None = None) -> LossSums:
        """Label-smoothed cross entropy, summed over non-pad targets; `target_on_host` is a copy of the target."""
        weight = self.output_weight
        assert isinstance(weight, Tensor), "a prepacked model is used, not trained"
        sums = label_smoothed_loss(terms, weight, target, smoothing=smoothing, pad_id=pad_id, output_bias=self.output_bias,
                                   is_compiled=is_compiled)
        if len(terms) == 1 or self.training:
            return sums
        # The loss that training minimises is no likelihood where terms are weighted: a perplexity needs a distribution.
        own = self.target_log_probs(terms, target)
        return sums._replace(nll=-own[target.ne(pad_id)].sum())


class LinearHead(VocabularyHead):
    """The usual softmax: one term. Its table may be the target embedding's; features of another width are projected."""

    def __init__(self, table: TokenTable, project: nn.Module | None = None) -> None:
        super().__init__()
        self.table = table
        self.project = project

    def in_words(self) -> str:
        return "the decoder's output"

    def terms(self, decoder: StackOutput, source: Any = None, layout: AnyLayout | None = None) -> list[Term]:
        return [Term(decoder.final if self.project is None else self.project(decoder.final), 1.0)]


class BiasedHead(LinearHead):
    """The usual softmax with a bias for each token."""

    def __init__(self, table: TokenTable, project: nn.Module | None = None) -> None:
        super().__init__(table, project)
        self.bias = nn.Parameter(torch.zeros(len(table.weight)))

    @property
    def output_bias(self) -> Tensor:  # type: ignore[override]
        return self.bias


class AttendedSurface(nn.Module):
    """Source embeddings, as much of each as the decoder's state asks for (Liu et al. 2021)."""

    def __init__(self, attention: SurfaceAttention, *, state: int, has_positions: bool) -> None:
        super().__init__()
        self.attention = attention
        self.state = state  # of decoder.states: what asks
        self.has_positions = has_positions

    def in_words(self) -> str:
        return "attended source embeddings"

    def start(self, encoder: StackOutput, layout: AnyLayout, ids: Tensor) -> tuple[Tensor, AnyLayout]:
        values = _surface_values(encoder, has_positions=self.has_positions)
        # Detached: this path should shape the embeddings, not steer the two stacks.
        return whole_vectors(self.attention.project(encoder.final.detach(), values), layout)

    def forward(self, decoder: StackOutput, source: tuple[Tensor, AnyLayout], layout: AnyLayout | None) -> Tensor:
        query = decoder.states[self.state]
        assert query is not None, "the decoder keeps the state that asks"
        return self.attention(query.detach(), *source, layout)  # (B, T, D)


class PooledSurface(nn.Module):
    """One vector a sentence: the mean or the maximum of the embeddings of its words."""

    def __init__(self, *, is_mean: bool, has_positions: bool, first_word_id: int, dropout_p: float) -> None:
        super().__init__()
        self.is_mean = is_mean
        self.has_positions = has_positions
        self.first_word_id = first_word_id  # ids below it are symbols, not words
        self.dropout_p = dropout_p

    def in_words(self) -> str:
        return "pooled source embeddings"

    def start(self, encoder: StackOutput, layout: AnyLayout, ids: Tensor) -> Tensor:
        values = _surface_values(encoder, has_positions=self.has_positions)
        is_word = (ids >= self.first_word_id)[:, :, None].to(values.dtype)  # (B, S, 1)
        words = values * is_word
        # A position that is no word counts as 0 in the maximum, as in the authors' code.
        if isinstance(layout, PackedLayout):
            pooled = self._pooled_by_sentence(words, is_word, layout)
        else:
            pooled = words.sum(dim=1) / is_word.sum(dim=1).clamp(min=1) if self.is_mean else words.amax(dim=1)
        return dropout(pooled, self.dropout_p, self.training)[:, None]  # (B, 1, D)

    def _pooled_by_sentence(self, words: Tensor, is_word: Tensor, layout: PackedLayout) -> Tensor:
        """words: (1, N, D), is_word: (1, N, 1) -> (sentences and one more, D), as PackedLayout numbers them"""
        numbers, size = layout.sentences.long(), len(layout.bounds) + 1
        if self.is_mean:
            # In float32: the order in which a GPU adds up is not fixed, and half precision would show it.
            wide = [part[0].float() if part.dtype != torch.float64 else part[0] for part in (words, is_word)]
            sums, counts = (part.new_zeros(size, part.size(1)).index_add(0, numbers, part) for part in wide)
            return (sums / counts.clamp(min=1)).to(words.dtype)
        places = numbers[:, None].expand_as(words[0])
        return words.new_zeros(size, words.size(2)).scatter_reduce(0, places, words[0], "amax", include_self=False)

    def forward(self, decoder: StackOutput, source: Tensor, layout: AnyLayout | None) -> Tensor:
        if isinstance(layout, PackedLayout):
            return source[layout.sentences].transpose(0, 1)  # (1, N, D)
        return source.expand_as(decoder.final)


def _surface_values(encoder: StackOutput, *, has_positions: bool) -> Tensor:
    values = encoder.states[0] if has_positions else encoder.embedding
    assert values is not None, "the encoder keeps its input where positions are read"
    return values


class HardMix(nn.Module):
    """gate * log-softmax of the target side + (1 - gate) * that of the source side: scores, not a distribution."""

    parameter_kind = "gates"

    def __init__(self, gate: float, dim: int, alone_p: float = 0.0) -> None:
        """`alone_p`: in training, share of tokens that the target side scores alone, where the gate is learned."""
        super().__init__()
        self.gate = gate  # 0: learned
        self.alone_p = alone_p
        self.gate_weight = None if gate else nn.Parameter(torch.empty(1, 2 * dim))

    def in_words(self) -> str:
        return "hard, a gate learned for each token" if self.gate_weight is not None else f"hard, a fixed gate of {self.gate:g}"

    def initialise_(self) -> None:
        if self.gate_weight is not None:
            nn.init.normal_(self.gate_weight, mean=0.0, std=(self.gate_weight.size(1) // 2) ** -0.5)

    def forward(self, target: Tensor, source: Tensor) -> list[Term]:
        if self.gate_weight is None:
            return [Term(target, self.gate), Term(source, 1.0 - self.gate)]
        gate = F.linear(torch.cat((target, source), dim=-1), self.gate_weight).float().sigmoid()  # (B, T, 1)
        if self.training and self.alone_p:
            # The loss is linear in the gate, which therefore goes to 0 or 1; at 0 the stacks would learn no more.
            gate = gate.masked_fill(_drawn(gate, self.alone_p), 1.0)
        return [Term(target, gate), Term(source, 1.0 - gate)]


class SoftMix(nn.Module):
    """log-softmax of the sum of both sides' scores. Scores are linear in features, so the sum is taken there."""

    def __init__(self, tau: float, alone_p: float = 0.0) -> None:
        """`alone_p`: in training, share of tokens that the target side scores alone."""
        super().__init__()
        self.tau = tau
        self.alone_p = alone_p

    def in_words(self) -> str:
        return f"soft, tau {self.tau:g}"

    def forward(self, target: Tensor, source: Tensor) -> list[Term]:
        if self.training and self.alone_p:
            # Both sides get the gradient of their common softmax: what the source side explains soon, the stacks never learn.
            # The others do not grow in turn: in use no token goes without.
            source = source.masked_fill(_drawn(source, self.alone_p), 0.0)
        return [Term(target + self.tau * source, 1.0)]


def _drawn(like: Tensor, p: float) -> Tensor:
    """Which tokens are chosen, each with probability p. (B, T, 1)"""
    return torch.rand(like.shape[:-1], device=like.device)[..., None] < p


class SurfaceHead(VocabularyHead):
    """The decoder's view of the vocabulary and the source surface's, mixed (Liu et al. 2021)."""

    def __init__(self, table: TokenTable, surface: AttendedSurface | PooledSurface, mix: HardMix | SoftMix, *,
                 ffn: nn.Module | None, target_linear: nn.Module | None, source_linear: nn.Module | None,
                 dropout_p: float) -> None:
        super().__init__()
        self.table = table
        self.surface = surface
        self.mix = mix
        self.ffn = ffn
        self.target_linear = target_linear
        self.source_linear = source_linear
        self.dropout_p = dropout_p

    def in_words(self) -> str:
        return f"the decoder's output and {self.surface.in_words()} ({self.mix.in_words()})"

    def start(self, encoder: StackOutput, layout: AnyLayout, ids: Tensor) -> Any:
        return self.surface.start(encoder, layout, ids)

    def terms(self, decoder: StackOutput, source: Any = None, layout: AnyLayout | None = None) -> list[Term]:
        target, surface = decoder.final, self.surface(decoder, source, layout)
        if self.ffn is not None:
            # One block for both views, in one product.
            both = torch.stack((target, surface))
            target, surface = both + dropout(self.ffn(both), self.dropout_p, self.training)
        if self.target_linear is not None and self.source_linear is not None:
            target, surface = self.target_linear(target), self.source_linear(surface)
        return self.mix(target, surface)


def log_probs(terms: list[Term], output_weight: Tensor | Prepacked, bias: Tensor | None = None,
              temperature: float = 1.0) -> Tensor:
    """The weighted sum of each term's log-softmax, in float32 or better whatever the model computes in. (B, T, V)

    `temperature` is what the features were divided by, and the bias still has to be.
    """
    bias = bias if bias is None or temperature == 1.0 else bias / temperature
    if len(terms) == 1 and isinstance(terms[0].weight, float) and terms[0].weight == 1.0:
        # The usual head: nothing to multiply, nothing to add.
        return _log_softmax(terms[0].features, output_weight, bias)
    # One product for all: where few rows meet a large vocabulary, reading the matrix is what takes the time.
    scores = _log_softmax(torch.stack([term.features for term in terms]), output_weight, bias)
    first, *others = (own * term.weight for own, term in zip(scores, terms, strict=True))
    return sum(others, start=first)


def _log_softmax(features: Tensor, output_weight: Tensor | Prepacked, bias: Tensor | None) -> Tensor:
    if isinstance(output_weight, Tensor):
        scores = F.linear(features, output_weight, bias)
    else:
        scores = output_weight(features) if bias is None else output_weight(features) + bias
    if step_rows.suits(scores, widest=step_rows.LARGEST_VOCABULARY):
        return step_rows.log_softmax(scores)
    return F.log_softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))


def sharpen(terms: list[Term], temperature: float) -> list[Term]:
    """The decoder's own scores divided by `temperature`; what hard fusion reads off the source stays, as with its authors."""
    if temperature == 1.0:
        return terms
    own, *others = terms
    return [own._replace(features=own.features / temperature), *others]


def normalise(log_probs: Tensor, terms: list[Term]) -> Tensor:
    """`log_probs` as a distribution over the vocabulary: what a perplexity may be computed from."""
    return log_probs if len(terms) == 1 else log_probs.log_softmax(dim=-1)
