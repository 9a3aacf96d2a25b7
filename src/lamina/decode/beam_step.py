"""The sentences that a search has in hand: K beams in each of B slots, every slot at a step of its own.

`step_` is the search: all slots one token further, without a question to the device, in tensors that keep their place and
shape. So the device can be handed the same step again and again, and a sentence that is finished can make room for the next
one (`fill_`) while its neighbours continue; they never see each other.
"""

# B slots, S source, K beams, M candidates, V vocabulary

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor

from lamina.decode.backtrace import Backtrace
from lamina.decode.candidates import Candidates, first_scores
from lamina.decode.constraints import Constraints
from lamina.decode.fused_choice import can_fuse, choose_
from lamina.decode.requests import Entries
from lamina.decode.step_rules import Due, Rules
from lamina.nn.attention import kernels_for_any_length
from lamina.nn.cache import StepState
from lamina.nn.joined_states import JoinedState
from lamina.text.vocabulary import EOS

if TYPE_CHECKING:
    from lamina.decode.search import Search

# Attention likes widths that are a multiple of this many entries.
MULTIPLE = 8

P = ParamSpec("P")


def prepared(compute: Callable[P, None]) -> Callable[P, None]:
    """Without gradients, and with the attention kernels that suit a search."""

    @wraps(compute)
    def run(*given: P.args, **named: P.kwargs) -> None:
        with torch.inference_mode(), kernels_for_any_length():
            compute(*given, **named)

    return run


