"""What may not be said: rules that change log-probabilities before a search chooses."""

# B sentences, K beams, T tokens so far, V vocabulary, P length of the prefix

from __future__ import annotations

import torch
from torch import Tensor

from lamina.config.decode import SearchConfig
from lamina.decode.constraints import Constraints
from lamina.text.vocabulary import EOS, PAD, UNK


class Rules:
    """Penalties and prohibitions of one search; the longest source decides nothing but its own sentence."""

    def __init__(self, config: SearchConfig, source_lengths: list[int], max_positions: int, prefix: Tensor | None,
                 device: torch.device, constraints: Constraints | None = None, *, is_continued: bool = False) -> None:
        """`is_continued`: the prefix is a prompt, and lengths are those of what comes after it."""
        self.config = config
        self.constraints = constraints
        # A token fed is a position used, and </s> in front is the first.
        given = prefix.ne(PAD).sum(dim=1).tolist() if prefix is not None and is_continued else [0] * len(source_lengths)
        own = [min(limit + before, max_positions - 1)
               for limit, before in zip(length_limits(config, source_lengths), given, strict=True)]
        if constraints is not None:
            constraints.fit_(own, max_positions - 1)
        self.first_limit, self.last_limit = min(own), max(own)
        self.limits = torch.tensor(own, device=device)  # (B,)
        self.num_shared = min(given)  # tokens that every text is known to begin with
        self.first_ends = torch.tensor(given, device=device) + config.min_length  # (B,)
        self.last_first_end = max(given) + config.min_length
        self.prefix = prefix  # (B, P), padded where a sentence has no more
        self.num_prefix = 0 if prefix is None else prefix.size(1)

    def apply_(self, log_probs: Tensor, step: int, tokens: Tensor | None) -> None:
        """log_probs: (B, K, V), of the token after `step` others; tokens: (B, K, step), where repetition matters"""
        log_probs[:, :, PAD] = -torch.inf
        if self.config.unk_penalty:
            log_probs[:, :, UNK] -= self.config.unk_penalty
        forced = self.prefix[:, step] if self.prefix is not None and step < self.num_prefix else None
        forced_scores = None if forced is None else log_probs.gather(2, _per_beam(forced, log_probs))
        end_scores = log_probs[:, :, EOS].clone() if step >= self.first_limit else None
        if self.config.no_repeat_ngram and tokens is not None:
            forbid_repetition_(log_probs, tokens, self.config.no_repeat_ngram, self.constraints)
        if self.constraints is not None:
            self.constraints.restrict_(log_probs, step)
        if step < self.last_first_end:
            log_probs[:, :, EOS] = log_probs[:, :, EOS].masked_fill((step < self.first_ends)[:, None], -torch.inf)
        if forced is not None and forced_scores is not None:
            is_forced = forced.ne(PAD)[:, None, None]
            log_probs.masked_fill_(is_forced, -torch.inf)
            here = _per_beam(forced, log_probs)
            log_probs.scatter_(2, here, torch.where(is_forced, forced_scores, log_probs.gather(2, here)))
        if end_scores is not None:
            must_end = self.must_end(step)[:, None]
            log_probs.masked_fill_(must_end[:, :, None], -torch.inf)
            log_probs[:, :, EOS] = torch.where(must_end, end_scores, log_probs[:, :, EOS])

    def must_end(self, step: int) -> Tensor:
        """(B,)"""
        return self.limits <= step

    def select_(self, rows: Tensor) -> None:
        self.limits = self.limits.index_select(0, rows)
        self.first_ends = self.first_ends.index_select(0, rows)
        if self.prefix is not None:
            self.prefix = self.prefix.index_select(0, rows)


def length_limits(config: SearchConfig, source_lengths: list[int]) -> list[int]:
    """How many tokens each translation may have before </s>; source lengths count theirs."""
    if config.uses_padded_width:
        source_lengths = [max(source_lengths)] * len(source_lengths)
    if config.match_source_length:
        return [max(config.min_length, length - 1) for length in source_lengths]
    return [max(config.min_length, int(config.max_length_factor * length + config.max_length_offset))
            for length in source_lengths]


def forbid_repetition_(log_probs: Tensor, tokens: Tensor, size: int, constraints: Constraints | None = None) -> None:
    """-inf for every token that would complete `size` tokens that the hypothesis already holds in a row.

    Constraints come first: what goes on with a phrase may repeat.
    """
    if tokens.size(2) < size:
        return
    wanted = None if constraints is None else constraints.followers(log_probs)
    wanted_scores = None if wanted is None else log_probs.view(-1)[wanted]
    windows = tokens.unfold(2, size, 1)  # (B, K, T - size + 1, size)
    recent = tokens[:, :, tokens.size(2) - size + 1 :]  # (B, K, size - 1)
    is_repeated = windows[..., :-1].eq(recent[:, :, None]).all(dim=3)
    penalties = torch.zeros_like(is_repeated, dtype=log_probs.dtype).masked_fill_(is_repeated, -torch.inf)
    log_probs.scatter_add_(2, windows[..., -1], penalties)
    if wanted is not None and wanted_scores is not None:
        log_probs.view(-1)[wanted] = wanted_scores


def _per_beam(ids: Tensor, log_probs: Tensor) -> Tensor:
    return ids[:, None, None].expand(-1, log_probs.size(1), 1)
