"""What is searched for, on the host: sources, what their translations begin with, and how long these may be."""

# B sentences, S source, P prefix, T steps, K beams

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.data.batching import pad_rows
from lamina.decode.constraints import Constraints
from lamina.decode.sampling import uniforms_for
from lamina.decode.step_rules import length_limits
from lamina.text.vocabulary import PAD

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


class Sentences:
    """Numbered from 0."""

    def __init__(self, config: SearchConfig, max_positions: int, sources: Sequence[np.ndarray],
                 prefixes: Sequence[np.ndarray] | None = None, seeds: Sequence[Sequence[int]] | None = None,
                 constraints: Constraints | None = None, *, is_continued: bool = False) -> None:
        """`is_continued`: prefixes are prompts, and lengths are those of what comes after them."""
        self.config = config
        self.sources = sources
        self.prefixes = prefixes if prefixes is not None and any(map(len, prefixes)) else None
        self.seeds = seeds
        self.lengths = [len(source) for source in sources]
        given = [len(prefix) for prefix in self.prefixes] if self.prefixes is not None else [0] * len(sources)
        self.num_prefix = max(given)
        self.prefix_lengths = np.array(given)
        before = self.prefix_lengths if is_continued else np.zeros(len(sources), dtype=int)
        # A token fed is a position used, and </s> in front is the first.
        limits = [min(limit + number, max_positions - 1)
                  for limit, number in zip(length_limits(config, self.lengths), before.tolist(), strict=True)]
        if constraints is not None:
            constraints.fit_(limits, max_positions - 1)
        self.limits = np.array(limits)
        self.num_given = before
        self.num_steps = int(self.limits.max()) + 1
        # The tokens that a model may read at once.
        may_read = (constraints is None and config.num_groups == 1
                    and all(rule.knows_prompts for rule in config.rules_in_force))
        self.num_known = np.minimum(before, self.limits) if may_read else np.zeros_like(before)

    def entries(self, numbers: Sequence[int], rows: Sequence[int], width: int = 0) -> Entries:
        """Sentences for the slots `rows`, their sources padded to `width` or to the longest of them."""
        source = pad_rows([self.sources[number] for number in numbers], width)
        columns = np.stack([np.asarray(rows), self.limits[list(numbers)], self.num_given[list(numbers)]], axis=1)
        parts = [columns, source]
        if self.prefixes is not None:
            parts.insert(1, pad_rows([self.prefixes[number] for number in numbers], self.num_prefix))
        uniforms = None
        if self.config.sampling:
            seeds = [(number,) if self.seeds is None else self.seeds[number] for number in numbers]
            uniforms = uniforms_for(seeds, self.config.beam, self.num_steps)
        return Entries(torch.from_numpy(np.concatenate(parts, axis=1)), self.num_prefix, uniforms,
                       int(self.num_known[list(numbers)].min()))


def rows_of(ids: Tensor) -> list[np.ndarray]:
    """The rows of a padded tensor, each without its padding."""
    return [row[row != PAD] for row in ids.cpu().numpy()]
