"""Search for the best translations of a batch, or continuations of prompts, as fairseq 0.9 does it.

A step considers twice as many candidates as there are beams. One that ends counts if it is among the first K; the others go
on. A sentence is finished when K hypotheses have ended, or at its longest length. Sentences do not see each other: unless
`uses_padded_width` asks for it, a result does not depend on the batch.
"""

# B sentences, S source, K beams, M candidates, V vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lamina.config.decode import SearchConfig
from lamina.decode.alignment import attention_of
from lamina.decode.candidates import Candidates, first_scores, strategy_of
from lamina.decode.constraints import Constraints
from lamina.decode.rules import Rules
from lamina.decode.sampling import uniforms_for
from lamina.decode.trace import Hypothesis, Trace
from lamina.models.decoder_only import DecoderOnly
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.cache import StepState
from lamina.nn.stack import ALL_RUN, Runs
from lamina.text.vocabulary import EOS, PAD, UNK

# Finished sentences leave the batch when they are this share of it; sooner, copying would cost more than it saves.
LEAVING_SHARE = 1 / 8


class Search:
    """Beam search, its diverse form or sampling with one model, or with the mean of several models' probabilities."""

    def __init__(self, models: Sequence[EncoderDecoder] | Sequence[DecoderOnly], config: SearchConfig,
                 runs: Runs = ALL_RUN) -> None:
        """`runs` leaves out layers of the models."""
        assert models, "a search needs a model"
        self.models: list[Any] = list(models)
        self.config = config
        self.runs = runs
        self.strategy = strategy_of(config)

    @torch.inference_mode()
    def run(self, source: Tensor, prefix: Tensor | None = None, *, seeds: Sequence[Sequence[int]] | None = None,
            constraints: Sequence[Sequence[Sequence[int]]] | None = None,
            with_attention: bool = False) -> list[list[Hypothesis]]:
        """The n best hypotheses of each row, the best first.

        source: (B, S), padded left or right; prefix: (B, P), target tokens to begin with, padded right. A language model reads
        the prefix alone, and lengths are then those of what comes after it; of its source only the size counts. `seeds` has a
        sequence of numbers for each sentence, from which sampling draws; without it, the row's place in the batch.
        `constraints` has a list of phrases, as ids, for each sentence: every hypothesis contains them, in this order unless
        the configuration says otherwise. A longest length that is too short for them gives way.
        """
        config, device = self.config, source.device
        assert not any(model.training for model in self.models), "a search with dropout: call model.eval() first"
        lengths = source.ne(PAD).sum(dim=1).tolist()
        wanted = None
        if constraints is not None and any(constraints):
            assert len(constraints) == len(source), "a list of phrases for each sentence"
            order = replace(config, constraint_order=config.constraint_order or "ordered").constraint_order
            wanted = Constraints(constraints, num_beams=config.beam, is_ordered=order == "ordered", prefix=prefix)
        rules = Rules(config, lengths, min(model.max_target_positions for model in self.models), prefix, device, wanted,
                      is_continued=isinstance(self.models[0], DecoderOnly))
        trace = Trace(rules.last_limit + 1, len(source), config.beam, device)
        uniforms = None
        if config.sampling:
            uniforms = uniforms_for(seeds or [(row,) for row in range(len(source))], config.beam, rules.last_limit + 1, device)
        self._search(source, rules, trace, uniforms)
        hypotheses = trace.hypotheses(config, lengths)
        if with_attention:
            assert self.runs == ALL_RUN, "attention is looked up in a pass of the whole model"
            attention_of(self.models, source, hypotheses)
        return hypotheses

    def _search(self, source: Tensor, rules: Rules, trace: Trace, uniforms: Tensor | None) -> None:
        num_beams, device, constraints = self.config.beam, source.device, rules.constraints
        states = [model.start(source, rules.last_limit + 1, num_beams, self.runs) for model in self.models]
        rows = torch.arange(len(source), device=device)  # (B,): which sentences are still here
        tokens = torch.full((len(source), num_beams), EOS, device=device)
        scores = first_scores(self.config, len(source), device)
        num_ended = torch.zeros(len(source), dtype=torch.long, device=device)
        is_done = torch.zeros(len(source), dtype=torch.bool, device=device)
        past = torch.empty(len(source), num_beams, 0, dtype=torch.long, device=device)
        first = min(rules.num_shared, rules.first_limit)
        if first and constraints is None and self.config.num_groups == 1:
            scores, tokens, past = self._read_prompts(rules, trace, states, scores, first)
        else:
            first = 0
        for step in range(first, rules.last_limit + 1):
            log_probs = self._log_probs(tokens, states)
            rules.apply_(log_probs, step, past)
            if constraints is None:
                candidates = self.strategy(log_probs, scores, None if uniforms is None else uniforms[step, rows])
            else:
                candidates = constraints.candidates(log_probs, scores)

            ends = _ends(candidates, num_beams, num_ended, is_done)  # (B, K)
            trace.note_ends_(step, rows, candidates.scores[:, :num_beams].masked_fill(~ends, -torch.inf),
                             candidates.parents[:, :num_beams])
            num_ended += ends.sum(dim=1)
            scores, tokens, parents = _survivors(candidates, num_beams)
            trace.note_beams_(step, rows, tokens, parents, scores)
            is_done |= (num_ended >= num_beams) | rules.must_end(step) | scores.eq(-torch.inf).all(dim=1)

            # The one question a step asks the device.
            going_on = [place for place, done in enumerate(is_done.tolist()) if not done]
            if not going_on:
                return
            if constraints is not None:
                constraints.advance_(Candidates(scores, tokens, parents), going_on)
            if num_beams > 1:
                for state in states:
                    state.reorder_(parents)
            if self.config.no_repeat_ngram:
                past = torch.cat([past.gather(1, parents[:, :, None].expand_as(past)), tokens[:, :, None]], dim=2)
            if len(going_on) <= len(rows) * (1 - LEAVING_SHARE):
                kept = torch.tensor(going_on, device=device)
                rules.select_(kept)
                if constraints is not None:
                    constraints.select_(going_on)
                for state in states:
                    state.select_(kept)
                rows, tokens, scores, num_ended, is_done, past = (
                    part.index_select(0, kept) for part in (rows, tokens, scores, num_ended, is_done, past))

    def _read_prompts(self, rules: Rules, trace: Trace, states: Sequence[StepState], scores: Tensor,
                      number: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first `number` tokens of the prompts in one pass: what as many steps would leave behind. scores: (B, K)"""
        assert rules.prefix is not None, "a prompt is a prefix"
        prompt, num_beams = rules.prefix[:, :number], self.config.beam
        tokens = torch.cat([torch.full_like(prompt[:, :1], EOS), prompt[:, :-1]], dim=1)
        own = torch.stack([model.read(tokens, prompt, state, num_beams, self.config.temperature)
                           for model, state in zip(self.models, states, strict=True)])
        found = own.logsumexp(dim=0) - math.log(len(self.models)) - self.config.unk_penalty * prompt.eq(UNK)
        totals = scores[:, :, None] + found.cumsum(dim=1)[:, None]  # (B, K, P)
        beams = prompt[:, None].expand(-1, num_beams, -1)
        rows, parents = torch.arange(len(prompt), device=prompt.device), torch.arange(num_beams, device=prompt.device)
        for step in range(number):
            trace.note_beams_(step, rows, beams[:, :, step], parents.expand(len(prompt), -1), totals[:, :, step])
        return totals[:, :, -1], beams[:, :, -1], beams.contiguous()

    def _log_probs(self, tokens: Tensor, states: Sequence[StepState]) -> Tensor:
        """Of each beam's next token: the logarithm of the models' mean probability. (B, K, V)"""
        total = None
        for model, state in zip(self.models, states, strict=True):
            log_probs = model.step(tokens, state, self.config.temperature)
            if self.config.sampling:
                # A head that weighs several terms gives scores; to draw by them, they must be probabilities.
                log_probs = log_probs.log_softmax(dim=-1)
            total = log_probs if total is None else torch.logaddexp(total, log_probs)
        assert total is not None
        return total if len(self.models) == 1 else total.sub_(math.log(len(self.models)))


def _ends(candidates: Candidates, num_beams: int, num_ended: Tensor, is_done: Tensor) -> Tensor:
    """Which of the first K candidates are hypotheses that ended, and that there is room for. (B, K)"""
    ends = candidates.tokens[:, :num_beams].eq(EOS) & candidates.scores[:, :num_beams].gt(-torch.inf) & ~is_done[:, None]
    return ends & (ends.cumsum(dim=1) <= (num_beams - num_ended)[:, None])


def _survivors(candidates: Candidates, num_beams: int) -> Candidates:
    """The first K candidates that do not end; where there are fewer, -inf fills up. (B, K)"""
    is_end = candidates.tokens.eq(EOS)
    order = torch.arange(is_end.size(1), device=is_end.device) + is_end.size(1) * is_end
    places = order.topk(num_beams, dim=1, largest=False).indices
    scores, tokens, parents = (part.gather(1, places) for part in candidates)
    return Candidates(scores.masked_fill(tokens.eq(EOS), -torch.inf), tokens, parents)
