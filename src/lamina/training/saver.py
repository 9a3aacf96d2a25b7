"""Saving a run: its state as a checkpoint, handed to the keeper unless there is doubt about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.checkpoint.merging import merge_adapter
from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.fields import flatten
from lamina.provenance import origin
from lamina.tasks.base import Task
from lamina.text.subword import subword_to_dict
from lamina.training.divergence import DivergenceWatch
from lamina.training.feeds import Feeds
from lamina.training.keeper import LAST_NAME, At, Keeper
from lamina.training.progress import Progress, Stopwatch
from lamina.training.report import Reporter
from lamina.training.restore import optimizer_state
from lamina.training.update import Updater


class Saver:
    """`marks` are what a checkpoint says of what was done to the weights before (checkpoint.marks)."""

    def __init__(self, config: TrainConfig, task: Task, updater: Updater, feeds: Feeds, progress: Progress, keeper: Keeper,
                 watch: DivergenceWatch, ranks: Ranks, reporter: Reporter, marks: dict[str, Any]) -> None:
        self.config = config
        self.task = task
        self.updater = updater
        self.feeds = feeds
        self.progress = progress
        self.keeper = keeper
        self.watch = watch
        self.ranks = ranks
        self.reporter = reporter
        self.marks = marks
        self.stopwatch = Stopwatch(progress)

    def check_weights(self) -> None:
        self.watch.check_weights(self.updater.weights, self.updater.optimizer.state(), self.ranks)

    def save(self, metrics: dict[str, float], names: Sequence[str], epoch: int, *, is_check_pending: bool = False) -> None:
        """Once all updates were read and the weights checked. Ranks call it together: all may contribute, one writes."""
        self.progress.seconds = self.stopwatch.seconds()
        self.progress.is_check_pending = is_check_pending
        if self.watch.doubt:
            # The update before may have ruined the weights: what is on disk is better than what would replace it.
            self.reporter.note(f"no checkpoint now: {self.watch.doubt}")
            return
        shards = self.keeper.shards
        if shards is not None and not shards.takes_part:
            return
        checkpoint = self.checkpoint(metrics)
        if shards is None and not self.ranks.is_first:
            return
        at = At(epoch, self.progress.updates)
        if self.config.saving.merges_adapter and (merged := [name for name in names if name != LAST_NAME]):
            self.keeper.save(merge_adapter(checkpoint), merged, at)
            names = [name for name in names if name == LAST_NAME]  # which resuming needs as it is
        self.keeper.save(checkpoint, names, at)

    def save_last(self, *, is_check_pending: bool) -> None:
        """checkpoint_last.pt alone, of any moment between two updates."""
        self.watch.flush()
        self.check_weights()
        self.save({}, [LAST_NAME], self.progress.epoch, is_check_pending=is_check_pending)

    def save_now(self, *, is_check_next: bool) -> None:
        """As a run that stops here would, and then continue."""
        if not self.config.saving.is_on:
            self.reporter.note("SIGUSR1: nothing is saved (--no-save)")
            return
        started = time.perf_counter()
        self.save_last(is_check_pending=is_check_next)
        self.progress.is_check_pending = False
        self.reporter.skip_time(time.perf_counter() - started)

    def checkpoint(self, metrics: dict[str, float]) -> Checkpoint:
        progress = self.progress
        if progress.batches_done:
            progress.place = self.feeds.train(progress.epoch).place(progress.epoch, progress.batches_done)
        training: dict[str, Any] = {**self.marks, "run": self.keeper.run, "progress": progress.state(),
                                    "scale": self.updater.scale.state()}
        if signatures := {name: text for name, text in self.task.signatures.items() if name in metrics}:
            training["signatures"] = signatures
        is_in_rows = self.keeper.shards is not None
        pieces = self.updater.optimizer.pieces() if self.config.saving.has_optimizer_state else {}
        if self.config.saving.has_optimizer_state:
            state = self.updater.optimizer.state()
            training["optimizer"] = ({name: value for name, value in state.items() if name not in pieces} if is_in_rows else
                                     optimizer_state(self.updater))
            training["optimizer_kind"] = self.config.optimization.optimizer.name
        checkpoint = Checkpoint(
            config=flatten(self.config),
            languages=tuple(self.task.languages),
            dictionaries=tuple(vocabulary.to_text() for vocabulary in self.task.vocabularies),
            subwords=tuple(map(subword_to_dict, self.task.subwords)),
            weights={} if is_in_rows else self.updater.weights.state_dict(),
            training=training,
            metrics=metrics,
            origin=origin(),
        )
        if not is_in_rows:
            return checkpoint
        from lamina.distributed.shard_writer import with_own_rows  # here: it takes a second to import

        return with_own_rows(checkpoint, self.updater.weights, pieces)
