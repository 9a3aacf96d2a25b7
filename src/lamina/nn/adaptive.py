"""Vocabularies in bands: frequent words get wide vectors, rare ones narrow vectors that a projection widens.

Ids are sorted by frequency, so a band is a range of ids. Band 0 is read off the model's width; the rare ones together stand in
the first softmax as one entry a band, and only a text's rare words pay for the softmax of their band
(Grave et al. 2017; at the input, Baevski and Auli 2019).
"""

# N tokens, V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.errors import ConfigError
from lamina.nn.cross_entropy import LinearCrossEntropy, LossSums, Term
from lamina.nn.dropout import dropout
from lamina.nn.embedding import TokenTable
from lamina.nn.heads import CHUNK_SIZE, VocabularyHead
from lamina.nn.layout import AnyLayout
from lamina.nn.prepacked import Prepacked
from lamina.nn.stack import StackOutput


class Band(nn.Module):
    """A range of words, embedded narrowly and widened."""

    def __init__(self, table: TokenTable, project: nn.Linear) -> None:
        super().__init__()
        self.table = table
        self.project = project

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.table(ids))


class AdaptiveTable(nn.Module):
    """Token vectors by band (Baevski and Auli 2019, §3)."""

    def __init__(self, bands: Sequence[Band]) -> None:
        super().__init__()
        self.bands: Sequence[Band] = nn.ModuleList(bands)  # type: ignore[assignment]

    def forward(self, ids: Tensor) -> Tensor:
        start, vectors = 0, None
        for band in self.bands:
            # All tokens, the others' clamped to some word of the band: to pick out its own would ask the device how many.
            size = len(band.table.weight)
            own = band((ids - start).clamp(0, size - 1))
            vectors = own if vectors is None else torch.where((ids >= start)[..., None], own, vectors)
            start += size
        assert vectors is not None, "at least one band"
        return vectors

    def clear_padding_(self) -> None:
        self.bands[0].table.clear_padding_()


class Tail(nn.Module):
    """The softmax within a band of rare words. Its projection may be that of the input's band, turned round."""

    reads_weights_of = ("project",)

    def __init__(self, table: TokenTable, project: nn.Linear, *, is_turned: bool, dropout_p: float) -> None:
        super().__init__()
        self.table = table
        self.project = project
        self.is_turned = is_turned
        self.dropout_p = dropout_p

    def features(self, x: Tensor) -> Tensor:
        """What looks at the band's words. (..., D) -> (..., narrow)"""
        weight = self.project.weight
        return dropout(F.linear(x, weight.t() if self.is_turned else weight), self.dropout_p, self.training)

    def log_probs(self, x: Tensor) -> Tensor:
        """Given that it is a word of this band. (..., D) -> (..., words of the band)"""
        return F.log_softmax(F.linear(self.features(x), self.table.weight), -1, dtype=torch.float32)


