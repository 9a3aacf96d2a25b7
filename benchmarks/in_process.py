"""Training runs in one process that take turns, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence

import torch

from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.data.feed import Share
from lamina.distributed.ranks import ALONE, Ranks
from lamina.training.compute_type import products_of_float32
from lamina.training.loop import run_updates
from lamina.training.run import Run, open_run
from lamina.training.whole_run import is_for_gpu

WARM_UP = 6  # updates: on a GPU they are captured by then


def alone_on_its_device(config: TrainConfig) -> Ranks:
    """Where the command would run; open_run itself stays on the CPU."""
    return Ranks(device=torch.device("cuda", 0)) if is_for_gpu(config) else ALONE


class TrainingInTurns:
    """A run of `lamina train`, as its command line says, and the seconds of an update in each of its turns.

    Reading batches counts. Time is the clock's on a GPU, and the process's own on a CPU. `peak` is the memory that the first
    updates took, in GiB, above what was there before.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.seconds: list[float] = []
        self.tokens: list[float] = []  # targets of an update, likewise
        before = _memory_in_use()
        given, _ = parse("lamina train", TrainConfig, "", [*words, "--log-format", "none", "--no-save", "--disable-validation"])
        config = resolve(TrainConfig, given)
        self.run = open_run(config, alone_on_its_device(config))
        self._updates = self._train()
        self.warm_up = self._go_on(WARM_UP)[0]
        self.peak = 0.0 if not torch.cuda.is_available() else (torch.cuda.max_memory_allocated() - before) / 2**30

    def take_turn(self, number: int) -> None:
        seconds, tokens = self._go_on(number)
        self.seconds.append(seconds / number)
        self.tokens.append(tokens / number)

    def _go_on(self, number: int) -> tuple[float, int]:
        clock = time.perf_counter if torch.cuda.is_available() else time.process_time
        with products_of_float32(self.run.config.precision):
            wait()
            started = clock()
            tokens = sum(next(self._updates) for _ in range(number))
            wait()
            return clock() - started, tokens

    def _train(self) -> Iterator[int]:
        run, counted = self.run, [0]

        def shares() -> Iterator[Share]:
            for share in endless_shares(run):
                counted[0] = sum(batch.num_target_tokens for batch in share.batches)
                yield share

        for _ in run_updates(run.updater, run.schedule, shares(), run.progress, run.watch, run.config.seed, run.layer_drop):
            yield counted[0]


def endless_shares(run: Run) -> Iterator[Share]:
    """What a run's updates get, epoch after epoch."""
    progress = run.progress
    while True:
        feed = run.feeds.train(progress.epoch)
        run.reporter.begin_epoch(len(feed.plan(progress.epoch)))
        yield from feed.shares(progress.epoch, 0, 1)
        progress.begin_epoch(progress.epoch + 1)


def _memory_in_use() -> int:
    if not torch.cuda.is_available():
        return 0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def wait() -> None:
    """For the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def told(text: str) -> None:
    """At once: a run that is cut short has said how far it came."""
    print(text, file=sys.stderr, flush=True)
