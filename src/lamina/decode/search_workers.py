"""Searching on a CPU in processes of one thread each, which share the weights and the list of batches.

The kernels of a search are short. Two threads that wait for each other after each of them are as slow as the slower one, and
beside another job that is several times as slow as one thread alone. Processes wait for nothing but the next batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch

from lamina.decode.backtrace import Hypothesis
from lamina.decode.search import Search
from lamina.preprocess.workers import Workers

CPU = torch.device("cpu")
# With fewer sentences at a time than this, sharing gains less than small batches lose.
SMALLEST_BATCH = 8
# So many batches for each worker, so that none waits long for the last one.
BATCHES_EACH = 4

_searches: Sequence[Search] = ()  # of the parent, as the workers have them: copied on write, so weights are shared


class Task(NamedTuple):
    """A batch to search."""

    rows: list[np.ndarray]
    prefixes: list[np.ndarray] | None
    seeds: list[tuple[int, int]]
    constraints: list[Sequence[Sequence[int]]] | None


class SearchWorkers:
    """Forked processes that have these searches in memory. Make them before other threads, such as a progress bar's."""

    def __init__(self, searches: Sequence[Search], count: int) -> None:
        global _searches
        _searches = self._searches = list(searches)
        self._workers = Workers(count, start_method="fork", advice="Try again with a smaller --batch-size, or with "
                                                                  "OMP_NUM_THREADS=1, which needs one process.")

    def each(self, search: Search, tasks: Iterable[Task]) -> Iterator[tuple[int, list[tuple[int, list[Hypothesis]]]]]:
        """The number of each task, and the numbers and hypotheses of its rows, in the order in which they are ready."""
        index = next(index for index, own in enumerate(self._searches) if own is search)
        yield from self._workers.results(partial(_run, index), tasks)

    def __enter__(self) -> SearchWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        global _searches
        _searches = ()  # the parent's models may go
        self._workers.__exit__(kind, error, trace)


@contextmanager
def search_workers(searches: Sequence[Search], num_sentences: int) -> Iterator[SearchWorkers | None]:
    """One for each thread that torch would use; None where one process is enough, or where processes cannot be forked."""
    device = next(searches[0].models[0].parameters()).device
    count = min(torch.get_num_threads(), num_sentences // SMALLEST_BATCH)
    if device.type != "cpu" or sys.platform != "linux" or count < 2:
        yield None
        return
    with SearchWorkers(searches, count) as workers:
        yield workers


def shared_batch_size(num_sentences: int, largest: int) -> int:
    """Sentences at a time where a result does not depend on it, so that all workers have some until the end."""
    return max(SMALLEST_BATCH, min(largest, num_sentences // (BATCHES_EACH * torch.get_num_threads())))


def _run(index: int, task: Task) -> list[tuple[int, list[Hypothesis]]]:
    """In a worker."""
    torch.set_num_threads(1)
    return list(_searches[index].each(task.rows, task.prefixes, num_slots=len(task.rows), device=CPU, seeds=task.seeds,
                                      constraints=task.constraints))
