"""The step rules of a search at work: who has a turn when, and what all of them look at."""

# B sentences, K beams, T tokens so far, V vocabulary, P length of the prefix

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lamina.config.search_options import SearchConfig
from lamina.decode.candidates import Candidates
from lamina.decode.constraints import Constraints
from lamina.parts.contracts import RuleInForce, RulePlace, Stage, Step
from lamina.parts.search_rules import GivenPrefix, MinLength
from lamina.text.vocabulary import EOS, PAD


class Due(NamedTuple):
    """What the host knows of a step without asking the device: what need not be looked at."""

    length: int  # no sentence has more tokens after the step
    has_ends: bool = True  # a sentence may have come to its longest length
    has_prefixes: bool = True  # a sentence may be within its prefix


class Rules:
    """The step rules of one search (parts/search_rules.py) in the order of their stages, each sentence at a step of its own.

    What a rule forbids gives way to what is demanded: constraints, then prefixes, then the end at the longest length.
    """

    def __init__(self, config: SearchConfig, limits: Tensor, num_given: Tensor, prefix: Tensor | None = None,
                 constraints: Constraints | None = None, *, num_steps: int = 0, found: Sequence[Any] | None = None) -> None:
        """limits, num_given: (B,), the most tokens before </s> and those of the prompt; prefix: (B, P), padded.

        `num_steps`: at most, of any sentence to come; `found`: what each rule in force has looked up.
        """
        found = [rule.look_up(None) for rule in config.rules_in_force] if found is None else found
        place = RulePlace(len(limits), config.beam, num_steps, limits.device)
        self.stages: dict[Stage, list[RuleInForce]] = {stage: [] for stage in Stage}
        for rule, own in zip(config.rules_in_force, found, strict=True):
            self.stages[rule.stage].append(rule.build(place._replace(found=own)))
        self.rules = [rule for stage in self.stages.values() for rule in stage]
        # The shortest length, where no rule that is on asks for more than that.
        is_usual = all(type(rule) in (GivenPrefix, MinLength) for rule in config.rules_in_force)
        self.shortest = config.min_length if is_usual else None
        self.constraints = constraints
        self.limits = limits
        self.num_given = num_given
        self.prefix = prefix
        reads_past = any(rule.reads_past for rule in self.rules)
        self.past = limits.new_zeros(len(limits), config.beam, num_steps) if reads_past else None  # the tokens of each beam
        self._rows = torch.arange(len(limits), device=limits.device)

    def only_length(self, due: Due) -> int | None:
        """The shortest length, where no other rule has a say in this step; None where one has."""
        return None if self.constraints is not None or (self.prefix is not None and due.has_prefixes) else self.shortest

    def apply_(self, log_probs: Tensor, steps: Tensor, due: Due, *, only_ends: bool = False) -> None:
        """log_probs: (B, K, V), of the token after `steps` (B,) others. With `only_ends`, who chooses sees to padding and the
        shortest length."""
        step = self._step(steps, due)
        if not only_ends:
            log_probs[:, :, PAD] = -torch.inf
        self._apply_(Stage.WEIGH, log_probs, step)
        forced = self._forced(step, has_ends=due.has_ends)
        forced_scores = None if forced is None else log_probs.gather(2, _per_beam(forced, log_probs))
        self._forbid_(log_probs, step)
        if not only_ends:
            self._apply_(Stage.END, log_probs, step)
        if forced is not None and forced_scores is not None:
            is_forced = forced.ne(PAD)
            if log_probs.device.type == "cpu":
                log_probs.index_fill_(0, is_forced.nonzero()[:, 0], -torch.inf)  # few are, and the others need not be read
            else:
                log_probs.masked_fill_(is_forced[:, None, None], -torch.inf)
            here = _per_beam(forced, log_probs)
            log_probs.scatter_(2, here, torch.where(is_forced[:, None, None], forced_scores, log_probs.gather(2, here)))
        self._apply_(Stage.CHOOSE, log_probs, step)

    def _apply_(self, stage: Stage, log_probs: Tensor, step: Step) -> None:
        for rule in self.stages[stage]:
            rule.apply_(log_probs, step)

    def _forbid_(self, log_probs: Tensor, step: Step) -> None:
        """What continues a constraint may be said in any case."""
        if self.constraints is None:
            self._apply_(Stage.FORBID, log_probs, step)
            return
        wanted = self.constraints.followers(log_probs)
        scores = log_probs.view(-1)[wanted]
        self._apply_(Stage.FORBID, log_probs, step)
        log_probs.view(-1)[wanted] = scores
        self.constraints.restrict_(log_probs)

    def _forced(self, step: Step, *, has_ends: bool) -> Tensor | None:
        """The token that each sentence must continue with, or a pad; nothing outranks the longest length. (B,)"""
        forced = None
        for rule in self.rules:
            own = rule.forced(step)
            if own is not None:
                forced = own if forced is None else torch.where(own.ne(PAD), own, forced)
        if has_ends:
            others = torch.full_like(step.steps, PAD) if forced is None else forced
            forced = others.masked_fill(self.must_end(step.steps), EOS)
        return forced

    def _step(self, steps: Tensor, due: Due) -> Step:
        return Step(steps, self.num_given, due.length, self._rows, self.prefix if due.has_prefixes else None,
                    None if self.past is None else self.past[:, :, : due.length])

    def must_end(self, steps: Tensor) -> Tensor:
        """(B,)"""
        return self.limits <= steps

    def note_(self, steps: Tensor, beams: Candidates, due: Due) -> None:
        """These tokens are said at `steps`."""
        step = self._step(steps, due)
        if self.past is not None and step.past is not None:
            step.past.copy_(step.past.gather(1, beams.parents[:, :, None].expand_as(step.past)))
            self.past[self._rows, :, steps] = beams.tokens
        for rule in self.rules:
            rule.note_(step, beams.tokens, beams.parents)

    def begin_(self, rows: Tensor, prompt: Tensor, scores: Tensor) -> None:
        """These are the first tokens of some sentences, in all beams, and their scores. (B', P)"""
        if self.past is not None:
            beams = prompt[:, None].expand(-1, self.past.size(1), -1)
            self.past[:, :, : prompt.size(1)].index_copy_(0, rows, beams)
        for rule in self.rules:
            rule.begin_(rows, prompt, scores)

    def put_(self, rows: Tensor, limits: Tensor, num_given: Tensor, prefix: Tensor | None) -> None:
        """Other sentences take these rows. Where a prefix is longer than all before, memory moves, and graphs do not hold."""
        self.limits.index_copy_(0, rows, limits)
        self.num_given.index_copy_(0, rows, num_given)
        if prefix is not None:
            if self.prefix is None or self.prefix.size(1) < prefix.size(1):
                self._widen_(prefix.size(1))
            assert self.prefix is not None
        if self.prefix is not None:
            self.prefix.index_fill_(0, rows, PAD)
        if self.prefix is not None and prefix is not None:
            self.prefix[:, : prefix.size(1)].index_copy_(0, rows, prefix)
        for rule in self.rules:
            rule.put_(rows)

    def _widen_(self, num_prefix: int) -> None:
        old = self.limits.new_empty(len(self.limits), 0) if self.prefix is None else self.prefix
        self.prefix = F.pad(old, (0, num_prefix - old.size(1)), value=PAD)

    def select_(self, rows: Tensor) -> None:
        self._rows = torch.arange(len(rows), device=rows.device)
        self.limits, self.num_given = self.limits.index_select(0, rows), self.num_given.index_select(0, rows)
        if self.prefix is not None:
            self.prefix = self.prefix.index_select(0, rows)
        if self.past is not None:
            self.past = self.past.index_select(0, rows)
        for rule in self.rules:
            rule.select_(rows)