class BeamStep:
    """Tensors of all slots; `first` fills them."""

    @prepared
    def __init__(self, search: Search, first: Entries, num_steps: int, constraints: Constraints | None = None, *,
                 is_even: bool = True, grows: bool = False) -> None:
        """`num_steps`: at most, of any sentence to come; `is_even`: its steps are not captured; `grows`: sentences that come
        later get slots of their own."""
        self.search = search
        self.config = search.config
        self.constraints = constraints
        batch, device = len(first.ids), first.ids.device
        self.max_length = min(-(-num_steps // MULTIPLE) * MULTIPLE, search.max_positions)
        self.rules = Rules(self.config, first.limits, first.num_given, first.prefix, constraints, num_steps=num_steps + 1,
                           found=search.found)
        # A slot that is done stays one step behind its last: there it may write what is not read.
        self.trace = Backtrace(num_steps + 1, batch, self.config.beam, device)
        self.uniforms = first.uniforms
        self.num_ended = torch.zeros(batch, dtype=torch.long, device=device)
        self.is_done = torch.zeros(batch, dtype=torch.bool, device=device)
        states, self.tokens, self.scores = self._begin(first)
        self.beams: Candidates | None = None  # what each beam has just said, where constraints ask for it
        self._rows = torch.arange(batch, device=device)
        if not is_even:
            for state in states:
                state.differ_()
        self.states: list[Any] = [JoinedState(state) for state in states] if grows else states
        self._tell_states()

    def _tell_states(self) -> None:
        for state in self.states:
            state.finished_in(self.is_done)

    def _begin(self, entries: Entries) -> tuple[list[StepState], Tensor, Tensor]:
        """Before the first step of some sentences: the models' states, and each beam's last token and score. (B, K)"""
        source, num_beams = entries.source, self.config.beam
        states = [model.start(source, self.max_length, num_beams, self.search.active) for model in self.search.models]
        scores = first_scores(self.config, len(source), source.device)
        if entries.num_shared:
            return states, *self._read_prompts(entries, states, scores)
        return states, torch.full_like(scores, EOS, dtype=torch.long), scores

    def _read_prompts(self, entries: Entries, states: list[StepState], scores: Tensor) -> tuple[Tensor, Tensor]:
        """The first tokens of the prompts in one pass: what as many steps would leave behind. scores: (B, K)"""
        assert entries.prefix is not None, "a prompt is a prefix"
        prompt = entries.prefix[:, : entries.num_shared]
        tokens = torch.cat([torch.full_like(prompt[:, :1], EOS), prompt[:, :-1]], dim=1)
        own = torch.stack([model.read(tokens, prompt, state, self.config.temperature)
                           for model, state in zip(self.search.models, states, strict=True)])
        found = own.logsumexp(dim=0) - math.log(len(states))
        self.rules.begin_(entries.rows, prompt, found)
        totals = scores[:, :, None] + found.cumsum(dim=1)[:, None]  # (B, K, P)
        beams = prompt[:, None].expand(-1, self.config.beam, -1)
        self.trace.begin_(entries.rows, beams, totals)
        return beams[:, :, -1].contiguous(), totals[:, :, -1].contiguous()

    @prepared
    def fill_(self, entries: Entries) -> None:
        """Other sentences take the slots `entries.rows`. Where they read more than all before, memory moves, and graphs do not
        hold."""
        rows = entries.rows
        self.trace.clear_(rows)
        states, tokens, scores = self._begin(entries)
        for state, own in zip(self.states, states, strict=True):
            state.widen_(own)
            state.put_(rows, own)
        self._put(entries, tokens, scores)

    @prepared
    def extend_(self, entries: Entries) -> None:
        """More slots, behind all others, for these sentences."""
        old = len(self.tokens)
        assert entries.rows.tolist() == list(range(old, old + len(entries.ids))), "new slots are behind the others"
        # A slot that is new is a copy of another one until it is filled.
        self._select(torch.cat([torch.arange(old), torch.zeros(len(entries.ids), dtype=torch.long)]))
        self.trace.clear_(entries.rows)
        states, tokens, scores = self._begin(entries)
        for state, own in zip(self.states, states, strict=True):
            state.join_(own)
        self._put(entries, tokens, scores)
        self._tell_states()

    def _put(self, entries: Entries, tokens: Tensor, scores: Tensor) -> None:
        rows = entries.rows
        self.rules.put_(rows, entries.limits, entries.num_given, entries.prefix)
        self.tokens.index_copy_(0, rows, tokens)
        self.scores.index_copy_(0, rows, scores)
        self.num_ended.index_fill_(0, rows, 0)
        self.is_done.index_fill_(0, rows, False)
        if self.uniforms is not None and entries.uniforms is not None:
            self.uniforms.index_copy_(1, rows, entries.uniforms)

    @prepared
    def step_(self, due: Due) -> None:
        """All slots one token further."""
        num_beams, steps = self.config.beam, self.states[0].steps.clone()
        log_probs = self._log_probs(due)
        is_fused, min_length = can_fuse(self, log_probs), self.rules.only_length(due)
        self.rules.apply_(log_probs, steps, due, only_ends=is_fused and min_length is not None)
        if is_fused:
            self.rules.note_(steps, choose_(self, log_probs, steps, min_length or 0), due)
            return
        if self.constraints is None:
            uniforms = None if self.uniforms is None else self.uniforms[steps.clamp(max=len(self.uniforms) - 1), self._rows]
            candidates = self.search.strategy(log_probs, self.scores, uniforms)
        else:
            candidates = self.constraints.candidates(log_probs, self.scores)
        firsts = Candidates(*(part[:, :num_beams] for part in candidates))
        ends = _ends(firsts, num_beams, self.num_ended, self.is_done)  # (B, K)
        beams = _survivors(candidates, num_beams)
        self.trace.note_(steps, beams, firsts._replace(scores=firsts.scores.masked_fill(~ends, -torch.inf)))
        self.rules.note_(steps, beams, due)
        if num_beams > 1:
            for state in self.states:
                state.reorder_(beams.parents)
        self.num_ended += ends.sum(dim=1)
        self.is_done |= (self.num_ended >= num_beams) | self.rules.must_end(steps) | beams.scores.eq(-torch.inf).all(dim=1)
        self.scores.copy_(beams.scores)
        self.tokens.copy_(beams.tokens)
        self.beams = None if self.constraints is None else beams

    def _log_probs(self, due: Due) -> Tensor:
        """Of each beam's next token: the logarithm of the models' mean probability. (B, K, V)"""
        total = None
        for model, state in zip(self.search.models, self.states, strict=True):
            state.look_at_(due.length - 1)
            log_probs = model.step(self.tokens, state, self.config.temperature)
            if self.config.sampling:
                # A head that weighs several terms gives scores; to draw by them, they must be probabilities.
                log_probs = log_probs.log_softmax(dim=-1)
            total = log_probs if total is None else torch.logaddexp(total, log_probs)
        assert total is not None
        return total if len(self.states) == 1 else total.sub_(math.log(len(self.states)))

    @torch.inference_mode()
    def drop_(self, rows: Tensor) -> None:
        """Nothing more is asked of these slots."""
        self.is_done.index_fill_(0, rows, True)

    @torch.inference_mode()
    def reserve_(self, length: int) -> bool:
        """Room for so many steps; whether memory was moved."""
        has_moved = [state.reserve_(length) for state in self.states]
        return any(has_moved)

    @torch.inference_mode()
    def select_(self, rows: Tensor) -> None:
        """Only these slots continue; one may be there several times, to be filled with other sentences. rows: (B',)"""
        for state in self.states:
            state.select_(rows)
        self._select(rows)
        self._tell_states()

    def _select(self, rows: Tensor) -> None:
        """All but what the models keep."""
        self.rules.select_(rows)
        self.trace.select_(rows)
        self._rows = torch.arange(len(rows), device=rows.device)
        self.tokens, self.scores, self.num_ended, self.is_done = (
            part.index_select(0, rows) for part in (self.tokens, self.scores, self.num_ended, self.is_done))
        if self.uniforms is not None:
            self.uniforms = self.uniforms.index_select(1, rows)


def _ends(firsts: Candidates, num_beams: int, num_ended: Tensor, is_done: Tensor) -> Tensor:
    """Which of the first K candidates are hypotheses that ended, and that there is room for. (B, K)"""
    ends = firsts.tokens.eq(EOS) & firsts.scores.gt(-torch.inf) & ~is_done[:, None]
    return ends & (ends.cumsum(dim=1) <= (num_beams - num_ended)[:, None])


def _survivors(candidates: Candidates, num_beams: int) -> Candidates:
    """The first K candidates that do not end; where there are fewer, -inf fills up. (B, K)"""
    is_end = candidates.tokens.eq(EOS)
    order = torch.arange(is_end.size(1), device=is_end.device) + is_end.size(1) * is_end
    places = order.topk(num_beams, dim=1, largest=False).indices
    scores, tokens, parents = (part.gather(1, places) for part in candidates)
    return Candidates(scores.masked_fill(tokens.eq(EOS), -torch.inf), tokens, parents)
