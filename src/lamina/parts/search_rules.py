"""What may be said at a decoding step: rules that change log-probabilities before a search chooses.

Every rule is an object in `SearchConfig.rules`; decode/step_rules.py calls those that are on, in the order of their stages.
"""

# B sentences, K beams, T tokens so far, V vocabulary, P length of the prefix

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamina.errors import ConfigError, DataError
from lamina.fields import check, flag
from lamina.parts.contracts import RuleInForce, RulePlace, Stage, Step, StepRule
from lamina.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from lamina.text.vocabulary import Vocabulary


@register.step_rule("prefix")
@dataclass(frozen=True, kw_only=True)
class GivenPrefix(StepRule):
    """Sentences begin with the tokens that a caller gives, if it gives any."""

    knows_prompts = True
    is_on = True  # type: ignore[assignment]

    def forced(self, step: Step) -> Tensor | None:
        from lamina.text.vocabulary import PAD

        if step.prefix is None:
            return None
        last = step.prefix.size(1) - 1
        return step.prefix[step.slots, step.steps.clamp(max=last)].masked_fill(step.steps > last, PAD)


@register.step_rule("unknown-penalty")
@dataclass(frozen=True, kw_only=True)
class UnknownPenalty(StepRule):
    """<unk> costs something."""

    stage = Stage.WEIGH
    knows_prompts = True

    unk_penalty: float = flag(0.0, "taken off the score of each <unk>; negative values reward it", name="unkpen")

    def __post_init__(self) -> None:
        check(math.isfinite(self.unk_penalty), f"--unkpen is {self.unk_penalty}; it must be a finite number.")

    @property
    def is_on(self) -> bool:
        return bool(self.unk_penalty)

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        from lamina.text.vocabulary import UNK

        log_probs[:, :, UNK] -= self.unk_penalty

    def begin_(self, slots: Tensor, prompt: Tensor, scores: Tensor) -> None:
        from lamina.text.vocabulary import UNK

        scores -= self.unk_penalty * prompt.eq(UNK)


@register.step_rule("min-length")
@dataclass(frozen=True, kw_only=True)
class MinLength(StepRule):
    """No end before so many tokens."""

    stage = Stage.END
    knows_prompts = True

    min_length: int = flag(1, "minimum tokens of a translation, </s> not counted", name="min-len")

    def __post_init__(self) -> None:
        check(self.min_length >= 0, f"--min-len is {self.min_length}; it must be 0 or more.")

    def check(self, search: Any) -> None:
        check(search.max_length_factor > 0.0 or search.match_source_length or self.min_length <= search.max_length_offset,
              f"--min-len is {self.min_length}, more than --max-len-b {search.max_length_offset} allows. Raise --max-len-b.")

    @property
    def is_on(self) -> bool:
        return self.min_length > 0

    @property
    def shortest(self) -> int:  # type: ignore[override]
        return self.min_length

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        from lamina.text.vocabulary import EOS

        log_probs[:, :, EOS].masked_fill_((step.steps < step.num_given + self.min_length)[:, None], -math.inf)


@register.step_rule("no-repeat-ngram")
@dataclass(frozen=True, kw_only=True)
class NoRepeatedNgrams(StepRule):
    """No token that would complete an n-gram that the translation already holds."""

    knows_prompts = True
    reads_past = True

    no_repeat_ngram: int = flag(0, "never repeat N tokens in a row within a translation; 0 allows it",
                                name="no-repeat-ngram-size")

    def __post_init__(self) -> None:
        check(self.no_repeat_ngram >= 0,
              f"--no-repeat-ngram-size is {self.no_repeat_ngram}; it must be 0 or more, where 0 allows repetition.")

    @property
    def is_on(self) -> bool:
        return self.no_repeat_ngram > 0

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        from lamina.decode.step_rules import forbid_repetition_

        assert step.past is not None
        forbid_repetition_(log_probs, step.past, step.steps, self.no_repeat_ngram)