def length_limit(config: SearchConfig, source_length: int) -> int:
    """How many tokens a translation may have before </s>; the source length counts its own."""
    longest = (source_length - 1 if config.match_source_length
               else int(config.max_length_factor * source_length + config.max_length_offset))
    return max(config.min_length, longest)


def forbid_repetition_(log_probs: Tensor, tokens: Tensor, steps: Tensor, size: int) -> None:
    """-inf for every token that would complete `size` tokens that the hypothesis already holds in a row.

    tokens: (B, K, T), of which the first `steps` (B,) of each sentence count. A sentence that is done may have taken more
    steps than T: any answer will do for it.
    """
    if tokens.size(2) < size:
        return
    windows = tokens.unfold(2, size, 1)  # (B, K, T - size + 1, size)
    places = steps[:, None] - torch.arange(size - 1, 0, -1, device=steps.device)  # (B, size - 1)
    places.clamp_(min=0, max=tokens.size(2) - 1)
    recent = tokens.gather(2, places[:, None].expand(-1, tokens.size(1), -1))  # (B, K, size - 1)
    is_whole = torch.arange(size, tokens.size(2) + 1, device=steps.device) <= steps[:, None]  # (B, T - size + 1)
    is_repeated = windows[..., :-1].eq(recent[:, :, None]).all(dim=3) & is_whole[:, None]
    penalties = torch.zeros_like(is_repeated, dtype=log_probs.dtype).masked_fill_(is_repeated, -torch.inf)
    log_probs.scatter_add_(2, windows[..., -1], penalties)


def _per_beam(ids: Tensor, log_probs: Tensor) -> Tensor:
    return ids[:, None, None].expand(-1, log_probs.size(1), 1)
