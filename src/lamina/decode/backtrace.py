"""The way a search went: written down on the device step by step, read back when a sentence is finished."""

# B sentences, T steps, K beams

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.decode.candidates import Candidates
from lamina.text.vocabulary import EOS

# What is noted of a beam: its token, parent and score, and of the hypothesis that ended at its rank the parent and score.
TOKEN, PARENT, SCORE, END_PARENT, END_SCORE = range(5)
NO_END = np.float32(-np.inf).view(np.int32).item()


@dataclass
class Hypothesis:
    """A translation of one sentence, as ids."""

    ids: list[int]  # </s> included
    score: float  # by which hypotheses are compared
    token_scores: list[float]  # natural logarithms, one for each id
    attention: Tensor | None = None  # (len(ids), S): how much each token looked at each source position

    @property
    def total(self) -> float:
        return sum(self.token_scores)

    @property
    def is_lost(self) -> bool:
        """Nothing was found: the model computes NaN."""
        return self.token_scores[-1] == -np.inf


class Backtrace:
    """For every step and beam its token, parent and score, and the hypotheses that ended there."""

    def __init__(self, num_steps: int, batch: int, num_beams: int, device: torch.device) -> None:
        # Whole numbers, and the bits of scores: what is noted together lies together.
        self.notes = torch.zeros(batch, num_steps, 5, num_beams, dtype=torch.int32, device=device)  # (B, T, 5, K)
        self.notes[:, :, END_SCORE] = NO_END
        self._rows = torch.arange(batch, device=device)

    def note_(self, steps: Tensor, beams: Candidates, ends: Candidates) -> None:
        """What happened at step `steps` (B,) of each sentence; the scores of `ends` are -inf where nothing ended."""
        self.notes[self._rows, steps] = torch.stack([
            beams.tokens.int(), beams.parents.int(), beams.scores.view(torch.int32),
            ends.parents.int(), ends.scores.contiguous().view(torch.int32)], dim=1)

    def begin_(self, rows: Tensor, tokens: Tensor, scores: Tensor) -> None:
        """These sentences have their first tokens given; no beam has changed its place. tokens, scores: (B', K, T)"""
        parents = torch.arange(tokens.size(1), device=tokens.device)[None, :, None].expand_as(tokens)
        no_ends = torch.full_like(scores, -torch.inf)
        notes = torch.stack([tokens.int(), parents.int(), scores.contiguous().view(torch.int32), parents.int(),
                             no_ends.view(torch.int32)], dim=1).permute(0, 3, 1, 2)  # (B', T, 5, K)
        self.notes[:, : tokens.size(2)].index_copy_(0, rows, notes)

    def clear_(self, rows: Tensor) -> None:
        """Other sentences take these rows."""
        self.notes[:, :, END_SCORE].index_fill_(0, rows, NO_END)

    def select_(self, rows: Tensor) -> None:
        self._rows = torch.arange(len(rows), device=rows.device)
        self.notes = self.notes.index_select(0, rows)

    def of(self, rows: Tensor, length: int) -> Tensor:
        """The first steps of some sentences. (B', length, 5, K)"""
        return self.notes[:, :length].index_select(0, rows)


def hypotheses_of(notes: np.ndarray, config: SearchConfig, source_lengths: Sequence[int]) -> list[list[Hypothesis]]:
    """The n best of each sentence. notes: (B, T, 5, K)"""
    # In order of sentence, then step, then rank: what ended first stays first among equals.
    ends = np.ascontiguousarray(notes[:, :, END_SCORE]).view(np.float32)
    sentences, steps, ranks = np.nonzero(ends > -np.inf)
    totals = ends[sentences, steps, ranks].astype(np.float64)
    scores = totals if config.unnormalized else totals / (steps + 1.0) ** config.length_penalty
    if config.match_source_length:
        # Words against words: the source's </s> does not count, and `steps` tokens precede the translation's.
        scores = np.where(steps > np.asarray(source_lengths)[sentences] - 1, -np.inf, scores)
    best = _best_of_each(sentences, scores, config.nbest)
    return _read_back(notes, sentences[best], steps[best], ranks[best], scores[best], totals[best])


def _read_back(notes: np.ndarray, sentences: np.ndarray, steps: np.ndarray, ranks: np.ndarray, scores: np.ndarray,
               totals: np.ndarray) -> list[list[Hypothesis]]:
    """Follow the parents of all hypotheses at once, from the last step to the first."""
    batch, length = notes.shape[:2]
    beams = notes[sentences, steps, END_PARENT, ranks]
    ids = np.full((len(steps), length), EOS)
    cumulative = np.zeros((len(steps), length + 1))
    cumulative[np.arange(len(steps)), steps + 1] = totals
    for step in range(length - 2, -1, -1):
        here = np.nonzero(steps > step)[0]
        found = notes[sentences[here], step, :END_PARENT, beams[here]]
        ids[here, step], beams[here] = found[:, TOKEN], found[:, PARENT]
        cumulative[here, step + 1] = found[:, SCORE].copy().view(np.float32)
    token_scores = np.diff(cumulative, axis=1)
    results: list[list[Hypothesis]] = [[] for _ in range(batch)]
    for index, (sentence, step, score) in enumerate(zip(sentences.tolist(), steps.tolist(), scores.tolist(), strict=True)):
        results[sentence].append(Hypothesis(ids[index, : step + 1].tolist(), score, token_scores[index, : step + 1].tolist()))
    # Only a model that computes NaN ends no hypothesis at all; the reader of the results still finds one.
    return [result or [Hypothesis([EOS], -np.inf, [-np.inf])] for result in results]


def _best_of_each(sentences: np.ndarray, scores: np.ndarray, number: int) -> np.ndarray:
    """Indices of each sentence's `number` best, in order."""
    order = np.lexsort((-scores, sentences))  # stable
    starts = np.searchsorted(sentences[order], sentences[order])
    return order[np.arange(len(order)) - starts < number]
