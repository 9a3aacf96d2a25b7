"""Rules of a search: what changes the scores of the next token."""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lamina.parts.part import Part

if TYPE_CHECKING:

    import torch
    from torch import Tensor

    from lamina.text.vocabulary import Vocabulary


class Stage(Enum):
    """When a step rule has its turn in a decoding step, in this order; within a stage, rules come as they are registered."""

    WEIGH = 1  # changes scores, also those of tokens that a prefix forces
    FORBID = 2  # forbids tokens, except those that a prefix or a constraint demands
    END = 3  # forbids the end; after the constraints, which look at whether the model would end
    CHOOSE = 4  # keeps some of what is left


class Step(NamedTuple):
    """A decoding step of B sentences (slots) with K beams each. What the host knows, and tensors that keep their place."""

    steps: Tensor  # (B,): tokens that each sentence has so far
    num_given: Tensor  # (B,): how many of them are a language model's prompt, which lengths do not count
    length: int  # no sentence has more tokens after this step
    slots: Tensor  # (B,): 0, 1, ..
    prefix: Tensor | None  # (B, P): tokens to begin with, padded; None where no sentence is within its prefix
    past: Tensor | None  # (B, K, length): each beam's tokens, of which the first `steps` count; None if no rule reads them


class RulePlace(NamedTuple):
    """What a step rule is built for."""

    num_slots: int
    num_beams: int
    num_steps: int  # no sentence ever has more tokens
    device: torch.device
    found: Any = None  # what the rule's own `look_up` gave


class RuleInForce:
    """A step rule in one search. A step is captured in a CUDA graph: no method but `select_` may ask the device a question.

    Whatever a rule keeps for each slot, it keeps in tensors that stay where they are; what is not needed is left out.
    """

    reads_past: bool = False  # whether it reads `step.past`

    def apply_(self, log_probs: Tensor, step: Step) -> None:
        """Change the log-probabilities of each beam's next token, (B, K, V), in place: -inf forbids."""

    def forced(self, step: Step) -> Tensor | None:
        """The token that each sentence must continue with, or a pad; None where there is none. (B,)"""

    def note_(self, step: Step, tokens: Tensor, parents: Tensor) -> None:
        """The beams have gained these tokens, (B, K), each after the beam `parents` (B, K) of its sentence."""

    def begin_(self, slots: Tensor, prompt: Tensor, scores: Tensor) -> None:
        """A prompt is read at once, for all beams of these slots. prompt, scores of its tokens: (B', P)"""

    def put_(self, slots: Tensor) -> None:
        """Other sentences take these slots. (B',)"""

    def select_(self, slots: Tensor) -> None:
        """Only these slots continue, and are numbered again; tensors may move. (B',)"""


class StepRule(Part, RuleInForce):
    """What may be said at a decoding step, and at what price: its options are flags of every command that searches.

    A rule without a state for each slot is its own RuleInForce; one with a state builds it.
    """

    table = "step_rule"
    topic = "Search"

    stage: ClassVar[Stage] = Stage.FORBID
    # Whether `begin_` says all there is to say about a prompt that is read at once; if not, prompts are read token by token.
    knows_prompts: ClassVar[bool] = False
    shortest: int = 0  # fewest tokens of a translation; longest lengths below it are raised

    @property
    @abstractmethod
    def is_on(self) -> bool:
        """Whether it does anything with these options; if not, nothing else is asked of it."""

    def check(self, search: Any) -> None:
        """Raise a ConfigError where it does not fit the other options (a config.search_options.SearchConfig)."""

    def look_up(self, vocabulary: Vocabulary | None) -> Any:
        """What it needs to know of the target dictionary or of files; asked once per search, and given to `build`."""

    def build(self, place: RulePlace) -> RuleInForce:
        return self