@register.step_rule("forbidden-words")
@dataclass(frozen=True, kw_only=True)
class ForbiddenWords(StepRule):
    """Words and phrases that no translation contains."""

    knows_prompts = True

    forbidden_words: str | None = flag(
        None, "never say what FILE lists: a word or phrase per line, in the pieces of the target dictionary, separated by "
              "spaces", metavar="FILE")

    @property
    def is_on(self) -> bool:
        return self.forbidden_words is not None

    def look_up(self, vocabulary: Vocabulary | None) -> list[list[int]]:
        """The ids of each line."""
        from lamina.text.vocabulary import FIRST_WORD_ID

        name = f"--forbidden-words {self.forbidden_words}"
        if vocabulary is None:
            raise ConfigError(f"{name} needs the target dictionary, and this search has none. Write "
                              "Search(..., vocabulary=...).")
        phrases = []
        for number, line in enumerate(_lines_of(str(self.forbidden_words), name), start=1):
            pieces = line.split()
            ids = vocabulary.ids(pieces)
            for piece, token in zip(pieces, ids, strict=True):
                if token < FIRST_WORD_ID:
                    raise DataError(f"{name}, line {number}: the target dictionary has no {piece!r}. Write the pieces as they "
                                    "stand in the training data, or leave the line out.")
            phrases += [ids] if ids else []
        if not phrases:
            raise DataError(f"{name} has no words in it. Write one word or phrase per line, or leave the option out.")
        return phrases

    def build(self, place: RulePlace) -> RuleInForce:
        return ForbiddenPhrases(place)


def _lines_of(path: str, name: str) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read().split("\n")
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{name} is not UTF-8. Convert it, for example with iconv.") from None


class ForbiddenPhrases(RuleInForce):
    """Phrases as tensors: by their number of tokens, what precedes the last token, and the last token."""

    def __init__(self, place: RulePlace) -> None:
        import torch

        sizes = sorted({len(phrase) for phrase in place.found})
        tables = [torch.tensor([phrase for phrase in place.found if len(phrase) == size], device=place.device)
                  for size in sizes]
        self.tables = [(table[:, :-1], table[:, -1].contiguous()) for table in tables]  # (N, size - 1), (N,)
        self.reads_past = sizes[-1] > 1

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        import torch

        for before, last in self.tables:
            number = before.size(1)
            if number == 0:
                log_probs.index_fill_(2, last, -math.inf)
                continue
            assert step.past is not None
            if step.length <= number:
                continue
            places = step.steps[:, None] - torch.arange(number, 0, -1, device=last.device)  # (B, size - 1)
            places.clamp_(min=0, max=step.past.size(2) - 1)
            recent = step.past.gather(2, places[:, None].expand(-1, step.past.size(1), -1))  # (B, K, size - 1)
            is_begun = recent[:, :, None].eq(before).all(dim=3) & (step.steps >= number)[:, None, None]  # (B, K, N)
            penalties = torch.zeros_like(is_begun, dtype=log_probs.dtype).masked_fill_(is_begun, -math.inf)
            log_probs.scatter_add_(2, last.expand_as(penalties), penalties)


@register.step_rule("sampling-filter")
@dataclass(frozen=True, kw_only=True)
class SamplingFilter(StepRule):
    """Draws are made among the most likely tokens only."""

    stage = Stage.CHOOSE
    knows_prompts = True

    sampling_topk: int = flag(-1, "draw among the N most likely tokens", paper="Fan et al. 2018, §5.2", needs="sampling")
    sampling_topp: float = flag(-1.0, "draw among the fewest tokens whose probabilities reach P", metavar="P",
                                paper="Holtzman et al. 2020, §3.1", needs="sampling")

    def __post_init__(self) -> None:
        topk, topp = self.sampling_topk, self.sampling_topp
        check(topk == -1 or topk >= 1,
              f"--sampling-topk is {topk}; it must be at least 1. Leave it out to draw from all tokens.")
        check(topp == -1.0 or 0.0 < topp <= 1.0,
              f"--sampling-topp is {topp}; it must lie in (0, 1]. Leave it out to draw from all tokens.")
        check(topk == -1 or topp == -1.0, "--sampling-topk and --sampling-topp exclude each other. Leave one of them out.")

    def check(self, search: Any) -> None:
        check(search.sampling or not self.is_on, f"--sampling-top{'k' if self.sampling_topk != -1 else 'p'} has no effect "
                                                 "without --sampling. Add --sampling, or leave it out.")

    @property
    def is_on(self) -> bool:
        return self.sampling_topk != -1 or self.sampling_topp != -1.0

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        from lamina.decode.sampling import keep_likely_

        keep_likely_(log_probs, topk=self.sampling_topk, topp=self.sampling_topp)
