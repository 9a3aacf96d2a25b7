"""The data of a run: the batches that it trains on, those that it is validated with, and those that it begins with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice

import torch

from lamina.config.batches import BY_LENGTH, BatchConfig
from lamina.config.train_options import BY_SENTENCE, TrainConfig
from lamina.data.batching import AnyBatch
from lamina.data.corpus import Corpus
from lamina.data.feed import Feed
from lamina.data.layer_subsets import LayerSubsets
from lamina.errors import DataError
from lamina.tasks.base import Task


class Feeds:
    def __init__(self, task: Task, config: TrainConfig, device: torch.device, note: Callable[[str], object] = lambda _: None,
                 *, is_packed: bool = False) -> None:
        self.task = task
        self.config = config
        self.device = device
        self.note = note
        self.is_packed = is_packed
        self._train: dict[int, Feed] = {}

    def train(self, epoch: int) -> Feed:
        """The epoch's feed; folders that take turns keep one each."""
        folder = (epoch - 1) % len(self.task.folders)
        if folder not in self._train:
            self._train[folder] = self._feed(self.task.train_corpus(epoch), self.config.batches, is_shuffled=True,
                                             is_packed=self.is_packed, subsets=self._subsets())
            if len(self._train[folder].too_long.indices):
                self.note(self._train[folder].describe_too_long())
        return self._train[folder]

    @cached_property
    def valid(self) -> dict[str, Feed]:
        """By split, the one that decides first; none where nothing is validated."""
        return {} if self.config.validation.is_off else {split: self._valid(split) for split in self.task.valid_splits}

    def first_batches(self, number: int) -> list[AnyBatch]:
        """In padded rows, whatever training makes of them: a profile does not depend on how the GPU likes its batches."""
        limits = replace(self.config.batches, order=BY_LENGTH)
        feed = self._feed(self.task.train_corpus(1), limits, is_shuffled=True)
        with closing(feed.batches(1)) as batches:
            return list(islice(batches, number))

    def update_freq(self, epoch: int) -> int:
        numbers = self.config.optimization.update_freq
        return numbers[min(epoch, len(numbers)) - 1]

    def _valid(self, split: str) -> Feed:
        batches = self.config.batches
        limits = replace(batches, max_tokens=batches.max_tokens_valid or batches.max_tokens,
                         max_sentences=batches.max_sentences_valid or batches.max_sentences)
        feed = self._feed(self.task.corpus(split), limits, is_shuffled=False)
        if len(feed.too_long.indices):
            if not batches.skip_invalid_valid:
                raise DataError(f"{feed.describe_too_long()}. That would change the score: raise the limits, or add "
                                "--skip-invalid-size-inputs-valid-test to continue without them.")
            self.note(feed.describe_too_long())
        return feed

    def _subsets(self) -> LayerSubsets | None:
        """Of LayerDrop per sentence: other draws are made as updates come (training/layer_drop.py)."""
        rates = self.config.model.layer_drop_rates
        is_drawn = self.config.optimization.layer_drop_draws == BY_SENTENCE and any(map(any, rates))
        return LayerSubsets(rates, self.config.seed) if is_drawn else None

    def _feed(self, corpus: Corpus, limits: BatchConfig, *, is_shuffled: bool, is_packed: bool = False,
              subsets: LayerSubsets | None = None) -> Feed:
        return Feed(corpus, seed=self.config.seed, limits=limits, device=self.device, is_shuffled=is_shuffled, subsets=subsets,
                    max_positions=self.task.max_positions, is_packed=is_packed)
