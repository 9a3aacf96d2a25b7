"""Search for the best translations of sentences, or continuations of prompts, as fairseq 0.9 does it.

A step considers twice as many candidates as there are beams. One that ends counts if it is among the first K; the others go
on. A sentence is finished when K hypotheses have ended, or at its longest length. Sentences do not see each other: unless
`uses_padded_width` asks for it, a result does not depend on those searched with it.
"""

# B sentences, S source, P prefix

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.config.search_options import SearchConfig
from lamina.decode.alignment import attention_of
from lamina.decode.backtrace import Hypothesis
from lamina.decode.candidates import strategy_of
from lamina.decode.requests import Sentences, rows_of
from lamina.decode.scheduler import Finished, Scheduler
from lamina.models.decoder_only import DecoderOnly
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.text.vocabulary import Vocabulary


class Search:
    """Beam search, its diverse form or sampling with one model, or with the mean of several models' probabilities."""

    def __init__(self, models: Sequence[EncoderDecoder] | Sequence[DecoderOnly], config: SearchConfig,
                 active: ActiveLayers = ALL_LAYERS, *, vocabulary: Vocabulary | None = None) -> None:
        """`active` leaves out layers of the models; `vocabulary` is for step rules that know words by name."""
        assert models, "a search needs a model"
        self.models: list[Any] = list(models)
        self.config = config = config.with_rules(self.models[0].rules)
        self.active = active
        self.strategy = strategy_of(config)
        self.found = [rule.look_up(vocabulary) for rule in config.rules_in_force]
        self.max_positions: int = min(model.max_target_positions for model in self.models)
        # A language model measures a prompt with the </s> before it as its source.
        self.max_source_positions: int = min(getattr(model, "max_source_positions", model.max_target_positions + 1)
                                             for model in self.models)

    def at(self, active: ActiveLayers) -> Search:
        """The same search, with these layers."""
        other = copy(self)
        other.active = active
        return other

    def run(self, source: Tensor, prefix: Tensor | None = None, *, seeds: Sequence[Sequence[int]] | None = None,
            constraints: Sequence[Sequence[Sequence[int]]] | None = None,
            with_attention: bool = False) -> list[list[Hypothesis]]:
        """The n best hypotheses of each row of a batch, the best first.

        source: (B, S), padded left or right; prefix: (B, P), target tokens to begin with, padded right. A language model reads
        the prefix alone, and lengths are then those of what comes after it; of its source only the size counts. `seeds` has a
        sequence of numbers for each sentence, from which sampling draws; without it, the row's place in the batch.
        `constraints` has a list of phrases, as ids, for each sentence: every hypothesis contains them, in this order unless
        the configuration says otherwise. A longest length that is too short for them gives way.
        """
        rows, prefixes = rows_of(source), None if prefix is None else rows_of(prefix)
        found = dict(self.each(rows, prefixes, num_slots=len(rows), device=source.device, seeds=seeds,
                               constraints=constraints))
        hypotheses = [found[number] for number in range(len(rows))]
        if with_attention:
            self.look_up_attention(source, hypotheses)
        return hypotheses

    def each(self, sources: Sequence[np.ndarray], prefixes: Sequence[np.ndarray] | None = None, *, num_slots: int,
             device: torch.device, seeds: Sequence[Sequence[int]] | None = None,
             constraints: Sequence[Sequence[Sequence[int]]] | None = None) -> Iterator[Finished]:
        """Each sentence's number and hypotheses, as they finish. `num_slots` are searched at a time, in the given order."""
        self._check()
        has_constraints = constraints is not None and any(constraints)
        if has_constraints:
            replace(self.config, constraint_order=self.config.constraint_order or "ordered")  # does it fit the other options?
        sentences = self.sentences(has_constraints=has_constraints)
        width = max(map(len, sources)) if self.config.uses_padded_width else None
        known = [sentences.sentence(number, source, None if prefixes is None else prefixes[number],
                                    seed=(number,) if seeds is None else seeds[number],
                                    phrases=() if constraints is None else constraints[number], width=width)
                 for number, source in enumerate(sources)]
        return iter(Scheduler(self, num_slots, device, known=known, has_constraints=has_constraints))

    def open(self, num_slots: int, device: torch.device, *, width: int | None = None) -> Scheduler:
        """A scheduler that takes sentences, made by `sentences()`, at any time; their sources have at most `width` tokens.

        With `constraint_order` in the configuration, their translations may have to contain phrases.
        """
        self._check()
        assert not self.config.uses_padded_width, "an open scheduler knows no batch"
        return Scheduler(self, num_slots, device, width=width or self.max_source_positions,
                         has_constraints=self.config.constraint_order is not None)

    def sentences(self, *, has_constraints: bool | None = None) -> Sentences:
        """What makes sentences to search for out of ids."""
        if has_constraints is None:
            has_constraints = self.config.constraint_order is not None
        return Sentences(self.config, self.max_positions, is_continued=isinstance(self.models[0], DecoderOnly),
                         has_constraints=has_constraints)

    def _check(self) -> None:
        assert not any(model.training for model in self.models), "a search with dropout: call model.eval() first"

    def look_up_attention(self, source: Tensor, hypotheses: list[list[Hypothesis]]) -> None:
        """Fill in each hypothesis's attention to its row of the source. (B, S)"""
        attention_of(self.models, source, hypotheses, self.active)
