"""Timing steps against each other in one run: round by round, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from lamina.data.batching import AnyBatch, Batch
from lamina.data.packing import PackedShape, Sentences, packed
from lamina.text.vocabulary import EOS, FIRST_WORD_ID


def seconds_each(steps: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
    """Each step's time in each round; on one thread of a CPU its CPU time, to which other jobs on the machine do not add."""
    clock = time.process_time if not torch.cuda.is_available() and torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(warm_up + rounds):
        for name, step in steps.items():
            _wait()
            started = clock()
            step()
            _wait()
            if number >= warm_up:
                times[name].append(clock() - started)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(own) for name, own in times.items()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def made_up_batch(vocabulary_size: int, max_tokens: int, device: torch.device, length: int = 16, seed: int = 1) -> Batch:
    """Sentences of one length, so that no padding blurs the comparison."""
    random = np.random.default_rng(seed)
    rows = max(1, max_tokens // length)
    words = random.integers(FIRST_WORD_ID, vocabulary_size, (2, rows, length))
    words[:, :, -1] = EOS
    source, target = torch.from_numpy(words).to(device)
    return Batch(source, target.roll(1, dims=1), target, num_source_tokens=source.numel(), num_target_tokens=target.numel(),
                 indices=tuple(range(rows)))


def as_training_takes_it(batch: Batch) -> AnyBatch:
    """Packed, where `lamina train` packs: on a GPU."""
    if batch.source.device.type == "cpu":
        return batch
    rows, length = batch.source.shape
    sides = [Sentences(side.flatten().cpu().numpy(), np.full(rows, length)) for side in (batch.source, batch.target_out)]
    return packed(*sides, PackedShape(rows * length, rows, length), batch.indices).to(batch.source.device)
