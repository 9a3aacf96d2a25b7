"""Vocabularies in bands: frequent words get wide vectors, rare ones narrow vectors that a projection widens.

Ids are sorted by frequency, so a band is a range of ids. Band 0 is read off the model's width; the rare ones together stand in
the first softmax as one entry a band, and only a text's rare words pay for the softmax of their band
(Grave et al. 2017; at the input, Baevski and Auli 2019).
"""

# N tokens, V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamina.nn.cross_entropy import Term
from lamina.nn.dropout import dropout
from lamina.nn.embedding import TokenTable
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


class AdaptiveHead(nn.Module):
    """First the frequent words and one entry for each band of rare ones, then the word within the band."""

    reads_weights_of = ("clusters",)

    def __init__(self, table: TokenTable, clusters: nn.Linear, tails: Sequence[Tail], *, project: nn.Linear | None,
                 is_tied: bool, dropout_p: float) -> None:
        super().__init__()
        self.project = project
        self.table = table
        self.clusters = clusters
        self.tails: Sequence[Tail] = nn.ModuleList(tails)  # type: ignore[assignment]
        self.is_tied = is_tied  # with the input's tables
        self.dropout_p = dropout_p

    def terms(self, decoder: StackOutput, source: Any = None) -> list[Term]:
        features = decoder.final if self.project is None else self.project(decoder.final)
        return [Term(dropout(features, self.dropout_p, self.training), 1.0)]

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

    def log_probs(self, features: Tensor) -> Tensor:
        """Of every word, in float32. (..., D) -> (..., V)"""
        first = F.log_softmax(F.linear(features, self.first_weight()), -1, dtype=torch.float32)
        words, bands = first.split([self.num_frequent, len(self.tails)], dim=-1)
        return torch.cat([words, *(tail.log_probs(features) + bands[..., number, None]
                                   for number, tail in enumerate(self.tails))], dim=-1)

    def target_log_probs(self, features: Tensor, target: Tensor) -> Tensor:
        """Of the given words alone: a tail is computed for its own words. (N, D), (N,) -> (N,)"""
        first = F.log_softmax(F.linear(features, self.first_weight()), -1, dtype=torch.float32)
        found = first.gather(1, self.first_target(target)[:, None])[:, 0]
        for tail, (start, end) in zip(self.tails, self.ranges(), strict=True):
            rows = ((target >= start) & (target < end)).nonzero()[:, 0]
            own = tail.log_probs(features[rows]).gather(1, target[rows, None] - start)[:, 0]
            found = found.index_add(0, rows, own)
        return found
