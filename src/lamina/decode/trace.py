"""The way a search went: written down on the device step by step, read back once at the end."""

# T steps, B sentences, K beams

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lamina.config.decode import SearchConfig
from lamina.text.vocabulary import EOS


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


class Trace:
    """For every step and beam its token, parent and score, and the hypotheses that ended there."""

    def __init__(self, num_steps: int, batch: int, num_beams: int, device: torch.device) -> None:
        shape = (num_steps, batch, num_beams)
        self.tokens, self.parents, self.end_parents = (torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(3))
        self.scores = torch.zeros(shape, device=device)
        self.end_scores = torch.full(shape, -torch.inf, device=device)
        self.length = 0

    def note_ends_(self, step: int, rows: Tensor, scores: Tensor, parents: Tensor) -> None:
        """scores: (B', K), -inf where nothing ended; rows: (B',), the sentences still in the batch"""
        self.end_scores[step].index_copy_(0, rows, scores)
        self.end_parents[step].index_copy_(0, rows, parents.int())
        self.length = step + 1

    def note_beams_(self, step: int, rows: Tensor, tokens: Tensor, parents: Tensor, scores: Tensor) -> None:
        self.tokens[step].index_copy_(0, rows, tokens.int())
        self.parents[step].index_copy_(0, rows, parents.int())
        self.scores[step].index_copy_(0, rows, scores)

    def hypotheses(self, config: SearchConfig, source_lengths: list[int]) -> list[list[Hypothesis]]:
        """The n best of each sentence."""
        # In order of sentence, then step, then rank: what ended first stays first among equals.
        ends = self.end_scores[: self.length].permute(1, 0, 2).cpu().numpy()
        sentences, steps, ranks = np.nonzero(ends > -np.inf)
        totals = ends[sentences, steps, ranks].astype(np.float64)
        scores = totals if config.unnormalized else totals / (steps + 1.0) ** config.length_penalty
        if config.match_source_length:
            # Words against words: the source's </s> does not count, and `steps` tokens precede the translation's.
            scores = np.where(steps > np.asarray(source_lengths)[sentences] - 1, -np.inf, scores)
        best = _best_of_each(sentences, scores, config.nbest)
        return self._read_back(sentences[best], steps[best], ranks[best], scores[best], totals[best], len(source_lengths))

    def _read_back(self, sentences: np.ndarray, steps: np.ndarray, ranks: np.ndarray, scores: np.ndarray,
                   totals: np.ndarray, batch: int) -> list[list[Hypothesis]]:
        """Follow the parents of all hypotheses at once, from the last step to the first."""
        tokens, parents, sums = (part[: self.length].cpu().numpy() for part in (self.tokens, self.parents, self.scores))
        beams = self.end_parents[: self.length].cpu().numpy()[steps, sentences, ranks]
        ids = np.full((len(steps), self.length), EOS)
        cumulative = np.zeros((len(steps), self.length + 1))
        cumulative[np.arange(len(steps)), steps + 1] = totals
        for step in range(self.length - 2, -1, -1):
            here = np.nonzero(steps > step)[0]
            place = (step, sentences[here], beams[here])
            ids[here, step], cumulative[here, step + 1], beams[here] = tokens[place], sums[place], parents[place]
        results: list[list[Hypothesis]] = [[] for _ in range(batch)]
        for index, (sentence, step) in enumerate(zip(sentences.tolist(), steps.tolist(), strict=True)):
            token_scores = np.diff(cumulative[index, : step + 2])
            results[sentence].append(Hypothesis(ids[index, : step + 1].tolist(), float(scores[index]), token_scores.tolist()))
        # Only a model that computes NaN ends no hypothesis at all; whoever reads the results still finds one.
        return [result or [Hypothesis([EOS], -np.inf, [-np.inf])] for result in results]


def _best_of_each(sentences: np.ndarray, scores: np.ndarray, number: int) -> np.ndarray:
    """Indices of each sentence's `number` best, in order."""
    order = np.lexsort((-scores, sentences))  # stable
    starts = np.searchsorted(sentences[order], sentences[order])
    return order[np.arange(len(order)) - starts < number]
