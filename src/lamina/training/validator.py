"""What validation says of a run's model, on every validation set; the first set decides which checkpoint is the best."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

from lamina.config.train_options import TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.distributed.weights import FlatWeights
from lamina.parts.contracts import Criterion
from lamina.tasks.base import Task
from lamina.training.feeds import Feeds
from lamina.training.progress import Progress
from lamina.training.report import Reporter
from lamina.training.validate import validation_loss


class Validator:
    def __init__(self, config: TrainConfig, task: Task, model: Any, weights: FlatWeights, feeds: Feeds, progress: Progress,
                 ranks: Ranks, reporter: Reporter, criterion: Criterion) -> None:
        self.config = config
        self.task = task
        self.model = model
        self.weights = weights
        self.feeds = feeds
        self.progress = progress
        self.ranks = ranks
        self.reporter = reporter
        self.criterion = criterion  # without a teacher, should there be one

    def figures(self, epoch: int) -> dict[str, float]:
        """Of the first validation set; those of the others are shown."""
        validation, first = self.config.validation, dict[str, float]()
        for split, feed in self.feeds.valid.items():
            batches = partial(feed.batches, rank=self.ranks.rank, size=self.ranks.size)
            # Layer by layer where weights are sharded: all ranks run as many batches, and none holds the whole model.
            figures = validation_loss(self.model, batches(has_fillers=self.weights.needs_fillers), self.criterion,
                                      ranks=self.ranks, num_counted=feed.num_batches_of(self.ranks.rank, self.ranks.size))
            with self.weights.whole() if self.task.needs_whole_model(validation) else nullcontext():
                figures |= self.task.figures(self.model, batches(), validation, self.reporter.note, self.ranks.gather)
            shown = figures
            if not first:
                first = figures
                best, metric = self.progress.best, figures[validation.best_metric]
                best = metric if best is None else (max if validation.prefers_larger else min)(best, metric)
                shown = {**figures, f"best_{validation.best_metric}": best}
            self.reporter.validated(split, epoch, shown, self.progress.updates)
        return first

    def take_score(self, figures: dict[str, float], *, is_doubtful: bool) -> bool:
        """Whether the model is the best so far, which progress then tells. Of two equal scores the later one is kept, as in
        fairseq; but it is no reason for more patience. A model in doubt is never the best.
        """
        progress, is_larger_better = self.progress, self.config.validation.prefers_larger
        value, best = figures[self.config.validation.best_metric], progress.best
        is_best = (not is_doubtful and math.isfinite(value)
                   and (best is None or (value >= best if is_larger_better else value <= best)))
        progress.stale_validations = 0 if is_best and value != best else progress.stale_validations + 1
        if is_best:
            progress.best = value
        return is_best
