"""What may not be said: rules that change log-probabilities before a search chooses."""

# B sentences, K beams, T tokens so far, V vocabulary, P length of the prefix

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.decode.candidates import Candidates
from lamina.decode.constraints import Constraints
from lamina.text.vocabulary import EOS, PAD, UNK


class Due(NamedTuple):
    """What the host knows of a step without asking the device: what need not be looked at."""

    length: int  # no sentence has more tokens after the step
    has_ends: bool = True  # a sentence may have come to its longest length
    has_prefixes: bool = True  # a sentence may be within its prefix


class Rules:
    """Penalties and prohibitions of one search, each sentence at a step of its own."""

    def __init__(self, config: SearchConfig, limits: Tensor, first_ends: Tensor, prefix: Tensor | None = None,
                 constraints: Constraints | None = None, *, num_steps: int = 0) -> None:
        """limits, first_ends: (B,), the most tokens before </s> and the fewest; prefix: (B, P), padded; `num_steps`: at most"""
        self.config = config
        self.constraints = constraints
        self.limits = limits
        self.first_ends = first_ends
        self.prefix = prefix
        # The tokens of each beam, where repetition matters.
        self.past = limits.new_zeros(len(limits), config.beam, num_steps) if config.no_repeat_ngram else None
        self._rows = torch.arange(len(limits), device=limits.device)

    def apply_(self, log_probs: Tensor, steps: Tensor, due: Due) -> None:
        """log_probs: (B, K, V), of the token after `steps` (B,) others"""
        log_probs[:, :, PAD] = -torch.inf
        if self.config.unk_penalty:
            log_probs[:, :, UNK] -= self.config.unk_penalty
        forced = self._forced(steps) if due.has_prefixes else None
        forced_scores = None if forced is None else log_probs.gather(2, _per_beam(forced, log_probs))
        end_scores = log_probs[:, :, EOS].clone() if due.has_ends else None
        if self.past is not None:
            forbid_repetition_(log_probs, self.past[:, :, : due.length], steps, self.config.no_repeat_ngram, self.constraints)
        if self.constraints is not None:
            self.constraints.restrict_(log_probs, due.length - 1)
        log_probs[:, :, EOS].masked_fill_((steps < self.first_ends)[:, None], -torch.inf)
        if forced is not None and forced_scores is not None:
            is_forced = forced.ne(PAD)[:, None, None]
            log_probs.masked_fill_(is_forced, -torch.inf)
            here = _per_beam(forced, log_probs)
            log_probs.scatter_(2, here, torch.where(is_forced, forced_scores, log_probs.gather(2, here)))
        if end_scores is not None:
            must_end = self.must_end(steps)[:, None]
            log_probs.masked_fill_(must_end[:, :, None], -torch.inf)
            log_probs[:, :, EOS] = torch.where(must_end, end_scores, log_probs[:, :, EOS])

    def _forced(self, steps: Tensor) -> Tensor | None:
        """The token that each sentence must go on with, or a pad. (B,)"""
        if self.prefix is None:
            return None
        last = self.prefix.size(1) - 1
        return self.prefix[self._rows, steps.clamp(max=last)].masked_fill(steps > last, PAD)

    def must_end(self, steps: Tensor) -> Tensor:
        """(B,)"""
        return self.limits <= steps

    def note_(self, steps: Tensor, beams: Candidates, due: Due) -> None:
        """These tokens are said at `steps`."""
        if self.past is not None:
            past = self.past[:, :, : due.length]
            past.copy_(past.gather(1, beams.parents[:, :, None].expand_as(past)))
            self.past[self._rows, :, steps] = beams.tokens

    def begin_(self, rows: Tensor, beams: Tensor) -> None:
        """These are the first tokens of some sentences. beams: (B', K, T)"""
        if self.past is not None:
            self.past[:, :, : beams.size(2)].index_copy_(0, rows, beams)

    def put_(self, rows: Tensor, limits: Tensor, first_ends: Tensor, prefix: Tensor | None) -> None:
        """Other sentences take these rows; the prefixes are as wide."""
        self.limits.index_copy_(0, rows, limits)
        self.first_ends.index_copy_(0, rows, first_ends)
        if self.prefix is not None and prefix is not None:
            self.prefix.index_copy_(0, rows, prefix)

    def select_(self, rows: Tensor) -> None:
        self._rows = self._rows[: len(rows)]
        self.limits, self.first_ends = self.limits.index_select(0, rows), self.first_ends.index_select(0, rows)
        if self.prefix is not None:
            self.prefix = self.prefix.index_select(0, rows)
        if self.past is not None:
            self.past = self.past.index_select(0, rows)


def length_limits(config: SearchConfig, source_lengths: Sequence[int]) -> list[int]:
    """How many tokens each translation may have before </s>; source lengths count theirs."""
    if config.uses_padded_width:
        source_lengths = [max(source_lengths)] * len(source_lengths)
    if config.match_source_length:
        return [max(config.min_length, length - 1) for length in source_lengths]
    return [max(config.min_length, int(config.max_length_factor * length + config.max_length_offset))
            for length in source_lengths]


def forbid_repetition_(log_probs: Tensor, tokens: Tensor, steps: Tensor, size: int,
                       constraints: Constraints | None = None) -> None:
    """-inf for every token that would complete `size` tokens that the hypothesis already holds in a row.

    tokens: (B, K, T), of which the first `steps` (B,) of each sentence count. A sentence that is done may have taken more
    steps than T: any answer will do for it. Constraints come first: what goes on with a phrase may repeat.
    """
    if tokens.size(2) < size:
        return
    wanted = None if constraints is None else constraints.followers(log_probs)
    wanted_scores = None if wanted is None else log_probs.view(-1)[wanted]
    windows = tokens.unfold(2, size, 1)  # (B, K, T - size + 1, size)
    places = steps[:, None] - torch.arange(size - 1, 0, -1, device=steps.device)  # (B, size - 1)
    places.clamp_(min=0, max=tokens.size(2) - 1)
    recent = tokens.gather(2, places[:, None].expand(-1, tokens.size(1), -1))  # (B, K, size - 1)
    is_whole = torch.arange(size, tokens.size(2) + 1, device=steps.device) <= steps[:, None]  # (B, T - size + 1)
    is_repeated = windows[..., :-1].eq(recent[:, :, None]).all(dim=3) & is_whole[:, None]
    penalties = torch.zeros_like(is_repeated, dtype=log_probs.dtype).masked_fill_(is_repeated, -torch.inf)
    log_probs.scatter_add_(2, windows[..., -1], penalties)
    if wanted is not None and wanted_scores is not None:
        log_probs.view(-1)[wanted] = wanted_scores


def _per_beam(ids: Tensor, log_probs: Tensor) -> Tensor:
    return ids[:, None, None].expand(-1, log_probs.size(1), 1)
