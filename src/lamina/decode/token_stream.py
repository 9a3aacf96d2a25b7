"""One sentence, greedily or by sampling, and each piece of it as soon as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch

from lamina.decode.beam_step import BeamStep
from lamina.decode.requests import entries_of
from lamina.decode.search import Search
from lamina.decode.step_rules import Due
from lamina.errors import ConfigError


def stream_ids(search: Search, source: np.ndarray, prefix: np.ndarray | None, seed: Sequence[int],
               device: torch.device) -> Iterator[int]:
    """The tokens that a search with one beam finds after the prefix, without </s>."""
    if search.config.beam != 1 or search.config.nbest != 1:
        raise ConfigError("tokens are streamed from one hypothesis: beam and nbest are 1. For the best of several, translate "
                          "the whole sentence.")
    search.config = replace(search.config, cuda_graphs=False)  # too few steps to capture them
    sentence = search.sentences(has_constraints=False).sentence(0, source, prefix, seed=seed)
    num_steps, limit, num_given = sentence.limit + 1, sentence.limit, len(sentence.prefix)
    entries = entries_of([sentence], [0], search.config, num_steps).to(device)
    slots, steps = BeamStep(search, entries, num_steps), entries.num_shared
    while not bool(slots.is_done):
        slots.reserve_(steps + 1)
        slots.step_(Due(steps + 1, has_ends=steps >= limit, has_prefixes=steps < num_given))
        steps += 1
        if not bool(slots.is_done) and steps > num_given:
            yield int(slots.tokens[0, 0])


def stream_text(search: Search, source: np.ndarray, prefix: np.ndarray | None, seed: Sequence[int], device: torch.device,
                turn: Callable[[], AbstractContextManager[None]], text_of: Callable[[list[int]], str]) -> Iterator[str]:
    """Pieces of text, of which only whole words are given away: the next token may still belong to the last one.

    `turn` is entered for each step, so that a slow reader keeps no other waiting.
    """
    ids = [] if prefix is None else prefix.tolist()
    told = ""
    tokens = stream_ids(search, source, prefix, seed, device)
    while True:
        with turn():
            token = next(tokens, None)
        if token is not None:
            ids.append(token)
        text = text_of(ids)
        # A word is over when the next one begins; what stands before the last space no longer changes.
        known = text if token is None else text[: text.rfind(" ") + 1]
        if known.startswith(told) and len(known) > len(told):
            yield known[len(told) :]
            told = known
        if token is None:
            return
