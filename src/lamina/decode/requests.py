"""What is searched for, on the host: sources, what their translations begin with, and how long these may be."""

# B sentences, S source, P prefix, T steps, K beams

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.data.batching import pad_rows
from lamina.decode.constraints import ConstrainedRow, constrained
from lamina.decode.sampling import uniforms_for
from lamina.decode.step_rules import length_limit
from lamina.text.vocabulary import PAD

NOTHING = np.zeros(0, dtype=np.int64)
NUM_COLUMNS = 3  # in front of the ids that travel to the device: slot, limit, tokens of the prompt


@dataclass
class Entries:
    """Some sentences on the device, and the slots that they take."""

    ids: Tensor  # (B, 3 + P + S): everything that is a whole number, so that one copy brings it there
    num_prefix: int
    uniforms: Tensor | None  # (T, B, K), what sampling draws from
    num_shared: int = 0  # tokens that all of them are known to begin with: a model may read them at once

    @property
    def rows(self) -> Tensor:
        return self.ids[:, 0].contiguous()

    @property
    def limits(self) -> Tensor:
        return self.ids[:, 1].contiguous()

    @property
    def num_given(self) -> Tensor:
        return self.ids[:, 2].contiguous()

    @property
    def prefix(self) -> Tensor | None:
        """(B, P)"""
        return self.ids[:, NUM_COLUMNS : NUM_COLUMNS + self.num_prefix].contiguous() if self.num_prefix else None

    @property
    def source(self) -> Tensor:
        """(B, S)"""
        return self.ids[:, NUM_COLUMNS + self.num_prefix :].contiguous()

    def copy_(self, other: Entries) -> None:
        """The same number of other sentences, in the place of these."""
        self.ids.copy_(moved(other.ids, self.ids.device))
        if self.uniforms is not None and other.uniforms is not None:
            self.uniforms.copy_(moved(other.uniforms, self.uniforms.device))

    def to(self, device: torch.device) -> Entries:
        return replace(self, ids=moved(self.ids, device),
                       uniforms=None if self.uniforms is None else moved(self.uniforms, device))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """From pinned memory: an ordinary copy would wait for all that the device has still to do."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@dataclass(eq=False)
class Sentence:
    """One to search for."""

    key: Any  # by which its result is told from others
    source: np.ndarray
    prefix: np.ndarray  # what its translation begins with; of a language model, the prompt
    limit: int  # most tokens before </s>
    num_given: int  # how many of them are a prompt, which lengths do not count
    num_known: int  # tokens that a model may read at once
    seed: Sequence[int]  # for sampling
    phrases: ConstrainedRow | None  # that its translation contains


class Sentences:
    """What a search must know of sentences before it begins with them."""

    def __init__(self, config: SearchConfig, max_positions: int, *, is_continued: bool = False,
                 has_constraints: bool = False) -> None:
        """`is_continued`: prefixes are prompts, and lengths are those of what comes after them."""
        self.config = config
        self.max_positions = max_positions
        self.is_continued = is_continued
        self.has_constraints = has_constraints
        # The tokens that a model may read at once.
        self.may_read = (not has_constraints and config.num_groups == 1
                         and all(rule.knows_prompts for rule in config.rules_in_force))

    def sentence(self, key: Any, source: np.ndarray, prefix: np.ndarray | None = None, *, seed: Sequence[int] = (1,),
                 phrases: Sequence[Sequence[int]] = (), width: int | None = None) -> Sentence:
        """`width`: the length that counts as the source's, if it is not its own."""
        begun = NOTHING if prefix is None else prefix
        num_given = len(begun) if self.is_continued else 0
        limit = self.longest(width or len(source), num_given)
        row = None
        if phrases:
            row = constrained(phrases, begun.tolist(), limit, num_beams=self.config.beam, max_length=self.max_positions - 1,
                              is_ordered=self.config.constraint_order != "unordered")
            limit = row.limit
        return Sentence(key, source, begun, limit, num_given, min(num_given, limit) if self.may_read else 0, seed, row)

    def most(self, width: int) -> int:
        """The most tokens before </s> of any sentence whose source has at most `width`."""
        # Prompts and phrases may take all the room there is.
        return self.max_positions - 1 if self.is_continued or self.has_constraints else self.longest(width)

    def longest(self, width: int, num_given: int = 0) -> int:
        """The most tokens before </s> that follow from a source of this length."""
        # A token fed is a position used, and </s> in front is the first.
        return min(length_limit(self.config, width) + num_given, self.max_positions - 1)


def entries_of(sentences: Sequence[Sentence], slots: Sequence[int], config: SearchConfig, num_steps: int, *, width: int = 0,
               num_prefix: int = 0) -> Entries:
    """Sentences for these slots; sources and prefixes are padded to the longest, and at least to `width` and `num_prefix`.

    `num_steps`: as many draws are made for each, where draws are made.
    """
    columns = np.array([(slot, own.limit, own.num_given) for slot, own in zip(slots, sentences, strict=True)])
    num_prefix = max(num_prefix, *(len(own.prefix) for own in sentences), 0)
    parts = [columns, pad_rows([own.source for own in sentences], width)]
    if num_prefix:
        parts.insert(1, pad_rows([own.prefix for own in sentences], num_prefix))
    uniforms = uniforms_for([own.seed for own in sentences], config.beam, num_steps) if config.sampling else None
    num_shared = min(own.num_known for own in sentences)
    return Entries(torch.from_numpy(np.concatenate(parts, axis=1)), num_prefix, uniforms, num_shared)


def rows_of(ids: Tensor) -> list[np.ndarray]:
    """The rows of a padded tensor, each without its padding."""
    return [row[row != PAD] for row in ids.cpu().numpy()]
