"""How the vectors of a model's words lie to each other."""

# V vocabulary, D model_dim

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lamina.data.batching import Batch
from lamina.decode.alignment import alignment_of, cross_attention
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.embedding import TokenTable
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, PAD


def token_tables(model: EncoderDecoder) -> dict[str, TokenTable]:
    """Each embedding matrix once, by the uses that share it: {"source, target, output": ...} where all do."""
    uses = {"source": model.source_embedding.table, "target": model.target_embedding.table, "output": model.head.table}
    tables = {id(table): table for table in uses.values()}
    return {", ".join(use for use, own in uses.items() if own is table): table for table in tables.values()}


class Spectrum(NamedTuple):
    """The singular values of an embedding matrix."""

    values: np.ndarray  # (min(V, D),), the largest first

    @property
    def normalised(self) -> np.ndarray:
        return self.values / self.values[0]

    @property
    def variance(self) -> np.ndarray:
        """The share of the squared length that the first k directions hold, for k = 1, 2, ..."""
        return np.cumsum(self.values**2) / np.sum(self.values**2)

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the values as shares of their sum (Roy and Vetterli 2007, def. 1)."""
        shares = self.values / self.values.sum()
        shares = shares[shares > 0.0]
        return float(np.exp(-np.sum(shares * np.log(shares))))


@torch.no_grad()
def spectrum(table: TokenTable) -> Spectrum:
    """Without the row of <pad>, which nothing trains."""
    ids = [number for number in range(len(table.weight)) if number != table.pad_id]
    return Spectrum(torch.linalg.svdvals(table.weight.detach().cpu().double()[ids]).numpy())


def aligned_words(model: EncoderDecoder, batches: Iterable[Batch],
                  advance: Callable[[int], object] = lambda number: None) -> np.ndarray:
    """(source id, target id) of each target word and the source word it looks at most; special symbols left out. (N, 2)"""
    pairs: list[tuple[int, int]] = []
    for batch in batches:
        attention = cross_attention(model, batch.source, batch.target_in).cpu()
        for source, target, own in zip(batch.source.tolist(), batch.target_out.tolist(), attention, strict=True):
            length = target.index(EOS) + 1
            for position, place in alignment_of(own[:length], source, skipped=(EOS, PAD)):
                if min(source[position], target[place]) >= FIRST_WORD_ID:
                    pairs.append((source[position], target[place]))
        advance(batch.num_sentences)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


class Similarity(NamedTuple):
    """Cosines of source and target embeddings."""

    aligned: np.ndarray  # (N,)
    random: np.ndarray  # (N,): the same words, each source word with the target word of another pair
    is_same_symbol: np.ndarray  # (N,): of an aligned pair; where the table is shared, its cosine is 1 whatever was learned


@torch.no_grad()
def similarity(model: EncoderDecoder, pairs: np.ndarray, seed: int) -> Similarity:
    source, target = model.source_embedding.table, model.target_embedding.table
    shuffled = np.random.default_rng(seed).permutation(pairs[:, 1])
    is_same = pairs[:, 0] == pairs[:, 1] if source is target else np.zeros(len(pairs), dtype=bool)
    return Similarity(_cosines(source, target, pairs[:, 0], pairs[:, 1]), _cosines(source, target, pairs[:, 0], shuffled),
                      is_same)


def _cosines(source: TokenTable, target: TokenTable, source_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
    def vectors(table: TokenTable, ids: np.ndarray) -> Tensor:
        return table.weight.detach().cpu().double()[torch.from_numpy(ids)]

    return torch.cosine_similarity(vectors(source, source_ids), vectors(target, target_ids)).numpy()
