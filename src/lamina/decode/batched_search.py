"""Many sentences: sorted by length, searched, handed back with the places they came from."""

# B sentences, S source

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lamina.data.batching import ChooseBatches, length_batches, pad_rows
from lamina.decode.backtrace import Hypothesis
from lamina.decode.scheduler import Finished
from lamina.decode.search import Search
from lamina.decode.search_workers import SearchWorkers, Task

# A GPU takes sentences as slots fall free, whatever the batch, until they are this many times shorter than the first: all
# slots are as wide as that one. What is no longer than this many tokens costs too little to start over for it.
WIDTH_RATIO = 4
NARROW = 64
# What is searched at a time on a GPU, where no limit is given: 256 sentences at beam 5, fewer if they are long.
GPU_MAX_TOKENS = 16384
GPU_MAX_BEAMS = 1280
# Hypotheses whose attention is looked up together.
ATTENTION_BATCH = 64


@dataclass(frozen=True)
class Found:
    """What a search found for one row."""

    index: int  # of the row, as it was given
    hypotheses: list[Hypothesis]  # the best first
    is_repeated: bool = False  # the second translation of a cascade


def search_rows(search: Search, rows: Sequence[np.ndarray], *, device: torch.device | str,
                prefixes: Sequence[np.ndarray] | None = None, max_tokens: int | None = None, batch_size: int | None = None,
                seed: int = 1, numbers: Sequence[int] | None = None, with_attention: bool = False,
                constraints: Sequence[Sequence[Sequence[int]]] | None = None, choose: ChooseBatches = list,
                workers: SearchWorkers | None = None) -> Iterator[Found]:
    """Each row's hypotheses, in the order in which they are found: the longest rows come first.

    On a GPU so many rows are searched at a time as the longest batch has, and a row that is finished makes room for the next;
    on a CPU, and where rows depend on their batch, they are searched batch by batch. `workers` share the batches of a CPU.
    `constraints` are phrases for each row, as ids: every hypothesis contains them.
    `choose` leaves out batches that others search.
    `numbers` are the rows' places in the whole text, if that is longer: with `seed` they decide what sampling draws.
    """
    device = torch.device(device)
    if device.type == "cuda" and max_tokens is None and batch_size is None:
        max_tokens, batch_size = GPU_MAX_TOKENS, max(1, GPU_MAX_BEAMS // search.config.beam)
    batches = choose(length_batches(rows, max_tokens, batch_size))
    is_by_batch = device.type == "cpu" or search.config.uses_padded_width or (constraints is not None and any(constraints))

    def task_of(indices: Sequence[int]) -> Task:
        return Task([rows[index] for index in indices], None if prefixes is None else [prefixes[index] for index in indices],
                    [(seed, index if numbers is None else numbers[index]) for index in indices],
                    None if constraints is None else [constraints[index] for index in indices])

    def found_of(found: Iterable[Finished], indices: Sequence[int]) -> Iterator[Found]:
        results = (Found(indices[place], hypotheses) for place, hypotheses in found)
        return _with_attention(search, rows, results, device) if with_attention else results

    if workers is not None and device.type == "cpu":
        for number, finished in workers.each(search, (task_of(batch) for batch in batches)):
            yield from found_of(finished, batches[number])
        return
    for indices, num_slots in ((batch, len(batch)) for batch in batches) if is_by_batch else sessions(batches, rows):
        task = task_of(indices)
        yield from found_of(search.each(task.rows, task.prefixes, num_slots=num_slots, device=device, seeds=task.seeds,
                                        constraints=task.constraints), indices)


def sessions(batches: Sequence[Sequence[int]], rows: Sequence[np.ndarray]) -> Iterator[tuple[list[int], int]]:
    """Batches, the longest rows first, joined into stretches; each with how many rows to search at a time."""
    indices: list[int] = []
    num_slots = 0
    for batch in batches:
        longest = len(rows[indices[0]]) if indices else 0
        if longest > NARROW and WIDTH_RATIO * len(rows[batch[0]]) <= longest:
            yield indices, num_slots
            indices = []
        num_slots = num_slots if indices else len(batch)
        indices = [*indices, *batch]
    if indices:
        yield indices, num_slots


def _with_attention(search: Search, rows: Sequence[np.ndarray], results: Iterator[Found],
                    device: torch.device) -> Iterator[Found]:
    waiting: list[Found] = []

    def looked_up() -> Iterator[Found]:
        source = torch.from_numpy(pad_rows([rows[found.index] for found in waiting])).to(device)
        search.look_up_attention(source, [found.hypotheses for found in waiting])
        for found in waiting:
            for hypothesis in found.hypotheses:
                assert hypothesis.attention is not None
                hypothesis.attention = hypothesis.attention[:, : len(rows[found.index])]
        yield from waiting
        waiting.clear()

    for result in results:
        waiting.append(result)
        if len(waiting) == ATTENTION_BATCH:
            yield from looked_up()
    if waiting:
        yield from looked_up()
