"""Many sentences as batches: sorted by length, searched, handed back with the places they came from."""

# B sentences, S source, P prefix

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lamina.data.batching import ChooseBatches, length_batches, pad_rows
from lamina.decode.beam import Search
from lamina.decode.trace import Hypothesis


@dataclass(frozen=True)
class Found:
    """What a search found for one row."""

    index: int  # of the row, as it was given
    hypotheses: list[Hypothesis]  # the best first


def search_rows(search: Search, rows: Sequence[np.ndarray], *, device: torch.device | str,
                prefixes: Sequence[np.ndarray] | None = None, max_tokens: int | None = None, batch_size: int | None = None,
                seed: int = 1, numbers: Sequence[int] | None = None, with_attention: bool = False,
                constraints: Sequence[Sequence[Sequence[int]]] | None = None, choose: ChooseBatches = list) -> Iterator[Found]:
    """Each row's hypotheses, batch by batch: similar lengths together, the longest first.

    `constraints` are phrases for each row, as ids: every hypothesis contains them.
    `choose` leaves out batches that others search.
    `numbers` are the rows' places in the whole text, if that is longer: with `seed` they decide what sampling draws.
    """
    for indices in choose(length_batches(rows, max_tokens, batch_size)):
        source = torch.from_numpy(pad_rows([rows[index] for index in indices])).to(device)
        prefix = None
        if prefixes is not None and any(len(prefixes[index]) for index in indices):
            prefix = torch.from_numpy(pad_rows([prefixes[index] for index in indices])).to(device)
        found = search.run(source, prefix, seeds=[(seed, index if numbers is None else numbers[index]) for index in indices],
                           constraints=None if constraints is None else [constraints[index] for index in indices],
                           with_attention=with_attention)
        for index, hypotheses in zip(indices, found, strict=True):
            for hypothesis in hypotheses:
                if hypothesis.attention is not None:
                    hypothesis.attention = hypothesis.attention[:, : len(rows[index])]
            yield Found(index, hypotheses)
