"""How translations are searched for, with fairseq's flags and defaults."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, replace

from lamina.fields import check, every, flag, flatten, unique_leaves
from lamina.parts.contracts import StepRule
from lamina.registry import register


@dataclass(frozen=True, kw_only=True, init=False)
class SearchConfig:
    """Search."""

    beam: int = flag(5, "hypotheses kept at each step; 1 is greedy search")
    nbest: int = flag(1, "translations to return per sentence, the best first; at most --beam")
    length_penalty: float = flag(1.0, "a hypothesis scores sum of log-probabilities / length^X: below 1 favours short "
                                 "ones, above 1 long ones", name="lenpen", needs="!unnormalized")
    unnormalized: bool = flag(False, "compare sums of log-probabilities, whatever the length")
    max_length_factor: float = flag(0.0, "a translation has at most A * source length + B tokens; the source's </s> "
                                    "counts, the translation's does not", name="max-len-a", metavar="A")
    max_length_offset: int = flag(200, "see --max-len-a", name="max-len-b", metavar="B")
    match_source_length: bool = flag(False, "no translation longer than its source", name="match-source-len")
    uses_padded_width: bool = flag(False, "take the source length from the longest sentence of the batch, as "
                                   "fairseq does; results then depend on the batch", name="max-len-from-padded-width")
    temperature: float = flag(1.0, "divide scores by X before they become probabilities: below 1 sharpens, above 1 "
                              "flattens")
    sampling: bool = flag(False, "draw each token at random instead of searching for the best; --beam draws per sentence")
    rules: tuple[StepRule, ...] = every(register.step_rule)
    diverse_beam_groups: int = flag(-1, "split the beam into N groups that avoid each other's tokens",
                                    paper="Vijayakumar et al. 2018")
    diverse_beam_strength: float = flag(0.5, "how much a group loses for each earlier group's use of the same token",
                                        needs="diverse-beam-groups")
    constraint_order: str | None = flag(None, "read phrases after each source line, separated by tabs, that its translation "
                                        "must contain: in this order (also if given bare) or in any", name="constraints",
                                        choices=("ordered", "unordered"), bare_value="ordered", metavar="[ORDER]",
                                        paper="Post and Vilar 2018; Hu et al. 2019")
    cuda_graphs: bool = flag(True, "on a GPU, capture a step once and replay it; off, with a notice, where steps need the "
                             "CPU, as with --constraints")

    def __init__(self, **values: object) -> None:
        """Fields by name, those of the rules among them: `SearchConfig(beam=4, no_repeat_ngram=3)`."""
        for item in fields(self):
            default = item.default if item.default_factory is MISSING else None
            if item.name not in values and item.default_factory is not MISSING:
                default = item.default_factory()
            object.__setattr__(self, item.name, values.pop(item.name, default))
        own: list[dict[str, object]] = [{} for _ in self.rules]
        for name, value in values.items():
            homes = [place for place, rule in enumerate(self.rules)
                     if name in (item.name for item in fields(rule))]  # type: ignore[arg-type]
            if len(homes) != 1:
                raise TypeError(f"SearchConfig has {'several rules with a' if homes else 'no'} field {name}")
            own[homes[0]][name] = value
        object.__setattr__(self, "rules", tuple(
            replace(rule, **given) for rule, given in zip(self.rules, own, strict=True)))  # type: ignore[type-var]
        self.__post_init__()

    def __post_init__(self) -> None:
        check(self.beam >= 1, f"--beam is {self.beam}; it must be at least 1, where 1 is greedy search.")
        check(1 <= self.nbest <= self.beam,
              f"--nbest is {self.nbest}; it must lie between 1 and --beam {self.beam}. Raise --beam, or ask for fewer.")
        check(math.isfinite(self.temperature) and self.temperature > 0.0,
              f"--temperature is {self.temperature}; it must be a number above 0. Leave it out for 1.")
        check(math.isfinite(self.length_penalty), f"--lenpen is {self.length_penalty}; it must be a finite number.")
        self._check_lengths()
        self._check_strategies()
        self._check_constraints()
        for rule in self.rules:
            rule.check(self)

    def _check_lengths(self) -> None:
        check(math.isfinite(self.max_length_factor) and self.max_length_factor >= 0.0,
              f"--max-len-a is {self.max_length_factor}; it must be 0 or more. Leave it out for a fixed limit.")
        check(self.max_length_offset >= 0 or self.max_length_factor > 0.0,
              f"--max-len-b is {self.max_length_offset}; below 0 it needs a --max-len-a that outweighs it.")

    def _check_strategies(self) -> None:
        groups = self.diverse_beam_groups
        check(groups == -1 or groups >= 1,
              f"--diverse-beam-groups is {groups}; it must be at least 1. Leave it out for ordinary beam search.")
        check(groups == -1 or self.beam % groups == 0,
              f"--diverse-beam-groups is {groups}, which does not divide --beam {self.beam}. Choose a multiple for --beam.")
        check(groups == -1 or not self.sampling,
              "--sampling and --diverse-beam-groups exclude each other: draws are diverse already. Leave one of them out.")
        check(groups != -1 or self.diverse_beam_strength == 0.5,
              "--diverse-beam-strength has no effect without --diverse-beam-groups. Add it, or leave the strength out.")
        check(math.isfinite(self.diverse_beam_strength),
              f"--diverse-beam-strength is {self.diverse_beam_strength}; it must be a finite number.")

    def _check_constraints(self) -> None:
        if self.constraint_order is None:
            return
        check(not self.sampling, "--constraints and --sampling exclude each other: phrases are placed by comparing "
                                 "hypotheses, and draws are not compared. Leave one of them out.")
        check(self.diverse_beam_groups == -1, "--constraints and --diverse-beam-groups exclude each other: both say how to "
                                              "share out the beam. Leave one of them out.")
        check(not self.match_source_length, "--constraints and --match-source-len exclude each other: phrases may need more "
                                            "room than the source has. Leave one of them out.")

    def with_rules(self, rules: tuple[StepRule, ...]) -> SearchConfig:
        """Those that a model brings come in addition to those of the search."""
        return replace(self, rules=(*self.rules, *rules)) if rules else self

    @property
    def rules_in_force(self) -> tuple[StepRule, ...]:
        return tuple(rule for rule in self.rules if rule.is_on)

    @property
    def min_length(self) -> int:
        """Fewest tokens of a translation, </s> not counted."""
        return max((rule.shortest for rule in self.rules_in_force), default=0)

    @property
    def num_groups(self) -> int:
        return max(1, self.diverse_beam_groups)


def given_options(search: SearchConfig) -> dict[str, object]:
    """What is not at its default, by flag with underscores."""
    values = flatten(search)
    given = {leaf.name: values[leaf.name] for leaf in unique_leaves(SearchConfig)
             if values[leaf.name] != (list(leaf.default) if isinstance(leaf.default, tuple) else leaf.default)}
    return {name.replace("-", "_"): value for name, value in given.items()}