class AdaptiveHead(VocabularyHead):
    """First the frequent words and one entry for each band of rare ones, then the word within the band."""

    reads_weights_of = ("clusters",)
    _room: tuple[int, ...] | None = None  # words of each tail that the loss has places for; None: for as many as there are

    def __init__(self, table: TokenTable, clusters: nn.Linear, tails: Sequence[Tail], *, project: nn.Linear | None,
                 is_tied: bool, dropout_p: float) -> None:
        super().__init__()
        self.project = project
        self.table = table
        self.clusters = clusters
        self.tails: Sequence[Tail] = nn.ModuleList(tails)  # type: ignore[assignment]
        self.is_tied = is_tied  # with the input's tables
        self.dropout_p = dropout_p

    def terms(self, decoder: StackOutput, source: Any = None, layout: AnyLayout | None = None) -> list[Term]:
        features = decoder.final if self.project is None else self.project(decoder.final)
        return [Term(dropout(features, self.dropout_p, self.training), 1.0)]

    @property
    def output_weight(self) -> Tensor | Prepacked:
        raise AssertionError("an adaptive head has no output matrix in one piece")

    @property
    def num_frequent(self) -> int:
        return len(self.table.weight)

    @property
    def widest(self) -> int:
        """Entries of the largest of its softmaxes."""
        return max(self.num_frequent + len(self.tails), *(len(tail.table.weight) for tail in self.tails))

    def first_weight(self) -> Tensor:
        """What the first softmax looks at: frequent words, then the bands."""
        return torch.cat([self.table.weight, self.clusters.weight])

    def first_target(self, target: Tensor) -> Tensor:
        """The entry of the first softmax that each word falls under."""
        first = target.clamp(max=self.num_frequent)  # a rare word: the first of the bands
        for start, _ in self.ranges()[1:]:
            first = first + (target >= start)
        return first

    def ranges(self) -> list[tuple[int, int]]:
        """The ids of each tail, from the first to behind the last."""
        found, start = [], self.num_frequent
        for tail in self.tails:
            found.append((start, start + len(tail.table.weight)))
            start = found[-1][1]
        return found

    def log_probs(self, terms: list[Term], temperature: float = 1.0) -> Tensor:
        (term,) = terms
        scores = self.scores(term.features)
        return scores if temperature == 1.0 else (scores / temperature).log_softmax(dim=-1)

    def scores(self, features: Tensor) -> Tensor:
        """Log-probabilities of every word, in float32. (..., D) -> (..., V)"""
        first = F.log_softmax(F.linear(features, self.first_weight()), -1, dtype=torch.float32)
        words, bands = first.split([self.num_frequent, len(self.tails)], dim=-1)
        return torch.cat([words, *(tail.log_probs(features) + bands[..., number, None]
                                   for number, tail in enumerate(self.tails))], dim=-1)

    def target_log_probs(self, terms: list[Term], target: Tensor, softmax_batch: int | None = None) -> Tensor:
        (term,) = terms
        features, flat = term.features.flatten(0, 1), target.flatten()
        size = min(softmax_batch or len(flat), max(1, CHUNK_SIZE // self.widest))
        parts = [self._of_targets(features[start : start + size], flat[start : start + size])
                 for start in range(0, len(flat), size)]
        return torch.cat(parts).view_as(target)

    def _of_targets(self, features: Tensor, target: Tensor) -> Tensor:
        """Of the given words alone: a tail is computed for its own words. (N, D), (N,) -> (N,)"""
        first = F.log_softmax(F.linear(features, self.first_weight()), -1, dtype=torch.float32)
        found = first.gather(1, self.first_target(target)[:, None])[:, 0]
        for tail, (start, end) in zip(self.tails, self.ranges(), strict=True):
            rows = ((target >= start) & (target < end)).nonzero()[:, 0]
            own = tail.log_probs(features[rows]).gather(1, target[rows, None] - start)[:, 0]
            found = found.index_add(0, rows, own)
        return found

    def loss(self, terms: list[Term], target: Tensor, *, smoothing: float, pad_id: int, is_compiled: bool = False,
             target_on_host: np.ndarray | None = None) -> LossSums:
        """The negative log-likelihood (Grave et al. 2017, §4), summed over non-pad targets.

        Each tail is computed for its own words alone. How many those are is read off `target_on_host` where there is one:
        otherwise the device is asked.
        """
        if smoothing:
            raise ConfigError("--label-smoothing would need every word's probability, which an adaptive softmax is there to "
                              "avoid. Take --criterion adaptive_loss.")
        (term,) = terms
        features, flat = term.features.flatten(0, 1), target.flatten()
        counts = flat.ne(pad_id).float()
        loss, nll = LinearCrossEntropy.apply(features, self.first_weight(), None, self.first_target(flat), counts, 0.0, False)
        sizes = self._room
        if sizes is None:
            sizes = self._words_of_tails(flat.cpu().numpy() if target_on_host is None else target_on_host)
        for tail, (start, end), size in zip(self.tails, self.ranges(), sizes, strict=True):
            if not size:
                continue
            rows, is_word = _rows_between(flat, start, end, size)
            # Relative ids are words of the band, never padding: the word at pad_id's place in a band counts like the others.
            words = (flat[rows] - start).clamp(0, end - start - 1)
            tail_loss, tail_nll = LinearCrossEntropy.apply(tail.features(features.index_select(0, rows)), tail.table.weight,
                                                           None, words, is_word.float(), 0.0, False)
            loss, nll = loss + tail_loss, nll + tail_nll
        return LossSums(loss, nll)

    def host_sizes(self, target: np.ndarray | None) -> tuple[int, ...] | None:
        return None if target is None else self._words_of_tails(target)

    def _words_of_tails(self, target: np.ndarray) -> tuple[int, ...]:
        return tuple(int(np.count_nonzero((target >= start) & (target < end))) for start, end in self.ranges())

    @contextmanager
    def with_room(self, sizes: tuple[int, ...]) -> Iterator[None]:
        self._room = sizes
        try:
            yield
        finally:
            self._room = None


def _rows_between(ids: Tensor, start: int, end: int, size: int) -> tuple[Tensor, Tensor]:
    """Where the ids of a range are, and which of the `size` places that takes; any row stands at the others. (size,) both"""
    is_own = (ids >= start) & (ids < end)
    number = is_own.cumsum(0)
    places = (number - 1).masked_fill(~is_own, size).clamp(max=size)
    rows = ids.new_zeros(size + 1).scatter_(0, places, torch.arange(len(ids), device=ids.device))
    return rows[:size], torch.arange(size, device=ids.device) < number[-1]
