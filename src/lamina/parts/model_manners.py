"""Step rules that models of other toolkits bring with them (config/model.py, MannersConfig); searches may name them too."""

# B sentences, K beams, V vocabulary

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamina.fields import check, flag
from lamina.parts.contracts import RuleInForce, RulePlace, Stage, Step, StepRule
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor


SMALLEST = -1e30  # above -inf


class _Forbidding(RuleInForce):
    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        log_probs.index_fill_(2, self.ids, -math.inf)


class _Beginning(RuleInForce):
    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens  # a pad behind them, for every later place

    def forced(self, step: Step) -> Tensor | None:
        return self.tokens[step.steps.clamp(max=len(self.tokens) - 1)]


@register.step_rule("forbidden-tokens")
@dataclass(frozen=True, kw_only=True)
class ForbiddenTokens(StepRule):
    """Tokens that are never said."""

    knows_prompts = True

    forbidden_tokens: tuple[int, ...] = flag((), "never say the tokens with these ids", name="forbid-tokens", metavar="ID,..")

    def __post_init__(self) -> None:
        check(all(token >= 0 for token in self.forbidden_tokens),
              f"--forbid-tokens is {','.join(map(str, self.forbidden_tokens))}; ids are 0 or more.")

    @property
    def is_on(self) -> bool:
        return bool(self.forbidden_tokens)

    def build(self, place: RulePlace) -> RuleInForce:
        import torch

        return _Forbidding(torch.tensor(self.forbidden_tokens, device=place.device))


@register.step_rule("first-tokens")
@dataclass(frozen=True, kw_only=True)
class FirstTokens(StepRule):
    """Tokens that every text begins with, before what a caller's prefix says of the same places."""

    first_tokens: tuple[int, ...] = flag((), "begin every text with the tokens of these ids", name="begin-with",
                                         metavar="ID,..")

    def __post_init__(self) -> None:
        check(all(token >= 0 for token in self.first_tokens),
              f"--begin-with is {','.join(map(str, self.first_tokens))}; ids are 0 or more.")

    def check(self, search: Any) -> None:
        check(search.constraint_order is None or not self.is_on,
              "--begin-with and --constraints exclude each other. Leave one of them out.")

    @property
    def is_on(self) -> bool:
        return bool(self.first_tokens)

    @property
    def shortest(self) -> int:  # type: ignore[override]
        return len(self.first_tokens)

    def build(self, place: RulePlace) -> RuleInForce:
        import torch

        from lamina.text.vocabulary import PAD

        return _Beginning(torch.tensor([*self.first_tokens, PAD], device=place.device))


@register.step_rule("free-forced")
@dataclass(frozen=True, kw_only=True)
class FreeForced(StepRule):
    """Where only one token may come, it costs nothing: no choice, no loss."""

    stage = Stage.CHOOSE
    knows_prompts = True

    frees_forced: bool = flag(False, "a token that has to come, such as </s> at the longest length, costs nothing",
                              name="free-forced")

    @property
    def is_on(self) -> bool:
        return self.frees_forced

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        is_left = log_probs.gt(-math.inf)
        log_probs.masked_fill_(is_left & is_left.sum(dim=2, keepdim=True).eq(1), 0.0)

    def begin_(self, slots: Tensor, prompt: Tensor, scores: Tensor) -> None:
        scores.zero_()


@register.step_rule("renormalized")
@dataclass(frozen=True, kw_only=True)
class Renormalized(StepRule):
    """Scores are the probabilities of what the rules leave."""

    stage = Stage.CHOOSE
    knows_prompts = True

    renormalizes: bool = flag(False, "after what may not be said is left out, make probabilities of the rest again",
                              name="renormalize")

    @property
    def is_on(self) -> bool:
        return self.renormalizes

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        # Of a beam for which nothing is left, nothing is left afterwards.
        log_probs.sub_(log_probs.logsumexp(dim=2, keepdim=True).clamp(min=SMALLEST))

    def begin_(self, slots: Tensor, prompt: Tensor, scores: Tensor) -> None:
        scores.zero_()
