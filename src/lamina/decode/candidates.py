"""One step of a search: which tokens might continue which beams.

Every strategy takes log-probabilities and the beams' scores so far and returns `Candidates`, the most promising first.
A beam that must not continue has score -inf, and so have its candidates.
"""

# B sentences, K beams, M candidates, V vocabulary

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.decode.sampling import draw

# More than the beam holds: each beam may end at this step, and as many must still continue.
CANDIDATES_PER_BEAM = 2
# Tokens of the vocabulary that are looked at together: about the root of its size.
SPAN = 64


class Candidates(NamedTuple):
    scores: Tensor  # (B, M), of the whole hypothesis
    tokens: Tensor  # (B, M)
    parents: Tensor  # (B, M): the beams they continue


# strategy(log_probs (B, K, V), scores (B, K), uniforms (B, K) or None); log_probs may be overwritten
Strategy = Callable[[Tensor, Tensor, Tensor | None], Candidates]


def strategy_of(config: SearchConfig) -> Strategy:
    if config.sampling:
        return sampled
    if config.num_groups > 1:
        return partial(most_likely_by_group, num_groups=config.num_groups, strength=config.diverse_beam_strength)
    return most_likely


def first_scores(config: SearchConfig, batch: int, device: torch.device) -> Tensor:
    """Before the first token all beams are equal: only those count that a strategy will not mistake for others. (B, K)"""
    scores = torch.zeros(batch, config.beam, device=device)
    if not config.sampling:
        scores[:, config.num_groups :] = -torch.inf
    return scores


def most_likely(log_probs: Tensor, scores: Tensor, uniforms: Tensor | None = None) -> Candidates:
    """The best continuations of any beam.

    Of M candidates none lies outside the M spans of the vocabulary whose best are the best: one pass finds the best of each
    span, and only the spans that count are sorted.
    """
    _, num_beams, vocab = log_probs.shape
    number = min(CANDIDATES_PER_BEAM * num_beams, num_beams * vocab)
    num_whole, rest = divmod(vocab, SPAN)
    spans = log_probs[:, :, : num_whole * SPAN].unflatten(2, (num_whole, SPAN)).amax(dim=3)
    if rest:
        spans = torch.cat([spans, log_probs[:, :, num_whole * SPAN :].amax(dim=2, keepdim=True)], dim=2)
    spans += scores[:, :, None]
    num_spans = spans.size(2)
    chosen = spans.flatten(1).topk(min(number, num_beams * num_spans)).indices  # (B, M)
    beams = chosen.div(num_spans, rounding_mode="floor")[:, :, None]
    tokens = (chosen % num_spans * SPAN)[:, :, None] + torch.arange(SPAN, device=chosen.device)  # (B, M, SPAN)
    places = (beams * vocab + tokens).clamp_(max=num_beams * vocab - 1)
    totals = (log_probs.flatten(1).gather(1, places.flatten(1)).view_as(tokens) + scores.gather(1, beams[:, :, 0])[:, :, None])
    totals.masked_fill_(tokens >= vocab, -torch.inf)
    best, where = totals.flatten(1).topk(number)
    places = places.flatten(1).gather(1, where)
    return Candidates(best, places % vocab, places.div(vocab, rounding_mode="floor"))


def most_likely_by_group(log_probs: Tensor, scores: Tensor, uniforms: Tensor | None = None, *, num_groups: int,
                         strength: float) -> Candidates:
    """Each group in turn, less what earlier groups have among their candidates (Vijayakumar et al. 2018, Alg. 1).

    Group g owns the beams g, g + G, .. and the candidates likewise, as in fairseq: when candidates of one group end, those
    behind them move up, possibly into another group's beam.
    """
    num_uses = torch.zeros_like(log_probs[:, 0])  # (B, V)
    groups = []
    for group in range(num_groups):
        own = log_probs[:, group::num_groups] - strength * num_uses[:, None]
        found = most_likely(own, scores[:, group::num_groups])
        num_uses.scatter_add_(1, found.tokens, torch.ones_like(found.scores))
        groups.append(found._replace(parents=found.parents * num_groups + group))
    return Candidates(*(torch.stack(parts, dim=2).flatten(1) for parts in zip(*groups, strict=True)))


def sampled(log_probs: Tensor, scores: Tensor, uniforms: Tensor | None = None) -> Candidates:
    """One draw a beam; beams never meet."""
    assert uniforms is not None, "draws need random numbers"
    tokens = draw(log_probs, uniforms)
    totals = scores + log_probs.gather(2, tokens[:, :, None])[:, :, 0]
    parents = torch.arange(scores.size(1), device=scores.device).expand_as(tokens)
    return Candidates(totals, tokens, parents)
